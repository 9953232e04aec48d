"""The timeline of a trial: what happened when, in which process."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_dataloader_faults import Outcome, run_trial
from pytest_dataloader_faults._engine.policy import MOST, EventLog
from pytest_dataloader_faults._engine.protocol import Course, Courses
from pytest_dataloader_faults._trial.from_journal import timeline_of
from pytest_dataloader_faults._trial.journal import (
    BatchReceived,
    PassEnded,
    PhaseStarted,
    TrialEnded,
    TrialStarted,
)
from pytest_dataloader_faults.faults import HungRead, ReadError, ShortRead, WorkerKilled
from pytest_dataloader_faults.outcomes import Delivery, Event, Pass
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
    """The epoch begins; a worker begins a batch, opens the file and fails; the loop gets it."""
    assert _is_in_order(outcome)
    (fault,) = _of(outcome, "fault")
    assert (fault.process, fault.text) == (worker, f"ReadError: read of {path}, sample 5")
    (error,) = _of(outcome, "error")
    assert (error.process, error.text) == ("loader", "OSError: [Errno 5] Input/output error")
    epoch = next(each for each in outcome.timeline if each.text == "epoch 1 starts")
    opened = next(each for each in _of(outcome, "open") if each.text == path)
    fetch = next(each for each in _of(outcome, "fetch") if each.process == worker)
    assert opened.process == worker
    order = [epoch, fetch, opened, fault, error]
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
    batches = [each.text for each in _of(outcome, "batch")]
    assert batches[1] == "batch 1 of epoch 1 from worker 1: samples 4, 5, 6, 7"
    assert (len(batches), len(_of(outcome, "fetch"))) == (4, 4)
    opened = sorted(each.text for each in _of(outcome, "open"))
    assert opened == sorted(map(str, records.iterdir()))
    assert outcome.omitted_events == 0


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


def test_a_trial_that_hangs_has_what_was_delivered_before(records):
    """The supervisor tells it where the trial cannot."""
    path = str(records / "05.rec")
    outcome = _trial(records, HungRead(path), deadline=1.0)
    assert outcome.timed_out
    assert _is_in_order(outcome)
    end = outcome.timeline[-1]
    assert (end.kind, end.text) == ("exit", "the deadline ended the trial")
    assert [each.text for each in _of(outcome, "fault")] == [f"HungRead: read of {path}, sample 5"]
    assert path in [each.text for each in _of(outcome, "open")]


def test_times_are_no_part_of_a_comparison():
    outcome = ordinary(stream())
    assert outcome == replace(outcome, timeline=(Event(0.1, "loader", "epoch", "x"),))


def test_many_events_are_cut_to_the_first_and_the_last(records):
    fault = ReadError("*/15.rec", nth=_TIMES)  # In the last batch: all others have come.
    outcome = run_trial(lambda: _OpensOften(records), fault)
    assert len([each for each in outcome.timeline if not each.omitted]) == MOST
    assert len(_of(outcome, "fault")) == 1
    opened = sum(counts.opens for each in outcome.workers for counts in each.files.values())
    opens = [each for each in _of(outcome, "open") if not each.omitted]
    assert outcome.omitted_events >= opened - len(opens) > 0


def test_faults_crowd_nothing_out(records):
    outcome = _trial(records, ShortRead("*.rec", max_bytes=1))
    assert len(_of(outcome, "epoch")) == 4
    texts = [each.text.partition(" from ")[0] for each in _of(outcome, "batch")]
    epochs = ("epoch 1", "the recovery")
    assert texts == [f"batch {number} of {epoch}" for epoch in epochs for number in range(4)]
    faults = _of(outcome, "fault")
    assert sum(each.omitted or 1 for each in faults) == outcome.fired > MOST
    for worker in ("worker 0", "worker 1"):
        *_, gap = [each for each in faults if each.process == worker]
        assert gap.text == f"{gap.omitted:,} more faults, not shown"
    assert outcome.omitted_events == sum(each.omitted for each in outcome.timeline)
    assert _is_in_order(outcome)


_TIMES = 100


class _OpensOften(Records):
    def __getitem__(self, index):
        for _ in range(_TIMES):
            sample = super().__getitem__(index)
        return sample


def _journal(firings, moments):
    course = Course(0, 7, None, early=False, events=moments, omitted=_OMITTED, unnoted=0)
    return [
        TrialStarted(1),
        PhaseStarted(EPOCH_1, 10.0),
        *(BatchReceived(EPOCH_1, 10.0 + each, _BATCH) for each in range(firings)),
        PassEnded(99.0, Pass(EPOCH_1, complete=True)),
        Courses([course]),
        TrialEnded(timed_out=False, exitcode=0, duration=91.0, began=9.0),
    ]


_BATCH = Delivery(None, None, "")
_OMITTED = {"open": (2, 12.0)}


def test_rare_events_take_the_place_of_ordinary_ones():
    facts = fired(EIO, MOST - 4)
    outcome = ordinary(stream(), _at(facts, 20.0))
    moments = [[11.0 + each / 100, "open", f"/{each}"] for each in range(300)]
    events = timeline_of(outcome, _journal(0, moments))
    kinds = [each.kind for each in events]
    assert kinds.count("fault") == MOST - 4
    texts = [each.text for each in events if each.kind == "open"]
    assert texts == ["/0", "300 more opens, not shown", "/299"]
    assert sum(each.omitted for each in events) == 298 + 2


def _at(facts, time):
    """*facts* whose firings happened at that time."""
    return tuple(
        replace(each, firings=tuple(replace(firing, time=time) for firing in each.firings))
        for each in facts
    )


def test_hostile_paths_are_short_and_on_one_line():
    moments = [[11.0, "open", "/a\n\x1b[31m\udcff"], [12.0, "open", "/" + "b" * 5000 + "/c.jpg"]]
    events = timeline_of(ordinary(stream()), _journal(0, moments))
    opened = [each for each in events if each.kind == "open" and not each.omitted]
    opened_path, second = (each.text for each in opened)
    assert opened_path == "/a\\n\\x1b[31m\\udcff"
    assert second.endswith("b/c.jpg")
    assert len(second) < 250


def test_a_trial_that_is_not_over_has_no_timeline():
    assert timeline_of(ordinary(stream()), _journal(1, [])[:-1]) == ()


def test_moments_keep_the_first_and_the_last():
    log = EventLog()
    for time in range(3 * MOST):
        log.add(float(time), "open", "")
    events, omitted = log.kept()
    assert [events[0][0], events[-1][0], len(events)] == [0, 3 * MOST - 1, MOST]
    assert omitted == {"open": (2 * MOST, MOST // 2 - 1)}
    other_log = EventLog()
    other_log.extend(events[:10], {"open": (5, 3.0)})
    assert other_log.kept() == (events[:10], {"open": (5, events[9][0])})


def test_moments_of_one_kind_do_not_crowd_out_another():
    log = EventLog()
    for time in range(10 * MOST):
        log.add(float(time), "open", "")
    log.add(20.0 * MOST, "fetch", "fetch 2")
    events, omitted = log.kept()
    assert events[-1] == (20.0 * MOST, "fetch", "fetch 2")
    assert list(omitted) == ["open"]
