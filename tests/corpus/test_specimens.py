"""Each specimen fails its check with the verdict and the cause of its bug, and each twin passes.

Every run has a specimen for each verdict of each check, and a twin for each check. The others are
slow. Modules of single checks test only what is special there.
"""

import functools

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery.checks.before_init import BEFORE_INIT
from pytest_dataloader_faults.battery.checks.listings import LISTINGS
from pytest_dataloader_faults.battery.checks.locks import LOCKS
from pytest_dataloader_faults.battery.checks.memory import MEMORY
from pytest_dataloader_faults.battery.checks.network import HTTP, NETWORK
from pytest_dataloader_faults.battery.checks.threads import THREADS
from pytest_dataloader_faults.battery.checks.writes import WRITES
from support.corpus import CASES, FIRST, OF_CHECK, SPECIMENS

OF_FILES_BEFORE = [check.name for check in (*BEFORE_INIT, *LISTINGS)]
TWINS = {f"{case.entry}-{case.twin.__name__}": case for case in CASES}
_RARE = (*WRITES, *LOCKS, *THREADS, *NETWORK, *HTTP, *MEMORY)
RARE = {check.name for check in _RARE} | {
    *("listing-order", "ranks-share-folder", "pin-memory"),
    *("read-error-transient", "worker-killed-reading"),
}
"""Checks that the healthy stream of test_disarmed.py, which passes the others, skips or passes in
another way: twins pass these in every run."""


def _by_name(role, chosen):
    """A parameter for each specimen, or twin, and check; those of *chosen* cases are not slow."""
    named_cases = {
        f"{case.entry}-{getattr(case, role).__name__}-{case.check}": case for case in SPECIMENS
    }
    chosen = {f"{case.entry}-{getattr(case, role).__name__}-{case.check}" for case in chosen}
    return [
        pytest.param(case, id=name, marks=[] if name in chosen else pytest.mark.slow)
        for name, case in named_cases.items()
    ]


def _require_failure(case, result):
    headline = result.explanation.splitlines()[0]
    assert (case.verdict, False) == (result.verdict, result.passed), result.explanation
    assert (case.library, case.cause) == (result.finding.library, result.cause), result.explanation
    assert case.says in headline


def _require_pass(result):
    assert (result.applies, result.passed) == (True, True), result.explanation


@pytest.fixture(name="result_of")
def _result_of(ask_once):
    """A function: the result of the check, for the specimen or the twin of a case."""

    def result_of(case, role):
        limits = case.limits if role == "specimen" else {}
        make, options = getattr(case, role), {**limits, **case.options}
        return ask_once(make, case.check, fails=role == "specimen", fill=case.fill, **options)

    return result_of


@pytest.mark.parametrize("case", _by_name("specimen", FIRST.values()))
def test_specimen_fails_its_check(case, result_of):
    _require_failure(case, result_of(case, "specimen"))


@pytest.mark.parametrize("case", _by_name("twin", [OF_CHECK[check] for check in RARE]))
def test_twin_passes_that_check(case, result_of):
    _require_pass(result_of(case, "twin"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::pytest_dataloader_faults.UnclearErrorWarning")
@pytest.mark.parametrize("role", ["specimen", "twin"])
@pytest.mark.parametrize("case", SPECIMENS, ids=lambda case: case.key.replace(" ", "-"))
def test_five_runs_in_a_row_agree(case, role, tmp_path):
    for run in range(5):
        make = functools.partial(getattr(case, role), case.fill(tmp_path / str(run) / "records"))
        options = {**(case.limits if role == "specimen" else {}), **case.options}
        (result,) = check_dataset(make, only=case.check, on_fail=None, **options)
        if role == "specimen":
            _require_failure(case, result)
        else:
            _require_pass(result)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", TWINS.values(), ids=TWINS)
def test_twin_passes_every_check(case, tmp_path):
    """Files at rest are checked by twins that know which files there are."""
    options = {**case.options, "exclude": [*case.options.get("exclude", ()), *OF_FILES_BEFORE]}
    make = functools.partial(case.twin, case.fill(tmp_path / "records"))

    assert [
        each.explanation for each in check_dataset(make, on_fail=None, **options) if each.failed
    ] == []
