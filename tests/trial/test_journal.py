"""The journal outlives its writers, and becomes an outcome."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pytest_dataloader_faults import Outcome
from pytest_dataloader_faults._engine.protocol import (
    Report,
    UnknownMessageError,
    WorkerArmed,
    encode,
)
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults._trial.from_journal import outcome_from, reference_from
from pytest_dataloader_faults._trial.journal import (
    BatchReceived,
    FaultsCounted,
    HarnessFailed,
    HarnessTime,
    Journal,
    LoaderTime,
    Looked,
    PassEnded,
    PhaseStarted,
    ReferenceTaken,
    Refused,
    SeveralLoaders,
    TrialEnded,
)
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes import (
    Delivery,
    FaultFacts,
    FileCounts,
    Pass,
    Raised,
    Reference,
    Resources,
    WorkerDeath,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.records import TrialRequest
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY, Stage
from support.facts import EPOCH_1, EPOCH_2

ASKED = TrialRequest((ReadError("*.x"),), {"num_workers": 1}, 1, 0, 30.0, "kernel")
BATCH = Delivery((0, 1), ("a", "b"), "c")
BEGAN = PhaseStarted(EPOCH_1, 1.0)
PASS = Pass(((0, 1),), complete=True)


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
    """What was written is read, with the types that it had."""
    raised = Raised("OSError", "two\nlines \u20ac", "text")
    files = {"/a.x": FileCounts(1, 2, 64)}
    events = [
        BEGAN,
        BatchReceived(EPOCH_1, 2.5, BATCH, None),
        PassEnded(EPOCH_1, 3.0, Pass(exception=raised, deaths=(WorkerDeath(0, 7, -9),))),
        FaultsCounted((FaultFacts(ASKED.schedule[0]),), (WorkerFacts(0, 7, 1, files),)),
        ReferenceTaken(Reference("map", (((0, 1), "a"),), pickled_samples=(((0, 1), "b"),))),
        Refused("UnusableDatasetError", "why", None),
        SeveralLoaders("why", ("train", "val")),
        PhaseStarted(DONE, 4.0),
    ]
    for event in events:
        journal.write(event)
    assert journal.events() == events


def test_an_event_of_the_supervisor_is_one_too(journal):
    """It writes by the protocol that it has with the loader's process."""
    event = WorkerArmed(7, 2.0)
    os.write(journal.fd, b"\n" + encode(event) + b"\n")
    assert journal.events() == [event]


def test_only_events_of_the_kinds_asked_for_are_read(journal):
    """Those who wait for one need not take the others apart."""
    for event in (BEGAN, LoaderTime(2.0), HarnessTime(3.0), LoaderTime(4.0)):
        journal.write(event)
    assert list(journal.of(LoaderTime)) == [LoaderTime(2.0), LoaderTime(4.0)]


@pytest.mark.parametrize("line", [b'{"type": "Unheard"}', b'{"phase": "start"}', b"7"])
def test_an_unknown_event_raises(journal, line):
    """Even where others are asked for."""
    os.write(journal.fd, line + b"\n")
    with pytest.raises(UnknownMessageError, match="is no event of a trial"):
        list(journal.of(LoaderTime))


@pytest.mark.parametrize("fields", [b"", b', "at": 1.0, "more": 2'])
def test_an_event_with_other_fields_raises(journal, fields):
    """One lacks a field, one has a field that is not known."""
    os.write(journal.fd, b'{"type": "LoaderTime"' + fields + b"}\n")
    with pytest.raises(UnknownMessageError, match="LoaderTime"):
        journal.events()


def test_it_survives_its_writer(journal):
    """Events of a process that was killed right after are there."""

    def write_and_die():
        journal.write(BEGAN)
        os.kill(os.getpid(), signal.SIGKILL)

    status = _in_a_child(write_and_die)
    assert (os.WTERMSIG(status), journal.events()) == (signal.SIGKILL, [BEGAN])


def test_a_line_that_was_cut_off_does_not_hide_the_others(journal):
    """A writer killed in the middle of an event leaves half a line: what is whole counts."""
    journal.write(BEGAN)
    os.write(journal.fd, b'{"type": "BatchReceived", "batch": {"indi')
    assert journal.events() == [BEGAN]


def test_events_after_half_a_line_are_read(journal):
    """The warden writes its last event after whatever the dead left."""
    os.write(journal.fd, b'{"type": "BatchReceived", "batch": {"indi')
    ended = TrialEnded(timed_out=False, exitcode=-9, duration=1.0, began=2.0)
    journal.write(ended)
    assert journal.events() == [ended]


def test_many_writers_do_not_mix(journal):
    """Events of several processes and threads are whole."""
    text = "x" * 10_000

    def write(name: int) -> None:
        for number in range(50):
            journal.write(HarnessFailed(f"{name} {number}", text))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    _in_a_child(lambda: write(2))
    for each in threads:
        each.join()
    written = {HarnessFailed(f"{name} {number}", text) for name in range(3) for number in range(50)}
    assert set(journal.events()) == written


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
    outcome = outcome_from(ASKED, [BEGAN, BatchReceived(EPOCH_1, 2.0, BATCH, None)])
    assert (outcome.phase, outcome.passes[0].complete) == (EPOCH_1, False)
    assert [each.indices for each in outcome.delivered] == [(0, 1)]


def test_passes_and_recovery_are_kept_apart():
    """The phase says which pass a batch belongs to."""
    events = [
        BatchReceived(EPOCH_1, 2.0, BATCH, None),
        PassEnded(EPOCH_1, 3.0, PASS),
        PassEnded(EPOCH_2, 4.0, Pass(((0, 1),))),
        BatchReceived(RECOVERY, 5.0, BATCH, None),
        PassEnded(RECOVERY, 6.0, PASS),
        Looked(Resources(Stage.EPOCH, {}, {})),
    ]
    outcome = outcome_from(ASKED, events)
    assert [(each.complete, len(each.delivered)) for each in outcome.passes] == [
        (True, 1),
        (False, 0),
    ]
    assert outcome.recovery is not None
    assert (outcome.recovery.complete, len(outcome.recovery.delivered)) == (True, 1)
    assert [each.stage for each in outcome.resources] == [Stage.EPOCH]


def test_what_the_sampler_drew_is_kept_where_it_is_no_list_of_indices():
    """By the indices of its batch."""
    other = Delivery((2, 3), None, "d")
    came = [BatchReceived(EPOCH_1, 2.0, BATCH, None), BatchReceived(EPOCH_1, 3.0, other, "gASV")]
    assert outcome_from(ASKED, came).packed_draws == (((2, 3), "gASV"),)


def test_the_supervisors_last_report_fills_the_counters():
    """A trial that is stuck cannot ask for it; one that has asked has counted already."""
    fired = {"fault": 0, "worker": 0, "pid": 7, "call": "read", "path": "/a.x", "fetch": 1}
    worker = {
        "worker": 0,
        "pid": 7,
        "fetches": 1,
        "files": {"/a.x": [1, 1, 64]},
        "unobserved": {},
        "faults": [{"reached": 3, "fired": 1, "firings": [fired]}],
    }
    outcome = outcome_from(ASKED, [Report([worker], [], [])])
    assert [(each.reached, each.fired) for each in outcome.faults] == [(3, 1)]
    assert outcome.workers[0].files == {"/a.x": FileCounts(1, 1, 64)}
    counted = FaultsCounted(outcome.faults, outcome.workers)
    again = outcome_from(ASKED, [counted, Report([], [], [])])
    assert (again.faults, again.workers) == (outcome.faults, outcome.workers)


def test_a_reference_is_found_among_events():
    """It took as long as the process that made it."""
    reference = Reference("map", ((0, "a"),))
    end = TrialEnded(timed_out=False, exitcode=0, duration=2.5, began=0.0)
    found = reference_from([BEGAN, ReferenceTaken(reference), end], "")
    assert (found, found.duration) == (reference, 2.5)
