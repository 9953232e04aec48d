"""The journal outlives its writers, and becomes an outcome with a timeline."""

import json
import os
import pickle
import signal
import threading
from dataclasses import replace

import pytest

from pytest_dataloader_faults import Outcome, run_trial
from pytest_dataloader_faults._engine.protocol import WorkerArmed, WorkerReports
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults._trial.journal import (
    BatchReceived,
    FactsFound,
    Failed,
    Journal,
    Kept,
    PassEnded,
    PhaseStarted,
    ProcessesStarted,
    TrialEnded,
    outcome_from,
    reference_from,
    timeline_of,
)
from pytest_dataloader_faults.exceptions import HarnessError, UnusableDatasetError
from pytest_dataloader_faults.faults import HungRead, ReadError, ShortRead
from pytest_dataloader_faults.outcomes import (
    Absence,
    Event,
    FaultFacts,
    FileCounts,
    Firing,
    LoadedState,
    Pass,
    Position,
    Raised,
    Reason,
    Reference,
    Resources,
    SavedState,
    TrialEnd,
    TrialRequest,
    WorkerDeath,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.agreement import Sample
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY, Stage
from pytest_dataloader_faults.wire import encode
from support.datasets import Records
from support.facts import EIO, EPOCH_1, EPOCH_2, batch_of, fired, ordinary, stream

ASKED = TrialRequest((ReadError("*.x"),), {"num_workers": 1}, 1, 0, 30.0)
BATCH = batch_of((0, 1), ("a", "b"))
BEGAN = PhaseStarted(EPOCH_1, 1.0)
PASS = Pass(EPOCH_1, ((0, 1),), complete=True)


@pytest.fixture(name="journal")
def _journal():
    journal = Journal("test")
    yield journal
    journal.close()


def _in_a_child(action) -> int:
    child = fork()
    if not child:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def test_events_come_back_in_order(journal):
    raised = Raised("OSError", "two\nlines \u20ac", "text")
    files = {"/a.x": FileCounts(1, 2, 64)}
    events = [
        BEGAN,
        BatchReceived(EPOCH_1, BATCH),
        PassEnded(3.0, Pass(EPOCH_1, exception=raised, deaths=(WorkerDeath(0, 7, -9),))),
        FactsFound(None, (FaultFacts(ASKED.schedule[0]),), (WorkerFacts(0, 7, 1, files),)),
        Reference("map", (((0, 1), Sample("a")),)),
        Failed(UnusableDatasetError, "why", None, 3.5),
        PhaseStarted(DONE, 4.0),
    ]
    for event in events:
        journal.write(event)
    assert journal.events() == events


def test_an_event_of_the_supervisor_is_one_too(journal):
    event = WorkerArmed(7, 2.0)
    os.write(journal.fd, encode(event))
    assert journal.events() == [event]


@pytest.mark.parametrize("line", [b"Turn", b"Unheard gASV.", b"7", b"\xff\n\n.\nTurn x"])
def test_what_is_no_event_is_skipped(journal, line):
    """The user's code may have written it."""
    os.write(journal.fd, line)
    journal.write(BEGAN)
    assert journal.events() == [BEGAN]


def test_it_survives_its_writer(journal):
    def write_and_die():
        journal.write(BEGAN)
        os.kill(os.getpid(), signal.SIGKILL)

    status = _in_a_child(write_and_die)
    assert (os.WTERMSIG(status), journal.events()) == (signal.SIGKILL, [BEGAN])


def test_events_after_half_a_line_are_read(journal):
    os.write(journal.fd, encode(BatchReceived(EPOCH_1, BATCH))[:40])
    ended = TrialEnded(TrialEnd(exitcode=-9), duration=1.0, began=2.0)
    journal.write(ended)
    assert journal.events() == [ended]


def test_many_writers_do_not_mix(journal):
    text = "x" * 10_000

    def write(name: int) -> None:
        for number in range(50):
            journal.write(Failed(HarnessError, f"{name} {number}", text, 1.0))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    _in_a_child(lambda: write(2))
    for thread in threads:
        thread.join()
    written = {
        Failed(HarnessError, f"{name} {number}", text, 1.0)
        for name in range(3)
        for number in range(50)
    }
    assert set(journal.events()) == written


def test_it_is_not_handed_to_programs(journal):
    assert not os.get_inheritable(journal.fd)
    assert os.fstat(journal.fd).st_nlink == 0


def test_passes_and_recovery_are_kept_apart():
    events = [
        BatchReceived(EPOCH_1, BATCH),
        PassEnded(3.0, PASS),
        PassEnded(4.0, Pass(EPOCH_2, ((0, 1),))),
        BatchReceived(RECOVERY, BATCH),
        PassEnded(6.0, replace(PASS, phase=RECOVERY)),
        FactsFound(resources=(Resources(Stage.EPOCH, {}, {}),)),
    ]
    outcome = outcome_from(ASKED, events)
    assert [(each.complete, len(each.delivered)) for each in outcome.epochs] == [
        (True, 1),
        (False, 0),
    ]
    assert outcome.recovery is not None
    assert (outcome.recovery.complete, len(outcome.recovery.delivered)) == (True, 1)
    assert [each.stage for each in outcome.resources] == [Stage.EPOCH]


def test_facts_of_some_trials_are_notes():
    notes = SavedState(1, size=4), Absence(1, Reason.GONE, Position(1, 2)), LoadedState(0)
    events = [*notes[:2], Kept(0, b"state"), *notes[2:]]
    outcome = outcome_from(ASKED, events)

    assert outcome.notes == notes
    assert outcome.of(Absence) == notes[1:2]
    assert pickle.loads(pickle.dumps(outcome)) == outcome


def test_the_supervisors_last_report_fills_the_counters():
    """A trial that is stuck cannot ask for it; one that has asked has counted already."""
    faults = (FaultFacts(ASKED.schedule[0], 3, 1, firings=(Firing(0, 0, 7, "read", "/a.x", 1),)),)
    processes = (WorkerFacts(None, 6, 0, {}), WorkerFacts(0, 7, 1, {"/a.x": FileCounts(1, 1, 64)}))
    outcome = outcome_from(ASKED, [WorkerReports(faults, processes, [], [])])
    assert (outcome.faults, outcome.main, outcome.workers) == (faults, processes[0], processes[1:])
    counted = FactsFound(None, outcome.faults, outcome.workers)
    again = outcome_from(ASKED, [counted, WorkerReports([], [], [], [])])
    assert (again.faults, again.workers) == (outcome.faults, outcome.workers)


def test_a_reference_is_found_among_events():
    reference = Reference("map", ((0, Sample("a")),))
    assert reference_from([BEGAN, reference], TrialEnd()) == reference


pytestmark = pytest.mark.usefixtures("engine")


def _trial(folder, *faults, **settings) -> Outcome:
    loader = {"num_workers": 2, "batch_size": 4, **settings.pop("loader", {})}
    return run_trial(lambda: Records(folder), *faults, loader=loader, **settings)


def _of(outcome: Outcome, *kinds: str) -> list[Event]:
    return [each for each in outcome.timeline if each.kind in kinds]


def _is_in_order(outcome: Outcome) -> bool:
    times = [each.time for each in outcome.timeline]
    return times == sorted(times) and 0 < times[0] and times[-1] <= outcome.duration + 0.001


def _check_read_error(outcome: Outcome, path: str, worker: str) -> None:
    """The epoch begins; a worker fails; the loop gets the error."""
    assert _is_in_order(outcome)
    (fault,) = _of(outcome, "fault")
    assert (fault.process, fault.text) == (worker, f"ReadError: read of {path}, sample 5")
    (error,) = _of(outcome, "error")
    assert (error.process, error.text) == ("loader", "OSError: [Errno 5] Input/output error")
    epoch = next(each for each in outcome.timeline if each.text == "epoch 1 starts")
    order = [epoch, fault, error]
    assert order == sorted(order, key=lambda each: each.time)
    assert "epoch 1 ends with an error" in [each.text for each in _of(outcome, "epoch")]


def test_a_fault_stands_between_its_cause_and_its_error(records):
    path = str(records / "05.rec")
    outcome = _trial(records, ReadError(path))
    _check_read_error(outcome, path, "worker 1")
    recovery = [each.text for each in outcome.timeline if "the recovery" in each.text]
    assert [recovery[0], recovery[-1]] == ["the recovery starts", "the recovery ends"]
    assert json.loads(json.dumps(outcome.to_dict()))["timeline"][0]["process"] == "loader"


def test_a_trial_that_hangs_ends_at_the_deadline(records):
    path = str(records / "05.rec")
    outcome = _trial(records, HungRead(path), deadline=1.0)
    assert outcome.timed_out
    assert _is_in_order(outcome)
    end = outcome.timeline[-1]
    assert (end.kind, end.text) == ("exit", "the deadline ended the trial")
    assert [each.text for each in _of(outcome, "fault")] == [f"HungRead: read of {path}, sample 5"]


def test_the_first_firings_of_a_fault_are_listed(records):
    outcome = _trial(records, ShortRead("*.rec", max_bytes=1))
    assert len(_of(outcome, "epoch")) == 4
    faults = _of(outcome, "fault")
    assert outcome.fired > len(faults) == 100
    # On a busy machine, one worker may read so often before the other one starts.
    assert {each.process for each in faults} <= {"worker 0", "worker 1"}
    assert _is_in_order(outcome)


def _events_of_a_trial():
    return [
        ProcessesStarted((1,)),
        PhaseStarted(EPOCH_1, 10.0),
        PassEnded(99.0, Pass(EPOCH_1, complete=True)),
        TrialEnded(TrialEnd(), duration=91.0, began=9.0),
    ]


def test_hostile_paths_are_short_and_on_one_line():
    paths = ("/a\n\x1b[31m\udcff", "/" + "b" * 5000 + "/c.jpg")
    (facts,) = fired(EIO)
    firings = [Firing(0, 0, 7, "read", path, 1, time=11.0) for path in paths]
    outcome = ordinary(stream(), (replace(facts, firings=tuple(firings)),))
    texts = [
        each.text for each in timeline_of(outcome, _events_of_a_trial()) if each.kind == "fault"
    ]
    assert texts[0] == "ReadError: read of /a\\n\\x1b[31m\\udcff"
    assert texts[1].endswith("b/c.jpg")
    assert len(texts[1]) < 250


def test_a_trial_that_is_not_over_has_no_timeline():
    assert timeline_of(ordinary(stream()), _events_of_a_trial()[:-1]) == ()
