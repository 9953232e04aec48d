"""The fixtures that arm one fault: each really fires in a worker, and its handle tells."""

from __future__ import annotations

import errno
import os
import re
import signal

import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import exceptions, faults, inject, run_trial
from support.datasets import COUNT, Records
from support.epochs import reserves_shared_memory

DEAD = r"is killed by signal|exited unexpectedly"
"""torch tells of a death by either, whichever of its two watchers is first."""
LATE = {"timeout": 2}
ARMED = [  # A fixture, its arguments, the error, the call, and what the loader needs.
    ("open_errors", ("*.rec", errno.EACCES), r"\[Errno 13\] Permission", "openat", {}),
    ("eio_reads", ("*.rec",), r"\[Errno 5\] Input/output error", "read", {}),
    ("truncated_files", ("*.rec",), "32 bytes, expected 64", "openat", {}),
    ("closed_descriptors", ("*.rec",), r"\[Errno 9\] Bad file", "openat", {}),
    ("hung_reads", ("*.rec",), "timed out", "read", LATE),
    ("emfile", (), r"\[Errno 24\] Too many", "openat", {}),
    pytest.param(
        *("shm_exhaustion", (), "unable to allocate shared memory", "fallocate", {}),
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
    """The loop over the loader gets the error of the real thing, made in another process."""
    armed = request.getfixturevalue(fixture)(*arguments)
    assert (armed.reached, armed.fired, armed.surfaced) == (0, 0, 0)
    error = _error(_loader(records, **options), message)
    (facts,) = armed.faults
    assert facts.reached >= facts.fired >= 1
    assert facts.surfaced == armed.surfaced == 1, str(error)
    assert facts.firings[0].call == call
    assert facts.firings[0].pid != os.getpid()
    assert facts.firings[0].worker in (0, 1)


@pytest.mark.parametrize(("fixture", "arguments", "call"), SILENT, ids=[each[0] for each in SILENT])
def test_fault_that_no_error_tells_of(request, records, fixture, arguments, call):
    """The loop ends as ever: only the counters tell, and of corruption the data."""
    armed = request.getfixturevalue(fixture)(*arguments)
    rows = torch.cat([batch for batch, _ in _loader(records)])
    expected = torch.stack([torch.arange(number, number + 64) for number in range(COUNT)])
    differing = (rows != expected).sum().item()
    assert differing == (1 if fixture == "corrupted_files" else 0)
    (facts,) = armed.faults
    assert (facts.surfaced, facts.firings[0].call) == (0, call)
    assert {each.path for each in facts.firings} == {str(records / "03.rec")}


def test_arguments_are_those_of_the_fault(eio_reads, records):
    """A fixture takes what its fault class takes: here one transient error of worker 1."""
    armed = eio_reads("*.rec", errno=errno.ESTALE, nth=3, times=1, workers=(1,))
    expected = faults.ReadError("*.rec", errno=errno.ESTALE, nth=3, times=1, workers=(1,))
    assert expected == armed.faults[0].fault
    _error(_loader(records), os.strerror(errno.ESTALE))
    assert [each.worker for each in armed.faults[0].firings] == [1]


@pytest.mark.parametrize(
    "context", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_every_way_to_start_workers(eio_reads, records, context):
    """Workers are reached however they are started."""
    armed = eio_reads("*/03.rec")
    options = {"multiprocessing_context": context, "num_workers": 1}
    _error(_loader(records, **options), "Errno 5")
    assert {each.path for each in armed.faults[0].firings} == {str(records / "03.rec")}


def test_two_fixtures_are_one_schedule(eio_reads, truncated_files, records):
    """Faults of two fixtures are armed together, and each handle counts its own."""
    short, failed = truncated_files("*/01.rec"), eio_reads("*/02.rec")
    iterator = iter(_loader(records, num_workers=1, batch_size=1))
    next(iterator)
    errors = [_error(iterator, "32 bytes, expected 64"), _error(iterator, "Errno 5")]
    assert (short.fired, failed.fired) == (1, 1)
    assert (short.surfaced, failed.surfaced) == (1, 1), errors
    assert [each.fault for each in short.faults] == [faults.TruncatedFile("*/01.rec")]
    assert {each.path for each in short.faults[0].firings} == {str(records / "01.rec")}
    assert {each.path for each in failed.faults[0].firings} == {str(records / "02.rec")}


def test_three_fixtures_start_one_supervisor(eio_reads, emfile, slow_reads, records):
    """When the first loader starts its workers; until then every counter is 0."""
    before = set(psutil.Process().children())
    armed = eio_reads("*/01.rec"), emfile(headroom=0, workers=(1,)), slow_reads("*/00.rec", 0.01)
    assert [(each.reached, each.fired, each.surfaced) for each in armed] == [(0, 0, 0)] * 3
    assert set(psutil.Process().children()) <= before  # Those of earlier tests may end.
    iterator = iter(_loader(records))
    started = set(psutil.Process().children()) - before
    assert len(started) == 1 + iterator._num_workers
    errors = [_error(iterator, "Errno 5"), _error(iterator, "Errno 24")]
    assert [each.surfaced for each in armed] == [1, 1, 0], errors
    assert all(each.fired for each in armed)


def test_inject_takes_several_faults(dataloader_faults, records):
    """One handle for all faults of a call; its counters are their sum."""
    schedule = (faults.ReadError("*/00.rec"), faults.OpenError("*/01.rec", errno=errno.EACCES))
    armed = dataloader_faults.inject(*schedule)
    iterator = iter(_loader(records, num_workers=1, batch_size=1))
    errors = [_error(iterator), _error(iterator)]
    assert [each.fault for each in armed.faults] == list(schedule)
    assert [each.fired for each in armed.faults] == [1, 1]
    assert (armed.fired, armed.surfaced) == (2, 2), errors


def test_surfaced_counts_faults_and_not_errors(eio_reads, records):
    """A fault that several errors tell of has surfaced, once; it fired as often as it did."""
    armed = eio_reads("*.rec")
    iterator = iter(_loader(records, num_workers=1, batch_size=1))
    errors = [_error(iterator, "Errno 5"), _error(iterator, "Errno 5")]
    assert armed.fired >= 2
    assert (armed.surfaced, armed.faults[0].surfaced) == (1, 1), errors


def test_run_gives_the_outcome_of_a_trial(dataloader_faults, records):
    """``run`` tries a dataset in a disposable process, with faults and options of the loader."""
    kill = faults.WorkerKilled(signal.SIGTERM, at=2)
    outcome = dataloader_faults.run(lambda: Records(records), kill, num_workers=1, batch_size=2)
    assert outcome.schedule == (kill,)
    assert outcome.fired == 1
    assert len(outcome.delivered) == 1
    assert re.search(DEAD, outcome.exception.message)
    assert [each.call for each in outcome.faults[0].firings] == ["signal 15"]
    assert outcome.loader == {"num_workers": 1, "batch_size": 2}


def test_trial_whose_fault_does_not_fire_is_the_callers_to_judge(engine, records):
    """An outcome with no firing is a fact, not a failure of the test."""
    outcome = run_trial(lambda: Records(records), faults.ReadError("*.nothing"))
    assert (outcome.fired, len(outcome.delivered)) == (0, COUNT // 4)


def test_too_late_is_refused(eio_reads, truncated_files, records):
    """A fault armed after workers have started could not reach them, and is refused."""
    armed = eio_reads("*.rec")
    error = _error(_loader(records))
    with pytest.raises(exceptions.InvalidArgumentError, match="come too late: workers were start"):
        truncated_files("*.rec")
    assert (armed.fired >= 1, armed.surfaced) == (True, 1), error


def test_a_want_of_descriptors_and_a_failing_disk_come_together(open_errors, emfile, records):
    """Files that a fault follows stay below the lowered limit."""
    failing, exhausted = open_errors("*/00.rec"), emfile(headroom=0)
    iterator = iter(_loader(records, num_workers=1, batch_size=1))
    _error(iterator, "Errno 5")
    _error(iterator, "Errno 24")
    assert failing.fired == 1
    assert exhausted.fired >= 1


def test_every_counter_of_inject_is_up_to_date(engine, records):
    """Inside the scope of ``inject``, all that its handle shows is as new as the access."""
    with inject(faults.ReadError("*.rec")) as armed:
        error = _error(_loader(records), "Errno 5")
        assert sum(each.fired for each in armed.faults) >= 1, error
        assert 0 in {each.worker for each in armed.workers}  # The other one may not be there yet.


def test_bad_arguments_are_refused_at_once(eio_reads):
    """The call that arms says what is wrong with its arguments."""
    with pytest.raises(exceptions.InvalidArgumentError, match="nth=0 must be an int, 1 or more"):
        eio_reads("*.rec", nth=0)


def test_a_loader_without_workers_is_refused(eio_reads, records):
    """It would read in the test's own process, which is never filtered."""
    eio_reads("*.rec")
    with pytest.raises(exceptions.InvalidArgumentError, match="num_workers=0"):
        list(_loader(records, num_workers=0))
    _error(_loader(records), "Errno 5")


def test_nothing_is_armed_afterwards(records):
    """The tests above leave nothing behind: a loader gives every sample."""
    rows = torch.cat([batch for batch, _ in _loader(records)])
    assert [row[0].item() for row in rows] == list(range(COUNT))
