"""Every specimen of the corpus fails its check, with the verdict of its bug; every twin passes.

Most cases are slow: every run has one for each check, and one for each verdict.
"""

from __future__ import annotations

import functools

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._trial.accelerator import missing_accelerator
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks._at_rest import AT_REST
from pytest_dataloader_faults.battery.checks._faults import NETWORK, WRITES
from pytest_dataloader_faults.battery.checks._ranks import RANKS
from pytest_dataloader_faults.battery.checks._resume import RESUME
from support.corpus import CASES
from support.datasets import write_records

TWINS = {f"{case.entry}-{case.twin.__name__}": case for case in CASES}
RARE = {check.name for check in (*WRITES, *NETWORK, *RANKS, *RESUME)}
"""Most datasets neither write files nor connect to a network, and know no ranks and no state."""
OF_FILES_BEFORE = [check.name for check in AT_REST]
"""Twins make their files of the records as they are made. battery/test_at_rest.py has others."""
IN_EVERY_RUN = {
    key: case for case in reversed(CASES) for key in (case.check, case.verdict)
}.values()


def _by_name(role):
    """A parameter per specimen, or twin, and check; one for each of both is not slow."""
    named = {f"{case.entry}-{getattr(case, role).__name__}-{case.check}": case for case in CASES}
    firsts = {(getattr(case, role), case.check, str(case.options)): case for case in IN_EVERY_RUN}
    return [
        pytest.param(case, id=name, marks=[] if case in firsts.values() else pytest.mark.slow)
        for name, case in named.items()
    ]


SPECIMENS_AND_CHECKS, TWINS_AND_CHECKS = _by_name("specimen"), _by_name("twin")


def _require_failure(case, records):
    (result,) = check_dataset(
        functools.partial(case.specimen, records),
        only=case.check,
        on_fail=None,
        **{"deadline": case.deadline, **case.options},
    )
    assert (case.verdict, True) == (result.verdict, result.failed), result.explanation
    assert case.says in result.explanation.splitlines()[0]


def _require_pass(case, records):
    (result,) = check_dataset(
        functools.partial(case.twin, records), only=case.check, on_fail=None, **case.options
    )
    assert result.passed, result.explanation


@pytest.mark.parametrize("case", SPECIMENS_AND_CHECKS)
def test_specimen_fails_its_check(case, records):
    """Its check finds the bug, and the verdict names it."""
    _require_failure(case, records)


@pytest.mark.parametrize("case", TWINS_AND_CHECKS)
def test_twin_passes_that_check(case, ask_once):
    """The twin passes the check that its specimen fails."""
    result = ask_once(case.twin, case.check, **case.options)

    assert result.passed, result.explanation


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("judge", [_require_failure, _require_pass], ids=["specimen", "twin"])
@pytest.mark.parametrize("case", CASES, ids=lambda each: f"{each.entry}-{each.check}")
def test_five_runs_in_a_row_agree(case, judge, tmp_path):
    """Each time anew, with files of its own."""
    for run in range(5):
        judge(case, write_records(tmp_path / str(run) / "records"))


def _asked(results):
    """Without what needs an accelerator, where there is none, and what few datasets do."""
    lacking = {name for name, check in CHECKS.items() if check.gpu and missing_accelerator()}
    return [
        each
        for each in results
        if each.check not in lacking and (each.applies or each.check not in RARE)
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", TWINS.values(), ids=TWINS)
def test_twin_passes_every_check(case, records):
    """And all others, but those that do not apply to it, and those of files at rest."""
    left_out = [*case.options.get("exclude", ()), *OF_FILES_BEFORE]
    options = {**case.options, "exclude": left_out}
    results = check_dataset(functools.partial(case.twin, records), on_fail=None, **options)

    found = {each.check: each.explanation for each in _asked(results) if not each.applies}
    assert case.not_applicable.keys() == found.keys(), found
    assert all(case.not_applicable[name] in found[name] for name in found), found
    assert [each.explanation for each in results if each.failed] == []
