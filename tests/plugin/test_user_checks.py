"""Checks of the user's own, added by the hook ``pytest_dataloader_faults_checks``."""

import pytest

from pytest_dataloader_faults import check
from pytest_dataloader_faults.battery.checks import CHECKS, replace_registered
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from support.rows import rows
from support.suites import REPORT, failures_of, items_of, summary_of

IMPORTS = """
import errno
from pytest_dataloader_faults import Finding, NotApplicable, Scenario, Verdict
from pytest_dataloader_faults import check, faults, steps

def one(*faults):
    yield Scenario(faults=faults)
"""
HOOK = "\ndef pytest_dataloader_faults_checks():\n    return "
STALE = 'check("stale-handle", "handles stale handles")(lambda workload: {plan})'
OPENS = "one(faults.OpenError(workload.opened.path, errno.ESTALE, nth=3, every=3))"
TEST = """
from support.datasets import Records

def test_it(fault_check, records):
    fault_check(lambda: Records(records), loader={"num_workers": 1, "batch_size": 8})
"""
RULES = """
def refuse(reason):
    raise NotApplicable(reason)

def broken(outcome, reference):
    if outcome.fired:
        return Finding(Verdict.CONTRACT_BROKEN, "it does not open the file again")

def skipped(outcome, reference):
    __import__("pytest").skip("no")
"""
SCENARIOS = (
    "[Scenario(title=each, faults=(faults.OpenError(workload.opened.path, nth=nth),))"
    " for each, nth in (('the first', 1), ('the second', 2))]"
)
GOOD = {
    "stale-handle": (OPENS, "note=lambda outcome: 'fired'"),
    "scenarios": (SCENARIOS, "scenario=Scenario(processes=steps.run_epochs(2))"),
}
SKIPPED = {"no-writes": ("one(faults.WriteError(workload.written.path))", "")}
UNMATCHED = "not_exercised: *'[*].bim'*matched no operation of a worker*"
NO_OCCASION = "not_exercised: * matched no operation of a worker*"
BAD = [
    ("3", "", "its plan: result=3 must be one or more scenarios: yield each of them*"),
    ("refuse(' ')", "", "its plan: NotApplicable: reason=' ' must be a sentence that says why*"),
    ("1 // 0", "", "its plan: it raised ZeroDivisionError: *"),
    ("faults.OpenError(errno='EIO')", "", "its plan: *errno='EIO' must be an errno such as *EIO*"),
    (
        "Scenario(processes=(steps.Epoch(),))",
        "",
        "its plan: Scenario: processes=*must be what arm_*",
    ),
    ("Scenario(process=2)", "", "its plan: Scenario got an unexpected *'process'. Did*"),
    (OPENS, "rule=lambda *_: Finding(Verdict.SURVIVED, 'fine')", "its rule: result=*must be a F*"),
    # A failure of an earlier trial would be lost.
    (OPENS, "rule=skipped", "its rule: it raised Skipped: no"),
    (OPENS, "note=lambda outcome: 3", "its note: result=3 must be a str"),
    (OPENS, "rule=broken", "contract_broken: it does not open the file again."),
    ("one(faults.OpenError(workload.opened.path, nth=10_000))", "", "not_exercised: *nth=10000*"),
    ("one(faults.OpenError('*.rec'), faults.OpenError('*.bim'))", "", UNMATCHED),
    ("one(faults.WorkerExited(at=10_000))", "", NO_OCCASION),
]
NAMED_BAD = {f"bad-{number}": (plan, options) for number, (plan, options, _) in enumerate(BAD)}


def _check(name, plan, options):
    return f"check({name!r}, 'handles stale handles', {options})(lambda workload: {plan})"


@pytest.fixture(name="ran", scope="module")
def _ran(run_suite):
    checks = {**GOOD, **NAMED_BAD, **SKIPPED}
    returned = ", ".join(_check(name, *arguments) for name, arguments in checks.items())
    only = f"--dataloader-faults-only={','.join(checks)}"
    return run_suite(
        TEST, "-v", "-rs", only, REPORT, conftest=f"{IMPORTS}{RULES}{HOOK}[{returned}]\n"
    )


def test_checks_run_like_those_of_the_package(ran):
    """A mistake in one stops no other one."""
    folder, result = ran
    result.assert_outcomes(
        passed=len(GOOD), failed=len(BAD), skipped=len(SKIPPED), deselected=len(CHECKS)
    )
    result.stdout.fnmatch_lines(["*test_it[[]stale-handle[]] PASSED (failed_cleanly)*"])
    items = {each["check"]: each for each in items_of(folder)}
    assert {items[name]["verdict"] for name in GOOD} == {"failed_cleanly"}
    assert "errno=116" in items["stale-handle"]["faults"][0]


@rows(("number", "says"), enumerate(row[2] for row in BAD))
def test_a_mistake_names_its_check_and_file(ran, number, says):
    name = f"bad-{number}"
    section = failures_of(ran[1])[f"it[{name}]"]
    of_check = f"check '{name}' in conftest.py: " if says.startswith("its ") else ""
    pytest.LineMatcher(section.splitlines()).fnmatch_lines([f"{of_check}{says}"])
    assert "survives=True" not in section
    assert says != UNMATCHED or "Take the path from the workload" in section
    assert says != NO_OCCASION or "Raise NotApplicable(reason) for such a dataset" in section


def test_the_summary_has_causes_and_notes(ran):
    result = ran[1]
    summary = summary_of(result)
    assert summary.count("note: ") == summary.count("note: fired") == 1
    assert "1 check: it does not open" in summary
    assert "its plan has a fault that comes too late" in summary
    result.stdout.fnmatch_lines(["*no-writes does not apply*its workers write no file*"])


@rows(
    ("names", "says"),
    [
        (["pickles"], "named 'pickles', which is the name of a check in this package"),
        (["quick"], "named 'quick', which is the name of a group of"),
        (["a", "a"], "named 'a', which is the name of a check in "),
    ],
)
def test_a_name_has_one_check(names, says):
    checks = [check(name, "")(lambda _: ()) for name in names]
    before = list(CHECKS)
    with pytest.raises(InvalidArgumentError, match=rf"user_checks.py: .* returned a check {says}"):
        replace_registered([checks])
    assert list(CHECKS) == before


@rows(
    ("returned", "says"),
    [
        ("['stale']", "*_checks() returned 'stale', which must be a list of Check*"),
        (
            "[check('Stale handle', '')(lambda workload: ())]",
            "*(): Check: name='Stale handle' must be lower-case words and digits*",
        ),
        ("1 // 0", "*_checks() raised ZeroDivisionError: *"),
    ],
)
def test_a_bad_hook_ends_the_run_at_once(suite, returned, says):
    suite.pytester.makeconftest(f"{IMPORTS}{HOOK}{returned}")
    result = suite.run(TEST)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {says}"])


def test_a_conftest_that_is_loaded_late_is_refused(suite):
    folder = suite.path / "data"
    folder.mkdir()
    check = STALE.format(plan=OPENS)
    (folder / "conftest.py").write_text(f"{IMPORTS}{HOOK}[{check}]", encoding="utf-8")
    (folder / "test_below.py").write_text(TEST, encoding="utf-8")
    result = suite.run("def test_plain(): pass", ".")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["*data/conftest.py: *move*to the conftest.py in */*or to a plugin"]
    )


INNER = """
from pytest_dataloader_faults.battery.checks import CHECKS

def test_outer(pytester):
    pytester.makeconftest({conftest!r})
    pytester.makepyfile("def test_inner(): pass")
    options = ("-p", "dataloader_faults", "--dataloader-faults-only=stale-handle")
    assert pytester.runpytest_inprocess(*options).ret == 0
    assert CHECKS["stale-handle"].origin == "conftest.py"
"""


def test_a_run_within_a_run_has_its_own_checks(suite):
    conftest = f"{IMPORTS}{HOOK}[{STALE.format(plan=OPENS)}]"
    suite.pytester.makeconftest(conftest)
    suite.run(INNER.format(conftest=conftest), "-p", "pytester").assert_outcomes(passed=1)
