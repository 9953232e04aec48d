"""A fault that never fires, or is never armed, fails its test."""

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.injection import FaultInjector
from support.rows import rows
from support.suites import failures_of

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
    "parameter": f'read_errors, truncated_files {NEVER_CALLED}: call *("[*]*',
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


@rows("call", [inject, FaultInjector().inject])
def test_no_fault_is_refused(call):
    with pytest.raises(InvalidArgumentError, match=r"no fault was passed.*ReadError"):
        call()
