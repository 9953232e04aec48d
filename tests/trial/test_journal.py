"""The journal outlives its writers, and becomes an outcome."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pytest_dataloader_faults import Outcome
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults._trial.journal import Journal, outcome_from, reference_from
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes import FileCounts
from pytest_dataloader_faults.outcomes.records import TrialRequest

ASKED = TrialRequest((ReadError("*.x"),), {"num_workers": 1}, 1, 0, 30.0, "kernel")
BATCH = {"indices": [0, 1], "rows": ["a", "b"], "digest": "c"}
PASS = {"drawn": [[0, 1]], "exception": None, "complete": True}


@pytest.fixture(name="journal")
def _journal():
    journal = Journal("test")
    yield journal
    journal.close()


def _in_a_child(action) -> int:
    """How a child process that does *action* ended."""
    child = fork()
    if not child:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def test_events_come_back_in_order(journal):
    """What was written is read, one event each."""
    events = [{"phase": "start"}, {"text": "two\nlines \u20ac"}, {"n": [1, None, {"a": 2.5}]}]
    for event in events:
        journal.write(**event)
    assert journal.events() == events


def test_it_survives_its_writer(journal):
    """Events of a process that was killed right after are there."""

    def write_and_die():
        journal.write(phase="epoch 1")
        os.kill(os.getpid(), signal.SIGKILL)

    status = _in_a_child(write_and_die)
    assert (os.WTERMSIG(status), journal.events()) == (signal.SIGKILL, [{"phase": "epoch 1"}])


def test_a_line_that_was_cut_off_does_not_hide_the_others(journal):
    """A writer killed in the middle of an event leaves half a line: what is whole counts."""
    journal.write(phase="epoch 1")
    os.write(journal.fd, b'{"batch": {"indi')
    assert journal.events()[:1] == [{"phase": "epoch 1"}]


def test_events_after_half_a_line_are_read(journal):
    """The warden writes its last event after whatever the dead left."""
    os.write(journal.fd, b'{"batch": {"indi')
    journal.write(timed_out=False)
    assert {"timed_out": False} in journal.events()


def test_many_writers_do_not_mix(journal):
    """Events of several processes and threads are whole."""
    text = "x" * 10_000

    def write(name: int) -> None:
        for number in range(50):
            journal.write(name=name, number=number, text=text)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    _in_a_child(lambda: write(2))
    for each in threads:
        each.join()
    seen = {(each["name"], each["number"]) for each in journal.events()}
    assert seen == {(name, number) for name in range(3) for number in range(50)}


def test_it_is_not_handed_to_programs(journal):
    """Its descriptor is closed on exec, and it has no name in the file system."""
    assert not os.get_inheritable(journal.fd)
    assert os.fstat(journal.fd).st_nlink == 0


def test_text_that_is_no_utf8_is_told(journal):
    """What a process printed may be anything."""
    os.write(journal.fd, b"caf\xe9")
    assert journal.text() == "caf\ufffd"


def test_no_events_are_no_facts():
    """The outcome is what was asked for."""
    assert outcome_from(ASKED, []) == Outcome(**vars(ASKED))


def test_batches_count_also_without_their_end():
    """An epoch that never ended has delivered what came."""
    outcome = outcome_from(ASKED, [{"phase": "epoch 1"}, {"epoch": 1, "batch": BATCH}])
    assert (outcome.phase, outcome.passes[0].complete) == ("epoch 1", False)
    assert [each.indices for each in outcome.delivered] == [(0, 1)]


def test_passes_and_recovery_are_kept_apart():
    """Epoch numbers say which pass a batch belongs to; none says the recovery."""
    events = [
        {"epoch": 1, "batch": BATCH},
        {"epoch": 1, "pass": PASS},
        {"epoch": 2, "pass": {**PASS, "complete": False}},
        {"epoch": None, "batch": BATCH},
        {"epoch": None, "pass": PASS},
        {"resources": {"phase": "after", "descriptors": {}, "processes": {}}},
    ]
    outcome = outcome_from(ASKED, events)
    assert [(each.complete, len(each.delivered)) for each in outcome.passes] == [
        (True, 1),
        (False, 0),
    ]
    assert outcome.recovery is not None
    assert (outcome.recovery.complete, len(outcome.recovery.delivered)) == (True, 1)
    assert [each.phase for each in outcome.resources] == ["after"]


def test_the_supervisors_last_report_fills_the_counters():
    """A trial that is stuck cannot ask for it, so it is told by itself."""
    fired = {"fault": 0, "worker": 0, "pid": 7, "call": "read", "path": "/a.x", "fetch": 1}
    worker = {
        "worker": 0,
        "pid": 7,
        "fetches": 1,
        "files": {"/a.x": [1, 1, 64]},
        "unobserved": {},
        "faults": [{"reached": 3, "fired": 1, "firings": [fired]}],
    }
    outcome = outcome_from(ASKED, [{"report": {"workers": [worker], "errors": []}}])
    assert [(each.reached, each.fired) for each in outcome.faults] == [(3, 1)]
    assert outcome.workers[0].files == {"/a.x": FileCounts(1, 1, 64)}
    later = {"report": {"workers": [], "errors": []}}
    told = outcome.to_dict()
    again = outcome_from(ASKED, [{"faults": told["faults"], "workers": told["workers"]}, later])
    assert (again.faults, again.workers) == (outcome.faults, outcome.workers)


def test_a_reference_is_found_among_events():
    """Indices and digests come back as they were."""
    reference = {"kind": "map", "samples": [[0, "a"]], "batches": [], "unstable_index": None}
    found = reference_from([{"phase": "start"}, {"reference": reference}], "")
    assert (found.kind, found.samples, found.unstable_index) == ("map", ((0, "a"),), None)
