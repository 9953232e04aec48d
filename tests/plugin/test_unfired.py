"""A fault that never fires fails its test; a scope that is never entered issues a warning."""

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.injection import FaultInjector

SUITE = """
import signal

import pytest
from support.datasets import Records
from support.plugin_datasets import Numbers
from torch.utils.data import DataLoader


class Unreadable:
    def __iter__(self):
        raise FileNotFoundError("no order of samples")


@pytest.fixture
def loader(records):
    return DataLoader(Records(records), batch_size=4, num_workers=2)


def test_eio_reads(read_errors, loader):
    read_errors("*.nothing")
    assert len(list(loader)) == 4


def test_truncated_files(truncated_files, loader):
    truncated_files("*.nothing")
    assert len(list(loader)) == 4


def test_closed_descriptors(closed_descriptors, loader):
    closed_descriptors("*.nothing")
    assert len(list(loader)) == 4


def test_killed_workers(killed_workers, loader):
    killed_workers(at=3)
    assert len(list(loader)) == 4


def test_emfile(descriptor_exhaustion, loader):
    descriptor_exhaustion(workers=(5,))
    assert len(list(loader)) == 4


def test_too_few(read_errors, loader):
    read_errors("*.rec", nth=1000)
    assert len(list(loader)) == 4


def test_no_loop(read_errors, loader):
    read_errors("*.rec")


def test_no_files(read_errors):
    read_errors("*.rec")
    list(DataLoader(Numbers(), num_workers=2))


def test_one_of_two(read_errors, truncated_files, loader):
    truncated_files("*.nothing")
    read_errors("*.rec")
    with pytest.raises(OSError):
        list(loader)


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
"""
OPENED = "never fired: no operation matched it. Batches fetched: worker ?: 2, worker ?: 2*"
NO_WORKER = "never fired: no DataLoader worker was started while it was armed. Arm faults*"
MESSAGES = {
    "test_eio_reads": f"ReadError(path='*.nothing') {OPENED}",
    "test_truncated_files": f"TruncatedFile(path='*.nothing') {OPENED}",
    "test_closed_descriptors": f"ClosedDescriptor(path='*.nothing') {OPENED}",
    "test_killed_workers": (
        "WorkerKilled(at=3) never fired: no operation matched it: it is due at a worker's fetch 3,"
        " but worker 0 fetched only 2 batches. Pass a smaller value for at."
        " Batches fetched: worker ?: 2, worker ?: 2"
    ),
    "test_emfile": "DescriptorExhaustion(workers=(5,)) never fired: *",
    "test_too_few": "ReadError(path='*.rec', nth=1000) never fired: * operations matched it in 2 *",
    "test_no_loop": f"ReadError(path='*.rec') {NO_WORKER}",
    "test_no_files": "ReadError(path='*.rec') never fired: * The engine saw no data file opened",
    "test_one_of_two": "TruncatedFile(path='*.nothing') never fired: *",
    "test_no_start": (
        "ReadError(path='*.rec') never fired: iter(loader) raised FileNotFoundError: no order of"
        " samples*"
    ),
    "test_started_before": f"ReadError(path='*.rec') {NO_WORKER}",
}
OWN_ERROR = """
import pytest
from torch.utils.data import DataLoader


def test_raises(read_errors):
    read_errors("*.nothing")
    assert 1 == 2, "of the test's own"


def test_skips(read_errors):
    read_errors("*.nothing")
    pytest.skip("of the test's own")


@pytest.mark.xfail(reason="known", strict=True)
def test_xfails(read_errors):
    read_errors("*.nothing")
    raise RuntimeError


@pytest.mark.xfail(reason="known", strict=True)
def test_would_pass(read_errors):
    read_errors("*.nothing")


def test_follows():
    assert DataLoader._get_iterator.__module__.startswith("torch.")
"""


@pytest.mark.usefixtures("engine")
def test_a_fault_that_never_fires_fails_its_test(suite):
    """Each failure is of the call itself, one message with what was reached, and no traceback.

    The files that the workers did open are named, so that a wrong glob can be put right.
    """
    result = suite.run(SUITE)
    result.assert_outcomes(failed=len(MESSAGES))
    output = result.stdout.str().partition("= FAILURES =")[2].partition("= short test summary")[0]
    for name, message in MESSAGES.items():
        lines = output.partition(f" {name} _")[2].partition("\n____")[0].splitlines()[1:]
        pytest.LineMatcher(lines[:1]).fnmatch_lines([message])
    assert "plugin.py" not in output
    listed = ["  /*/records/00.rec", "  /*/records/09.rec", "  ... and 6 more"]
    pytest.LineMatcher(output.splitlines()).fnmatch_lines(listed)


@pytest.mark.usefixtures("engine")
def test_a_failing_test_is_reported_with_its_own_error_only(suite):
    result = suite.run(OWN_ERROR, "-rs")
    result.assert_outcomes(failed=1, skipped=1, xfailed=2, passed=1)
    result.stdout.fnmatch_lines(["E * AssertionError: of the test's own", "SKIPPED *test's own"])
    assert "never fired" not in result.stdout.str()


NEVER_CALLED = """
import pytest
from support.datasets import Records
from torch.utils.data import DataLoader

from pytest_dataloader_faults.faults import OpenError


@pytest.fixture
def disk(short_reads):
    return short_reads


def test_parameter(read_errors, truncated_files):
    pass


@pytest.mark.usefixtures("descriptor_exhaustion")
def test_mark():
    pass


def test_through_another_fixture(disk, fault_injector):
    pass


def test_own_end(read_errors):
    pytest.skip("of the test's own")


@pytest.mark.parametrize("name", ["read_errors", "open_errors"])
def test_one_of_two(name, request, read_errors, open_errors):
    with pytest.raises(ValueError):
        request.getfixturevalue(name)(nth=0)


def test_arms_otherwise(read_errors, fault_injector, records):
    fault_injector.inject(OpenError("*/00.rec"))
    with pytest.raises(OSError):
        list(DataLoader(Records(records), num_workers=1))
"""


@pytest.mark.usefixtures("engine")
def test_fixtures_of_a_fault_that_are_never_called(suite):
    """A test that requests them and arms nothing fails, unless it arms faults in another way."""
    result = suite.run(NEVER_CALLED)
    result.assert_outcomes(failed=3, skipped=1, passed=3)
    result.stdout.fnmatch_lines(
        [
            'read_errors, truncated_files was never called, so no fault was armed: call *("[*]*',
            "descriptor_exhaustion was never called, so no fault was armed: call it, as in*",
            "short_reads was never called, so no fault was armed*",
        ]
    )


@pytest.mark.usefixtures("engine")
def test_a_scope_decorates_functions():
    """It is armed for each call."""

    @inject(ReadError("*.bin"), require_fired=False)
    def two():
        return 2

    assert [two(), two()] == [2, 2]


@pytest.mark.parametrize("call", [inject, FaultInjector().inject], ids=["inject", "injector"])
def test_no_fault_is_refused(call):
    with pytest.raises(InvalidArgumentError, match=r"no fault was passed.*ReadError"):
        call()
