"""A fault that never fires, or whose scope is never entered, fails its test and says why."""

from __future__ import annotations

import gc
import textwrap
import warnings

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

from pytest_dataloader_faults.faults import ReadError


class Unreadable:
    def __iter__(self):
        raise FileNotFoundError("no order of samples")


@pytest.fixture
def loader(records):
    return DataLoader(Records(records), batch_size=4, num_workers=2)


def test_eio_reads(eio_reads, loader):
    eio_reads("*.nothing")
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


def test_emfile(emfile, loader):
    emfile(workers=(5,))
    assert len(list(loader)) == 4


def test_too_few(eio_reads, loader):
    eio_reads("*.rec", nth=1000)
    assert len(list(loader)) == 4


def test_no_loop(eio_reads, loader):
    eio_reads("*.rec")


def test_no_files(eio_reads):
    eio_reads("*.rec")
    list(DataLoader(Numbers(), num_workers=2))


def test_one_of_two(eio_reads, truncated_files, loader):
    truncated_files("*.nothing")
    eio_reads("*.rec")
    with pytest.raises(OSError):
        list(loader)


def test_no_start(eio_reads, records):
    eio_reads("*.rec")
    loader = DataLoader(Records(records), num_workers=1, sampler=Unreadable())
    with pytest.raises(OSError):
        list(loader)


def test_run(dataloader_faults, records):
    dataloader_faults.run(lambda: Records(records), ReadError("*.rec"))
    outcome = dataloader_faults.run(lambda: Records(records), ReadError("*.nothing"))
    assert outcome.fired == 0


def test_started_before(records, request):
    loader = DataLoader(Records(records), num_workers=1, persistent_workers=True)
    list(loader)
    request.getfixturevalue("eio_reads")("*.rec")
    list(loader)
    loader._iterator._shutdown_workers()
"""
OPENED = "never fired: no operation matched it. Batches fetched: worker ?: 2, worker ?: 2*"
NO_WORKER = "never fired: no DataLoader worker was started after it was armed. Arm faults*"
MESSAGES = {
    "test_eio_reads": f"ReadError(path='*.nothing') {OPENED}",
    "test_truncated_files": f"TruncatedFile(path='*.nothing') {OPENED}",
    "test_closed_descriptors": f"ClosedDescriptor(path='*.nothing') {OPENED}",
    "test_killed_workers": (
        "WorkerKilled(at=3) never fired: no operation matched it: it is due at fetch 3 of a worker,"
        " and worker 0 made 2. Lower at. Batches fetched: worker ?: 2, worker ?: 2"
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
    "test_run": f"ReadError(path='*.nothing') {OPENED}",
    "test_started_before": f"ReadError(path='*.rec') {NO_WORKER}",
}
OWN_ERROR = """
import pytest
from torch.utils.data import DataLoader


def test_raises(eio_reads):
    eio_reads("*.nothing")
    assert 1 == 2, "of the test's own"


def test_skips(eio_reads):
    eio_reads("*.nothing")
    pytest.skip("of the test's own")


@pytest.mark.xfail(reason="known", strict=True)
def test_xfails(eio_reads):
    eio_reads("*.nothing")
    raise RuntimeError


@pytest.mark.xfail(reason="known", strict=True)
def test_would_pass(eio_reads):
    eio_reads("*.nothing")


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
    """What the test itself says comes first; that the fault did not fire adds nothing then."""
    result = suite.run(OWN_ERROR, "-rs")
    result.assert_outcomes(failed=1, skipped=1, xfailed=2, passed=1)
    result.stdout.fnmatch_lines(["E * AssertionError: of the test's own", "SKIPPED *test's own"])
    assert "never fired" not in result.stdout.str()


NEVER_CALLED = """
import pytest
from support.datasets import Records

from pytest_dataloader_faults.faults import OpenError


@pytest.fixture
def disk(short_reads):
    return short_reads


def test_parameter(eio_reads, truncated_files):
    pass


@pytest.mark.usefixtures("emfile")
def test_mark():
    pass


def test_through_another_fixture(disk, dataloader_faults):
    pass


def test_own_end(eio_reads):
    pytest.skip("of the test's own")


@pytest.mark.parametrize("name", ["eio_reads", "open_errors"])
def test_one_of_two(name, request, eio_reads, open_errors):
    with pytest.raises(ValueError):
        request.getfixturevalue(name)(nth=0)


def test_arms_otherwise(eio_reads, dataloader_faults, records):
    dataloader_faults.run(lambda: Records(records), OpenError("*/00.rec"), num_workers=1)
"""


@pytest.mark.usefixtures("engine")
def test_fixtures_of_a_fault_that_are_never_called(suite):
    """A test that requests them and arms nothing fails, unless it arms faults in another way."""
    result = suite.run(NEVER_CALLED)
    result.assert_outcomes(failed=3, skipped=1, passed=3)
    result.stdout.fnmatch_lines(
        [
            'eio_reads, truncated_files was never called, so no fault was armed: call *("[*].jpg"*',
            "emfile was never called, so no fault was armed: call it, as in emfile(headroom=0)*",
            "short_reads was never called, so no fault was armed*",
        ]
    )


HEADER = """
import gc
import pytest
from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ReadError
"""
OTHER = """
        def test_other():
            gc.collect()
        """
LINE = "test_inner.py:{}: inject(ReadError(path='*.bin')) was never entered, so no fault was armed"


def run(suite, body, *arguments):
    """The outcome of the tests in *body*, which begin at line 6."""
    return suite.run(HEADER + textwrap.dedent(body), "-p", "no:cacheprovider", *arguments)


@pytest.mark.parametrize("options", [(), ("-W", "error")], ids=["plain", "-W error"])
def test_a_test_that_forgets_with_fails(light_suite, options):
    """The text names the line of the call, and there are no frames and no warning."""
    result = run(
        light_suite,
        """
        def test_forgotten():
            inject(ReadError("*.bin"))
        """,
        *options,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([LINE.format(7) + "*"])
    for unwanted in ("*warning*", "*Warning*", "*injection.py*", "*Captured*"):
        result.stdout.no_fnmatch_line(unwanted)


@pytest.mark.parametrize(
    "body",
    [
        """
        kept = []
        def test_alive():
            kept.append(inject(ReadError("*.bin")))
        """,
        """
        def test_in_a_cycle():
            found = [inject(ReadError("*.bin"))]
            found.append(found)
        """,
    ],
    ids=["alive", "cycle"],
)
def test_no_collector_is_needed(light_suite, body):
    """The end of the test's call counts, also where the scope lives on."""
    result = run(light_suite, body + OTHER)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.no_fnmatch_line("*Warning*")


def test_a_test_that_imports_it(fresh_suite):
    """Nothing of it was there when the test began."""
    result = fresh_suite.run(
        """
        def test_forgotten():
            from pytest_dataloader_faults import faults, inject
            inject(faults.ReadError("*.bin"))
        """,
        "-p",
        "no:cacheprovider",
    )
    result.assert_outcomes(failed=1, warnings=1)
    result.stdout.fnmatch_lines([LINE.format(3) + "*"])


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_a_fixture_that_forgets_with(light_suite, when):
    """It is an error of the fixture's phase."""
    lines = ['inject(ReadError("*.bin"))', "yield"]
    lines = lines if when == "setup" else lines[::-1]
    body = "".join(f"    {line}\n" for line in lines)
    result = run(
        light_suite,
        f"@pytest.fixture\ndef armed():\n{body}\ndef test_it(armed):\n    pass\n",
    )
    result.assert_outcomes(errors=1, passed=int(when == "teardown"))
    result.stdout.fnmatch_lines(["*was never entered*"])


def test_a_fixture_may_give_a_scope(light_suite):
    """The test enters it, or it is an error as the fixture's value goes."""
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
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_does_not*", "*was never entered*"])


def test_an_error_of_the_test_itself_goes_first(light_suite):
    """What was never entered stands beside it, as it is the likely reason."""
    result = run(
        light_suite,
        """
        def test_nothing_raised():
            inject(ReadError("*.bin"))
            with pytest.raises(OSError):
                pass
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*DID NOT RAISE*", "*dataloader-faults*", "*was never entered*"])


def test_without_pytest_it_is_a_warning():
    """It comes as the scope is collected, and points to the line of the call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code = compile("inject(fault)", "loop.py", "exec")
        scope = {"inject": inject, "fault": ReadError("*.bin")}
        from pytest_dataloader_faults import injection

        with injection._watched(injection._unwatched):
            exec(code, scope)  # noqa: S102  # a line of a file of its own
        gc.collect()
    (found,) = [each for each in caught if "was never entered" in str(each.message)]
    assert (found.category, found.filename, found.lineno) == (RuntimeWarning, "loop.py", 1)


def test_what_is_entered_is_not_told(light_suite):
    """By ``with``, by an exit stack, or as a decorator."""
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
        """,
        "-W",
        "error",
    )
    result.assert_outcomes(passed=3)


def test_a_scope_is_entered_once(engine):
    """A second time is refused with what to do."""
    scope = inject(ReadError("*.bin"), require_fired=False)
    with scope:
        pass
    with pytest.raises(InvalidArgumentError, match="entered before: call inject"), scope:
        pytest.fail("armed")


@pytest.mark.parametrize("call", [inject, FaultInjector().inject], ids=["inject", "injector"])
def test_no_fault_is_refused(call):
    """At the call, as a sweep of no fault is."""
    with pytest.raises(InvalidArgumentError, match=r"no fault was given.*ReadError"):
        call()
