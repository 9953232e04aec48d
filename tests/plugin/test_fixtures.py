"""The fixtures that arm one fault, and faults that never fire or are never armed."""

import errno
import gc
import os
import signal
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import exceptions, faults, inject
from pytest_dataloader_faults.faults import ReadError
from support.datasets import COUNT, Records
from support.epochs import reserves_shared_memory
from support.suites import failures_of
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
    ("short_reads", ("*/03.rec", 9), "read"),
    ("corrupted_files", ("*/04.rec",), "openat"),
    ("slow_reads", ("*/05.rec", 0.01), "read"),
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
    for each, (_, arguments, call) in zip(armed, SILENT, strict=True):
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


def _fail_and_forget(records) -> None:
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


SUITE = """
import pytest
from support.datasets import Records
from torch.utils.data import DataLoader

from pytest_dataloader_faults.faults import OpenError

class Unreadable:
    def __iter__(self):
        raise FileNotFoundError("no order of samples")

@pytest.fixture
def loader(records):
    return DataLoader(Records(records), batch_size=4, num_workers=2)

def test_one_of_two(read_errors, truncated_files, loader):
    truncated_files("*.nothing")
    read_errors("*/15.rec")
    with pytest.raises(OSError):
        list(loader)

def test_killed_workers(killed_workers, loader):
    killed_workers(at=3)
    assert len(list(loader)) == 4

def test_too_few(read_errors, loader):
    read_errors("*.rec", nth=1000)
    assert len(list(loader)) == 4

def test_no_loop(read_errors, loader):
    read_errors("*.rec")

def test_no_start(read_errors, records):
    read_errors("*.rec")
    loader = DataLoader(Records(records), num_workers=1, sampler=Unreadable())
    with pytest.raises(OSError):
        list(loader)

def test_started_before(records, request):
    loader = DataLoader(Records(records), num_workers=1, persistent_workers=True)
    list(loader)
    request.getfixturevalue("read_errors")("*.rec")
    list(loader)
    loader._iterator._shutdown_workers()

def test_parameter(read_errors, truncated_files):
    pass

@pytest.mark.usefixtures("descriptor_exhaustion")
def test_mark():
    pass

@pytest.fixture
def disk(short_reads):
    return short_reads

def test_through_another_fixture(disk, fault_injector):
    pass

def test_raises(read_errors):
    read_errors("*.nothing")
    assert 1 == 2, "of the test's own"

@pytest.mark.parametrize("is_armed", [True, False])
def test_skips(read_errors, is_armed):
    if is_armed:
        read_errors("*.nothing")
    pytest.skip("of the test's own")

@pytest.mark.xfail(reason="known", strict=True)
def test_xfails(read_errors):
    read_errors("*.nothing")
    raise RuntimeError

@pytest.mark.xfail(reason="known", strict=True)
def test_would_pass(read_errors):
    read_errors("*.nothing")

@pytest.mark.parametrize("name", ["read_errors", "open_errors"])
def test_one_is_called(name, request, read_errors, open_errors):
    with pytest.raises(ValueError):
        request.getfixturevalue(name)(nth=0)

def test_arms_otherwise(read_errors, fault_injector, records):
    fault_injector.inject(OpenError("*/00.rec"))
    with pytest.raises(OSError):
        list(DataLoader(Records(records), num_workers=1))

def test_nothing_is_armed():
    assert DataLoader._get_iterator.__module__.startswith("torch.")
"""
NO_WORKER = "never fired: no DataLoader worker was started while it was armed. Arm faults*"
NEVER_CALLED = "was never called, so no fault was armed"
MESSAGES = {
    "one_of_two": (
        "TruncatedFile(path='*.nothing') never fired: no operation matched it. Batches fetched: *"
    ),
    "killed_workers": "WorkerKilled(at=3) never fired: no operation matched it: it is due at a *",
    "too_few": "ReadError(path='*.rec', nth=1000) never fired: * operations matched it in 2 *",
    "no_loop": f"ReadError(path='*.rec') {NO_WORKER}",
    "no_start": "* never fired: iter(loader) raised FileNotFoundError: no order of samples*",
    "started_before": f"ReadError(path='*.rec') {NO_WORKER}",
    "parameter": f"read_errors, truncated_files {NEVER_CALLED}: call it, as in read_errors(...)*",
    "mark": f"descriptor_exhaustion {NEVER_CALLED}: call it, as in*",
    "through_another_fixture": f"short_reads {NEVER_CALLED}*",
}


@pytest.mark.usefixtures("engine")
def test_a_fault_that_never_fires_or_is_never_armed_fails_its_test(suite):
    """In one message, without a traceback. The error of a test itself comes first.

    The files that the workers did open are named, so that a wrong glob can be put right.
    """
    result = suite.run(SUITE, "-rs")
    result.assert_outcomes(failed=len(MESSAGES) + 1, skipped=2, xfailed=2, passed=4)
    failures = failures_of(result)
    for name, message in MESSAGES.items():
        pytest.LineMatcher(failures[name].splitlines()[:1]).fnmatch_lines([message])
        assert "plugin.py" not in failures[name]
    listed = ["  /*/records/00.rec", "  /*/records/09.rec", "  ... and 6 more"]
    pytest.LineMatcher(failures["one_of_two"].splitlines()).fnmatch_lines(listed)
    assert "AssertionError: of the test's own" in failures["raises"]
    assert "never fired" not in failures["raises"].partition("= short")[0]


@pytest.mark.usefixtures("engine")
def test_a_scope_decorates_functions():
    """It is armed for each call."""

    @inject(ReadError("*.bin"), require_fired=False)
    def two():
        return 2

    assert [two(), two()] == [2, 2]
