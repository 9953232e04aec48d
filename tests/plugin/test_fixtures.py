"""The fixtures that arm one fault: each really fires in a worker, and its handle tells."""

import errno
import gc
import os
import signal
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import exceptions, faults, inject
from support.datasets import COUNT, Records
from support.epochs import reserves_shared_memory
from support.supervisors import running_supervisors
from support.waiting import allowed, unhindered_time

DEAD = r"is killed by signal|exited unexpectedly"
"""torch tells of a death by either, whichever of its two watchers is first."""
LATE = {"timeout": allowed(2)}
OF_FILES = [  # A fixture, its arguments, its call, and the error.
    ("open_errors", ("*/00.rec", errno.EACCES), "openat", r"\[Errno 13\] Permission"),
    ("read_errors", ("*/01.rec",), "read", r"\[Errno 5\] Input/output error"),
    ("truncated_files", ("*/02.rec",), "openat", "32 bytes, expected 64"),
    ("closed_descriptors", ("*/03.rec",), "openat", r"\[Errno 9\] Bad file"),
]
SILENT = [
    ("short_reads", ("*/03.rec", 9), "read", ""),
    ("corrupted_files", ("*/04.rec",), "openat", ""),
    ("slow_reads", ("*/05.rec", 0.01), "read", ""),
]
OF_PROCESSES = [
    ("hung_reads", ("*.rec",), "read", "timed out"),
    ("descriptor_exhaustion", (), "openat", r"\[Errno 24\] Too many"),
    pytest.param(
        *("shared_memory_exhaustion", (), "fallocate", "unable to allocate shared memory"),
        marks=reserves_shared_memory,
    ),
    ("killed_workers", (signal.SIGKILL,), "signal 9", DEAD),
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


@pytest.mark.parametrize(("fixture", "arguments", "call", "message"), OF_PROCESSES)
def test_a_fault_fires_in_a_worker(request, records, fixture, arguments, call, message):
    armed = request.getfixturevalue(fixture)(*arguments)
    assert (armed.matched, armed.fired, armed.mentioned) == (0, 0, 0)
    error = _error(_loader(records, **(LATE if fixture == "hung_reads" else {})), message)
    (facts,) = armed.faults
    assert facts.matched >= facts.fired >= 1
    assert facts.mentioned == armed.mentioned == 1, str(error)
    assert facts.firings[0].call == call
    assert facts.firings[0].pid != os.getpid()
    assert facts.firings[0].worker in (0, 1)


def _arm(request, records, table):
    """Arm all of *table*; and require that one supervisor starts, not before the loader."""
    earlier_supervisors = running_supervisors()
    armed = [request.getfixturevalue(fixture)(*arguments) for fixture, arguments, *_ in table]
    assert running_supervisors() <= earlier_supervisors  # Those of earlier tests may end.
    iterator = iter(_loader(records, num_workers=1, batch_size=1))
    assert len(running_supervisors() - earlier_supervisors) == 1
    return armed, iterator


def test_faults_of_files_fire_together(request, records):
    armed, iterator = _arm(request, records, OF_FILES)
    errors = [_error(iterator, message) for *_, message in OF_FILES]
    for each, (fixture, arguments, call, _) in zip(armed, OF_FILES, strict=True):
        (facts,) = each.faults
        assert (each.fired, each.mentioned) == (1, 1), errors
        assert (facts.firings[0].call, fixture) == (call, fixture)
        assert facts.firings[0].path == str(records) + arguments[0][1:]


def test_faults_that_no_error_tells_of(request, records):
    armed, iterator = _arm(request, records, SILENT)
    rows = torch.cat([batch for batch, _ in iterator])
    expected = torch.stack([torch.arange(number, number + 64) for number in range(COUNT)])
    assert [row for row in range(COUNT) if (rows[row] != expected[row]).any()] == [4]
    for each, (_, arguments, call, _) in zip(armed, SILENT, strict=True):
        (facts,) = each.faults
        assert (facts.mentioned, facts.firings[0].call) == (0, call)
        assert {firing.path for firing in facts.firings} == {str(records) + arguments[0][1:]}


def test_arguments_are_those_of_the_fault(read_errors, records):
    armed = read_errors("*.rec", errno=errno.ESTALE, nth=3, times=1, workers=(1,))
    expected = faults.ReadError("*.rec", errno=errno.ESTALE, nth=3, times=1, workers=(1,))
    assert expected == armed.faults[0].fault
    _error(_loader(records), os.strerror(errno.ESTALE))
    assert [each.worker for each in armed.faults[0].firings] == [1]


def test_inject_counts_each_fault_once(engine, records):
    """However many errors tell of it. Counters are up to date while the workers run."""
    schedule = (faults.ReadError("*.rec", nth=2), faults.OpenError("*/00.rec", errno=errno.EACCES))
    with inject(*schedule) as armed:
        iterator = iter(_loader(records, num_workers=1, batch_size=1))
        errors = [_error(iterator, text) for text in ("Errno 13", "Errno 5", "Errno 5")]
        assert [each.fault for each in armed.faults] == list(schedule)
        assert all(each.fired for each in armed.faults)
        assert [each.mentioned for each in armed.faults] == [1, 1], errors
        assert {each.worker for each in armed.workers} == {0}


def test_too_late_is_refused(read_errors, truncated_files, records):
    armed = read_errors("*.rec")
    error = _error(_loader(records))
    with pytest.raises(exceptions.InvalidArgumentError, match="added too late: the workers have"):
        truncated_files("*.rec")
    assert (armed.fired >= 1, armed.mentioned) == (True, 1), error


def test_a_loader_without_workers_is_refused(read_errors, records):
    read_errors("*.rec")
    with pytest.raises(exceptions.InvalidArgumentError, match="num_workers=0"):
        list(_loader(records, num_workers=0))
    _error(_loader(records), "Errno 5")


def _fail_and_forget(records) -> None:
    """A loop that fails, of which nothing is kept."""
    with pytest.raises(OSError, match="Errno 5"):
        list(_loader(records))


def _collect_while_sending(frame, event, _argument) -> None:
    if event == "call" and frame.f_code.co_name == "send":
        gc.collect()


def test_collecting_garbage_inside_a_scope_disturbs_nothing(read_errors, records):
    """Loops that failed leave their iterators to the garbage collector, which may come any time."""
    armed = read_errors("*.rec")
    gc.collect()
    gc.disable()
    try:
        _fail_and_forget(records)
        began = unhindered_time()
        gc.collect()
        assert unhindered_time() - began < 4
        _fail_and_forget(records)
        sys.setprofile(_collect_while_sending)
        assert armed.fired >= 1
    finally:
        sys.setprofile(None)
        gc.enable()
