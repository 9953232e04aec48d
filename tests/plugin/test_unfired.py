"""A fault that never fires fails its test; a scope that is never entered issues a warning."""

import textwrap

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


HEADER = """
import gc
import pytest
from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ReadError
"""
TEXT = "inject(ReadError(path='*.bin')) of test_inner.py:* was never entered, so no fault was armed"
FORGOTTEN = """
def test_forgotten():
    inject(ReadError("*.bin"))
"""


def run(suite, body, action="default"):
    """The outcome of the tests in *body*, which start at line 6; *action*: on a warning."""
    arguments = "-p", "no:cacheprovider", "-W", action
    return suite.run(HEADER + textwrap.dedent(body), *arguments)


def test_a_test_that_forgets_with_warns(light_suite):
    result = run(light_suite, FORGOTTEN)
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "test_inner.py::test_forgotten",
            f"*/test_inner.py:7: RuntimeWarning: {TEXT}*",
            '    inject(ReadError("[*].bin"))',
        ]
    )


def test_a_test_that_forgets_with_fails_under_w_error(light_suite):
    result = run(
        light_suite,
        f"""{FORGOTTEN}
def test_other():
    gc.collect()
""",
        "error",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines([f"E * RuntimeWarning: {TEXT}*", "FAILED *::test_forgotten - *"])


def test_a_scope_in_a_cycle_warns_when_it_is_collected(light_suite):
    result = run(
        light_suite,
        """
        def test_in_a_cycle():
            scopes = [inject(ReadError("*.bin"))]
            scopes.append(scopes)
        def test_other():
            gc.collect()
        """,
    )
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines([f"*/test_inner.py:7: RuntimeWarning: {TEXT}*"])


def test_a_scope_that_is_kept_until_the_end_is_not_reported(fresh_suite):
    result = run(
        fresh_suite,
        """
        scopes = [inject(ReadError("*.bin"))]
        def test_other():
            pass
        """,
    )
    result.assert_outcomes(passed=1)
    result.stderr.no_fnmatch_line("*never entered*")


class _Tests:
    """A class of tests, which pytest would not collect any more."""


async def _coroutine():
    """Its body would run after the end of the scope."""


def _generator():
    yield


@pytest.mark.parametrize("function", [_Tests, _coroutine, _generator, pytest.fixture(_generator)])
def test_only_functions_can_be_decorated(function):
    """Anything else would run without the fault."""
    scope = inject(ReadError("*.bin"))
    with pytest.raises(InvalidArgumentError, match=r"must decorate a function.*with inject"):
        scope(function)


def test_a_scope_of_a_fixture(light_suite):
    """A test can enter it. Otherwise the warning shows the line in the fixture."""
    result = run(
        light_suite,
        """
        @pytest.fixture
        def scope():
            return inject(ReadError("*.bin"), require_fired=False)
        def test_enters(scope):
            with scope:
                pass
        def test_does_not(scope):
            pass
        """,
    )
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(
        ["test_inner.py::test_does_not", f"*/test_inner.py:8: RuntimeWarning: {TEXT}*"]
    )


def test_without_pytest():
    code = compile("inject(fault)", "loop.py", "exec")
    with pytest.warns(RuntimeWarning, match="was never entered") as warned:
        exec(code, {"inject": inject, "fault": ReadError("*.bin")})  # noqa: S102
    assert [(warning.filename, warning.lineno) for warning in warned] == [("loop.py", 1)]


def test_what_is_entered_is_not_reported(light_suite):
    result = run(
        light_suite,
        """
        import contextlib
        def scope():
            return inject(ReadError("*.bin"), require_fired=False)
        def test_with():
            with scope():
                pass
        def test_stack():
            with contextlib.ExitStack() as stack:
                stack.enter_context(scope())
        @scope()
        def test_decorated():
            gc.collect()
        @scope()
        def helper():
            pass
        def test_other():
            global helper
            del helper
            gc.collect()
        """,
        "error",
    )
    result.assert_outcomes(passed=4)


def test_a_scope_is_entered_once(engine):
    scope = inject(ReadError("*.bin"), require_fired=False)
    with scope:
        pass
    with pytest.raises(InvalidArgumentError, match="already entered: call inject"), scope:
        pytest.fail("armed")


@pytest.mark.parametrize("call", [inject, FaultInjector().inject], ids=["inject", "injector"])
def test_no_fault_is_refused(call):
    with pytest.raises(InvalidArgumentError, match=r"no fault was passed.*ReadError"):
        call()
