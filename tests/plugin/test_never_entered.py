"""A call of ``inject`` whose scope is never entered arms nothing: no test may pass with one."""

from __future__ import annotations

import gc
import textwrap
import warnings

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.injection import FaultInjector

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
