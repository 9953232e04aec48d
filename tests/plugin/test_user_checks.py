"""Checks of the user's own, added by the hook ``pytest_dataloader_faults_checks``."""

import json

import pytest

from pytest_dataloader_faults.battery.checks import CHECKS
from support.rows import rows

IMPORTS = """
import errno
from pytest_dataloader_faults import Check, Finding, NotApplicable, Scenario, Verdict, faults, steps
"""
HOOK = "\ndef pytest_dataloader_faults_checks():\n    return "
STALE = 'Check("stale-handle", "handles stale handles", lambda workload: {plan})'
OPENS = "faults.OpenError(workload.opened.path, errno.ESTALE, nth=3, every=3)"
TEST = """
from support.datasets import Records

def test_it(fault_check, records):
    fault_check(lambda: Records(records))
"""
ONLY = "--dataloader-faults-only=stale-handle"


@pytest.fixture(name="checks")
def _checks(suite):
    """Write a conftest.py in which the hook returns what is passed, and run a test of records."""

    def run(returned, *arguments, source=TEST, more=""):
        conftest = suite.path / "conftest.py"
        text = conftest.read_text(encoding="utf-8")
        conftest.write_text(f"{text}{IMPORTS}{more}{HOOK}{returned}\n", encoding="utf-8")
        return suite.run(source, *arguments)

    return run


def test_a_check_runs_like_those_of_the_package(checks, suite):
    result = checks(
        f"[{STALE.format(plan=OPENS)}]", "-v", "--dataloader-faults-report=r.json", ONLY
    )

    result.assert_outcomes(passed=1, deselected=len(CHECKS))
    result.stdout.fnmatch_lines(["*test_it[[]stale-handle[]] PASSED (failed_cleanly)*"])
    (item,) = json.loads((suite.path / "r.json").read_text(encoding="utf-8"))["items"]
    assert (item["check"], item["verdict"]) == ("stale-handle", "failed_cleanly")
    assert "errno=116" in item["faults"][0]


def test_nothing_is_left_after_a_run(checks):
    names = list(CHECKS)
    checks(f"[{STALE.format(plan=OPENS)}]", "--collect-only")

    assert list(CHECKS) == names


def test_a_fault_that_never_fires_is_no_pass(checks):
    result = checks(f"[{STALE.format(plan='faults.OpenError(str(1), errno.ESTALE)')}]", ONLY)

    result.assert_outcomes(failed=1, deselected=len(CHECKS))
    result.stdout.fnmatch_lines(["not_exercised: *"])


RULE = """
def rule(outcome, reference):
    if outcome.fired:
        return Finding(Verdict.CONTRACT_BROKEN, "it does not open the file again")
"""


def test_a_rule_decides(checks):
    check = STALE.format(plan=OPENS).replace("handles stale", "opens stale")[:-1] + ", rule=rule)"
    result = checks(f"[{check}]", ONLY, more=RULE)

    result.assert_outcomes(failed=1, deselected=len(CHECKS))
    result.stdout.fnmatch_lines(
        ["contract_broken: it does not open the file again.", "*1 check: it does not open*"]
    )
    result.stdout.no_fnmatch_line("*survives=True*")


@rows(
    ("note", "says"),
    [
        ("str(outcome.fired)", "note: *"),
        ("''", "*passed"),
        ("3", "check 'stale-handle' in conftest.py: its note: result=3 must be a str"),
        ("1 // 0", "check 'stale-handle' in conftest.py: its note: it raised ZeroDivision*"),
    ],
)
def test_a_note_on_a_dataset_that_passes(checks, note, says):
    check = STALE.format(plan=OPENS)[:-1] + f", note=lambda outcome: {note})"
    result = checks(f"[{check}]", ONLY)

    result.stdout.fnmatch_lines([f"*{says}*"])
    assert (" note: " in result.stdout.str()) == (note != "''")


def test_several_scenarios(checks):
    scenarios = (
        "[Scenario(title=each, faults=(faults.OpenError(workload.opened.path, nth=nth),))"
        " for each, nth in (('the first', 1), ('the second', 2))]"
    )
    check = (
        STALE.format(plan=scenarios)[:-1] + ", scenario=Scenario(processes=steps.run_epochs(2)))"
    )
    result = checks(f"[{check}]", ONLY, "--dataloader-faults-report=r.html")

    result.assert_outcomes(passed=1, deselected=len(CHECKS))


def test_a_check_that_does_not_apply_says_why(checks):
    result = checks(
        f"[{STALE.format(plan='faults.WriteError(workload.written.path)')}]", ONLY, "-rs"
    )

    result.assert_outcomes(skipped=1, deselected=len(CHECKS))
    result.stdout.fnmatch_lines(["*stale-handle does not apply*its workers write no file*"])


@rows(
    ("plan", "says"),
    [
        ("3", "result=3 must be a fault, several faults for one trial, a Scenario*"),
        ("None", "result=None must be a fault,*"),
        ("[]", "result=[[][]] must be a fault,*"),
        ("[faults.OpenError(), Scenario()]", "result=[[]OpenError(), Scenario()[]] must be*"),
        ("1 // 0", "it raised ZeroDivisionError: *"),
        ("faults.OpenError(errno='EIO')", "*errno='EIO' must be an errno such as errno.EIO*"),
        ("Scenario(processes=(steps.Epoch(),))", "Scenario: processes=*must be what arm_workers*"),
        ("Scenario(processes=((steps.Epoch(),), ()))", "Scenario: processes=*must be what arm_*"),
        ("Scenario(ranks=True)", "Scenario: ranks=True must be False, as in the scenario of the*"),
        (
            "Scenario(processes=steps.arm_before_init(steps.Epoch()))",
            "the processes of a Scenario must arm the faults when those of the scenario of the*",
        ),
        (
            "Scenario(process=2)",
            "Scenario got an unexpected keyword argument 'process'. Did you mean 'processes'*",
        ),
    ],
)
def test_a_bad_plan_names_its_check_and_file(checks, plan, says):
    result = checks(f"[{STALE.format(plan=plan)}]", ONLY)

    result.assert_outcomes(failed=1, deselected=len(CHECKS))
    result.stdout.fnmatch_lines([f"check 'stale-handle' in conftest.py: its plan: {says}"])


@rows(
    ("rule", "says"),
    [
        ("1 // 0", "it raised ZeroDivisionError: *"),
        ("'bad'", "result='bad' must be a Finding with a sentence and a verdict that is*"),
        (
            "Finding(Verdict.SURVIVED, 'fine')",
            "result=*must be a Finding with a sentence and a verdict that is*",
        ),
    ],
)
def test_a_bad_rule_names_its_check_and_file(checks, rule, says):
    check = STALE.format(plan=OPENS)[:-1] + f", rule=lambda outcome, reference: {rule})"
    result = checks(f"[{check}]", ONLY)

    result.assert_outcomes(failed=1, deselected=len(CHECKS))
    result.stdout.fnmatch_lines([f"check 'stale-handle' in conftest.py: its rule: {says}"])


@rows(
    ("returned", "says"),
    [
        ("3", "conftest.py: *_checks() returned 3, which must be a list of Check objects"),
        ("None", "conftest.py: *_checks() returned None, which must be a list of Check objects"),
        ("['stale']", "conftest.py: *_checks() returned 'stale', which must be a list of Check*"),
        (
            "[Check('pickles', '', lambda workload: ())]",
            "conftest.py: *() returned a check named 'pickles', which is the name of a check of*",
        ),
        (
            "[Check('quick', '', lambda workload: ())]",
            "conftest.py: *() returned a check named 'quick', which is the name of a group of*",
        ),
        (
            "[Check('a', '', lambda workload: ())] * 2",
            "conftest.py: *() returned a check named 'a', which is the name of a check in *",
        ),
        (
            "[Check('Stale handle', '', lambda workload: ())]",
            "conftest.py: *(): Check: name='Stale handle' must be lower-case words and digits*",
        ),
        ("[Check('a', '', 3)]", "conftest.py: *Check: plan=3 must be a function of the workload"),
        ("1 // 0", "conftest.py: *_checks() raised ZeroDivisionError: *"),
    ],
)
def test_a_bad_hook_ends_the_run_at_once(checks, returned, says):
    result = checks(returned)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {says}"])


def test_a_conftest_that_is_loaded_late_is_refused(suite):
    """Its checks would depend on the order in which pytest collects folders."""
    folder = suite.path / "data"
    folder.mkdir()
    check = STALE.format(plan=OPENS)
    (folder / "conftest.py").write_text(f"{IMPORTS}{HOOK}[{check}]", encoding="utf-8")
    (folder / "test_below.py").write_text(TEST, encoding="utf-8")
    result = suite.run("def test_plain(): pass", ".")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["data/conftest.py: *move*to the conftest.py in */*or to a plugin"])


@rows(
    "plan",
    [
        "[Scenario(faults=(faults.OpenError(glob),)) for glob in ('*.rec', '*.bim')]",
        "[faults.OpenError('*.rec'), faults.OpenError('*.bim')]",
    ],
)
def test_each_fault_of_a_plan_must_match(checks, plan):
    result = checks(f"[{STALE.format(plan=plan)}]", ONLY)

    result.assert_outcomes(failed=1, deselected=len(CHECKS))
    result.stdout.fnmatch_lines(["not_exercised: *'[*].bim'*matched no operation of a worker*"])
    result.stdout.fnmatch_lines(["*Take the path from the workload*"])


def test_a_fault_that_comes_too_late_says_so(checks):
    plan = "faults.OpenError(workload.opened.path, nth=10_000)"
    result = checks(f"[{STALE.format(plan=plan)}]", ONLY)

    result.assert_outcomes(failed=1, deselected=len(CHECKS))
    result.stdout.fnmatch_lines(["not_exercised: *nth=10000*matched * operations, and did not*"])
    result.stdout.fnmatch_lines(["*1 check: its plan has a fault that comes too late*"])


def test_a_mistake_in_a_check_stops_no_other_check(checks):
    bad = STALE.format(plan="1 // 0").replace("stale-handle", "bad")
    result = checks(
        f"[{bad}, {STALE.format(plan=OPENS)}]", "--dataloader-faults-only=bad,stale-handle"
    )

    result.assert_outcomes(failed=1, passed=1, deselected=len(CHECKS))


@rows(
    ("rule", "says"),
    [
        ("NotApplicable('no')", "NotApplicable: no"),
        ("__import__('pytest').skip('no')", "Skipped: no"),
        ("SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_rule_can_only_return(checks, rule, says):
    """A failure of an earlier trial would be lost."""
    more = f"def rule(outcome, reference):\n    raise {rule}\n"
    check = STALE.format(plan=OPENS)[:-1] + ", rule=rule)"
    result = checks(f"[{check}]", ONLY, more=more)

    result.assert_outcomes(failed=1, deselected=len(CHECKS))
    result.stdout.fnmatch_lines(
        [f"check 'stale-handle' in conftest.py: its rule: it raised {says}"]
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


def test_a_run_within_a_run_has_its_own_checks(checks):
    returned = f"[{STALE.format(plan=OPENS)}]"
    inner = INNER.format(conftest=f"{IMPORTS}{HOOK}{returned}")
    result = checks(returned, "-p", "pytester", source=inner)

    result.assert_outcomes(passed=1)


def test_processes_of_xdist_have_the_checks_as_well(checks):
    result = checks(f"[{STALE.format(plan=OPENS)}]", "-p", "xdist", "-n", "1", ONLY)

    result.assert_outcomes(passed=1)
