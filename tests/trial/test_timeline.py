"""The timeline of a trial: what happened when, in which process."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_dataloader_faults import Outcome, run_trial
from pytest_dataloader_faults._trial.from_journal import timeline_of
from pytest_dataloader_faults._trial.journal import (
    PassEnded,
    PhaseStarted,
    TrialEnded,
    TrialStarted,
)
from pytest_dataloader_faults.faults import HungRead, ReadError, ShortRead, WorkerKilled
from pytest_dataloader_faults.outcomes import Event, Firing, Pass
from support.datasets import Records
from support.facts import EIO, EPOCH_1, fired, ordinary, stream

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
    again = Outcome.from_dict(json.loads(json.dumps(outcome.to_dict())))
    assert (again, again.timeline) == (outcome, outcome.timeline)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_it_is_the_same_with_each_start_method(records, method):
    path = str(records / "05.rec")
    outcome = _trial(records, ReadError(path), loader={"multiprocessing_context": method})
    _check_read_error(outcome, path, "worker 1")


def test_a_run_without_faults_has_none(records):
    outcome = _trial(records)
    assert _is_in_order(outcome)
    assert _of(outcome, "fault", "error", "exit") == []
    assert [each.text for each in _of(outcome, "epoch")] == ["epoch 1 starts", "epoch 1 ends"]


def test_a_killed_worker_exits(records):
    outcome = _trial(records, WorkerKilled(at=2))
    fault, death, error = _of(outcome, "fault", "exit", "error")
    assert [fault.kind, death.kind, error.kind] == ["fault", "exit", "error"]
    assert (death.process, death.text) == ("worker 0", "worker 0 was killed by SIGKILL")
    assert fault.process == "worker 0"


def test_a_loader_without_workers_does_all_by_itself(records):
    path = str(records / "05.rec")
    outcome = _trial(records, ReadError(path), loader={"num_workers": 0})
    _check_read_error(outcome, path, "loader")
    assert {each.process for each in outcome.timeline} == {"loader"}


def test_a_trial_that_hangs_ends_at_the_deadline(records):
    path = str(records / "05.rec")
    outcome = _trial(records, HungRead(path), deadline=1.0)
    assert outcome.timed_out
    assert _is_in_order(outcome)
    end = outcome.timeline[-1]
    assert (end.kind, end.text) == ("exit", "the deadline ended the trial")
    assert [each.text for each in _of(outcome, "fault")] == [f"HungRead: read of {path}, sample 5"]


def test_times_are_no_part_of_a_comparison():
    outcome = ordinary(stream())
    assert outcome == replace(outcome, timeline=(Event(0.1, "loader", "epoch", "x"),))


def test_the_first_firings_of_a_fault_are_listed(records):
    outcome = _trial(records, ShortRead("*.rec", max_bytes=1))
    assert len(_of(outcome, "epoch")) == 4
    faults = _of(outcome, "fault")
    assert outcome.fired > len(faults) == 100
    # On a busy machine, one worker may read so often before the other one starts.
    assert {each.process for each in faults} <= {"worker 0", "worker 1"}
    assert _is_in_order(outcome)


def _journal():
    return [
        TrialStarted(1),
        PhaseStarted(EPOCH_1, 10.0),
        PassEnded(99.0, Pass(EPOCH_1, complete=True)),
        TrialEnded(timed_out=False, exitcode=0, duration=91.0, began=9.0),
    ]


def test_hostile_paths_are_short_and_on_one_line():
    paths = ("/a\n\x1b[31m\udcff", "/" + "b" * 5000 + "/c.jpg")
    (facts,) = fired(EIO)
    firings = [Firing(0, 0, 7, "read", path, 1, time=11.0) for path in paths]
    outcome = ordinary(stream(), (replace(facts, firings=tuple(firings)),))
    texts = [each.text for each in timeline_of(outcome, _journal()) if each.kind == "fault"]
    assert texts[0] == "ReadError: read of /a\\n\\x1b[31m\\udcff"
    assert texts[1].endswith("b/c.jpg")
    assert len(texts[1]) < 250


def test_a_trial_that_is_not_over_has_no_timeline():
    assert timeline_of(ordinary(stream()), _journal()[:-1]) == ()
