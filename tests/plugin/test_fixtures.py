"""The fixtures that arm one fault: each really fires in a worker, and its handle tells."""

from __future__ import annotations

import errno
import os
import signal

import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import exceptions, faults, inject, run_trial
from pytest_dataloader_faults._engine.supervisor.server import NAME
from support.datasets import COUNT, Records
from support.epochs import reserves_shared_memory
from support.rows import slow
from support.waiting import allowed

DEAD = r"is killed by signal|exited unexpectedly"
"""torch tells of a death by either, whichever of its two watchers is first."""
LATE = {"timeout": allowed(2)}
ARMED = [  # A fixture, its arguments, the error, the call, and what the loader needs.
    ("open_errors", ("*.rec", errno.EACCES), r"\[Errno 13\] Permission", "openat", {}),
    ("read_errors", ("*.rec",), r"\[Errno 5\] Input/output error", "read", {}),
    ("truncated_files", ("*.rec",), "32 bytes, expected 64", "openat", {}),
    ("closed_descriptors", ("*.rec",), r"\[Errno 9\] Bad file", "openat", {}),
    ("hung_reads", ("*.rec",), "timed out", "read", LATE),
    ("descriptor_exhaustion", (), r"\[Errno 24\] Too many", "openat", {}),
    pytest.param(
        *("shared_memory_exhaustion", (), "unable to allocate shared memory", "fallocate", {}),
        marks=reserves_shared_memory,
    ),
    ("killed_workers", (signal.SIGKILL,), DEAD, "signal 9", {}),
]
FIXTURES = [getattr(each, "values", each)[0] for each in ARMED]
SILENT = [
    ("short_reads", ("*/03.rec", 9), "read"),
    ("corrupted_files", ("*/03.rec",), "openat"),
    ("slow_reads", ("*/03.rec", 0.01), "read"),
]


def _loader(records, **options) -> DataLoader:
    return DataLoader(Records(records), **{"batch_size": 4, "num_workers": 2, **options})


def _error(loop, match=None) -> BaseException:
    """What *loop*, a loader or an iterator of one, raises."""
    with pytest.raises((OSError, RuntimeError, ValueError), match=match) as caught:
        list(loop)
    error = caught.value.with_traceback(None)
    del caught  # Frames hold the iterator, for which the garbage collector waits 5 s a worker.
    return error


@pytest.mark.parametrize(
    ("fixture", "arguments", "message", "call", "options"), ARMED, ids=FIXTURES
)
def test_fault_fires_in_a_worker(request, records, fixture, arguments, message, call, options):
    armed = request.getfixturevalue(fixture)(*arguments)
    assert (armed.matched, armed.fired, armed.mentioned) == (0, 0, 0)
    error = _error(_loader(records, **options), message)
    (facts,) = armed.faults
    assert facts.matched >= facts.fired >= 1
    assert facts.mentioned == armed.mentioned == 1, str(error)
    assert facts.firings[0].call == call
    assert facts.firings[0].pid != os.getpid()
    assert facts.firings[0].worker in (0, 1)


@pytest.mark.parametrize(("fixture", "arguments", "call"), SILENT, ids=[each[0] for each in SILENT])
def test_fault_that_no_error_tells_of(request, records, fixture, arguments, call):
    armed = request.getfixturevalue(fixture)(*arguments)
    rows = torch.cat([batch for batch, _ in _loader(records)])
    expected = torch.stack([torch.arange(number, number + 64) for number in range(COUNT)])
    differing = (rows != expected).sum().item()
    assert differing == (1 if fixture == "corrupted_files" else 0)
    (facts,) = armed.faults
    assert (facts.mentioned, facts.firings[0].call) == (0, call)
    assert {each.path for each in facts.firings} == {str(records / "03.rec")}


def test_arguments_are_those_of_the_fault(read_errors, records):
    armed = read_errors("*.rec", errno=errno.ESTALE, nth=3, times=1, workers=(1,))
    expected = faults.ReadError("*.rec", errno=errno.ESTALE, nth=3, times=1, workers=(1,))
    assert expected == armed.faults[0].fault
    _error(_loader(records), os.strerror(errno.ESTALE))
    assert [each.worker for each in armed.faults[0].firings] == [1]


@pytest.mark.parametrize("context", ["fork", "forkserver", slow("spawn")])
def test_every_way_to_start_workers(read_errors, records, context):
    armed = read_errors("*/03.rec")
    options = {"multiprocessing_context": context, "num_workers": 1}
    _error(_loader(records, **options), "Errno 5")
    assert {each.path for each in armed.faults[0].firings} == {str(records / "03.rec")}


def test_two_fixtures_are_one_schedule(read_errors, truncated_files, records):
    short, failed = truncated_files("*/01.rec"), read_errors("*/02.rec")
    iterator = iter(_loader(records, num_workers=1, batch_size=1))
    next(iterator)
    errors = [_error(iterator, "32 bytes, expected 64"), _error(iterator, "Errno 5")]
    assert (short.fired, failed.fired) == (1, 1)
    assert (short.mentioned, failed.mentioned) == (1, 1), errors
    assert [each.fault for each in short.faults] == [faults.TruncatedFile("*/01.rec")]
    assert {each.path for each in short.faults[0].firings} == {str(records / "01.rec")}
    assert {each.path for each in failed.faults[0].firings} == {str(records / "02.rec")}


def test_three_fixtures_start_one_supervisor(
    read_errors, descriptor_exhaustion, slow_reads, records
):
    earlier_supervisors = _supervisors()
    armed = (
        read_errors("*/01.rec"),
        descriptor_exhaustion(headroom=0, workers=(1,)),
        slow_reads("*/00.rec", 0.01),
    )
    assert [(each.matched, each.fired, each.mentioned) for each in armed] == [(0, 0, 0)] * 3
    assert _supervisors() <= earlier_supervisors  # Those of earlier tests may end.
    iterator = iter(_loader(records))
    assert len(_supervisors() - earlier_supervisors) == 1
    errors = [_error(iterator, "Errno 5"), _error(iterator, "Errno 24")]
    assert [each.mentioned for each in armed] == [1, 1, 0], errors
    assert all(each.fired for each in armed)


def _supervisors():
    below = psutil.Process().children(recursive=True)
    return {each for each in below if each.name() == NAME}


def test_inject_takes_several_faults(fault_injector, records):
    schedule = (faults.ReadError("*/00.rec"), faults.OpenError("*/01.rec", errno=errno.EACCES))
    armed = fault_injector.inject(*schedule)
    iterator = iter(_loader(records, num_workers=1, batch_size=1))
    errors = [_error(iterator), _error(iterator)]
    assert [each.fault for each in armed.faults] == list(schedule)
    assert [each.fired for each in armed.faults] == [1, 1]
    assert (armed.fired, armed.mentioned) == (2, 2), errors


def test_surfaced_counts_faults_and_not_errors(read_errors, records):
    armed = read_errors("*.rec")
    iterator = iter(_loader(records, num_workers=1, batch_size=1))
    errors = [_error(iterator, "Errno 5"), _error(iterator, "Errno 5")]
    assert armed.fired >= 2
    assert (armed.mentioned, armed.faults[0].mentioned) == (1, 1), errors


def test_trial_whose_fault_does_not_fire_is_the_callers_to_judge(engine, records):
    outcome = run_trial(lambda: Records(records), faults.ReadError("*.nothing"))
    assert (outcome.fired, len(outcome.delivered)) == (0, COUNT // 4)


def test_too_late_is_refused(read_errors, truncated_files, records):
    armed = read_errors("*.rec")
    error = _error(_loader(records))
    with pytest.raises(exceptions.InvalidArgumentError, match="added too late: the workers have"):
        truncated_files("*.rec")
    assert (armed.fired >= 1, armed.mentioned) == (True, 1), error


def test_a_want_of_descriptors_and_a_failing_disk_come_together(
    open_errors, descriptor_exhaustion, records
):
    failing, exhausted = open_errors("*/00.rec"), descriptor_exhaustion(headroom=0)
    iterator = iter(_loader(records, num_workers=1, batch_size=1))
    _error(iterator, "Errno 5")
    _error(iterator, "Errno 24")
    assert failing.fired == 1
    assert exhausted.fired >= 1


def test_every_counter_of_inject_is_up_to_date(engine, records):
    with inject(faults.ReadError("*.rec")) as armed:
        error = _error(_loader(records), "Errno 5")
        assert sum(each.fired for each in armed.faults) >= 1, error
        assert 0 in {each.worker for each in armed.workers}  # The other one may not be there yet.


def test_bad_arguments_are_refused_at_once(read_errors):
    with pytest.raises(exceptions.InvalidArgumentError, match="nth=0 must be an int, 1 or more"):
        read_errors("*.rec", nth=0)


def test_a_loader_without_workers_is_refused(read_errors, records):
    read_errors("*.rec")
    with pytest.raises(exceptions.InvalidArgumentError, match="num_workers=0"):
        list(_loader(records, num_workers=0))
    _error(_loader(records), "Errno 5")


def test_nothing_is_armed_afterwards(records):
    rows = torch.cat([batch for batch, _ in _loader(records)])
    assert [row[0].item() for row in rows] == list(range(COUNT))
