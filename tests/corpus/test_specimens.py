"""Every specimen of the corpus fails its check, with the verdict of its bug; every twin passes.

Most cases are slow: every run has a specimen for each check that no other test shows failing.
"""

import contextlib
import functools

import pytest

from pytest_dataloader_faults import UnclearErrorWarning, check_dataset
from pytest_dataloader_faults._trial.accelerator import missing_accelerator
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks.before_init import BEFORE_INIT
from pytest_dataloader_faults.battery.checks.listings import LISTINGS
from pytest_dataloader_faults.battery.checks.locks import LOCKS
from pytest_dataloader_faults.battery.checks.memory import MEMORY
from pytest_dataloader_faults.battery.checks.network import HTTP, NETWORK
from pytest_dataloader_faults.battery.checks.ranks import RANKS
from pytest_dataloader_faults.battery.checks.resume import RESUME
from pytest_dataloader_faults.battery.checks.threads import THREADS
from pytest_dataloader_faults.battery.checks.writes import WRITES
from support.corpus import CASES
from support.datasets import write_records
from support.waiting import allowed

TWINS = {f"{case.entry}-{case.twin.__name__}": case for case in CASES}
_RARE = (*WRITES, *LOCKS, *THREADS, *NETWORK, *HTTP, *RANKS, *RESUME, *MEMORY)
RARE = {check.name for check in _RARE} | {"ranks-listing-order"}
"""Most datasets neither write nor lock files nor connect to a network, start no threads, and know
no ranks and no state, and all are short."""
OF_FILES_BEFORE = [check.name for check in (*BEFORE_INIT, *LISTINGS)]
"""Twins make their files of the records as they are made, and list all of these. For others, see
test_before_init.py, test_listings.py and test_stray_entries.py."""
OWN_SPECIMENS = {
    *(check.name for check in (*BEFORE_INIT, *HTTP)),
    "ranks-share-folder",
    *("workers-agree", "pickles", "read-before-fork", "persistent-workers", "leftover-files"),
    *("read-error", "short-read", "truncated-half", "truncated-empty", "truncated-tail"),
    *("abandoned-epoch", "recovers-after-read-error", "recovers-after-truncation"),
}
"""Every run has bugs that these find in test_before_init.py, test_http.py, test_shared_folder.py,
test_likely_causes.py, test_kept_state.py, test_epochs.py and test_advice.py."""
OWN_TESTS = (*WRITES, *LOCKS, *THREADS, *LISTINGS, *RESUME, *MEMORY, CHECKS["resource-growth"])
"""Every run has bugs that these find, and healthy datasets, in tests of these checks."""
CHOSEN = [
    case
    for case in reversed(CASES)
    if CHECKS[case.check] not in OWN_TESTS and case.check not in OWN_SPECIMENS
]
IN_EVERY_RUN = {
    key: case
    for case in sorted(CHOSEN, key=lambda case: case.verdict != "hung")
    for key in (case.check, case.verdict)
}.values()


ALSO_HEALTHY = {
    *(check.name for check in (*NETWORK, *HTTP)),
    *("pin-memory", "read-error-transient", "worker-killed-reading"),
}
"""Checks that the healthy stream of test_disarmed.py, which passes the others, skips or passes in
another way: twins pass these in every run."""


def _by_name(role, cases):
    """A parameter per specimen, or twin, and check; the first of *cases* are not slow."""
    named_cases = {
        f"{case.entry}-{getattr(case, role).__name__}-{case.check}": case for case in CASES
    }
    firsts = {(getattr(case, role), case.check, str(case.options)): case for case in cases}
    return [
        pytest.param(case, id=name, marks=[] if case in firsts.values() else pytest.mark.slow)
        for name, case in named_cases.items()
    ]


SPECIMENS_AND_CHECKS = _by_name("specimen", IN_EVERY_RUN)
TWINS_AND_CHECKS = _by_name("twin", [case for case in IN_EVERY_RUN if case.check in ALSO_HEALTHY])


def _require_failure(case, records):
    warns = pytest.warns(UnclearErrorWarning) if case.library else contextlib.nullcontext()
    with warns:
        (result,) = check_dataset(
            functools.partial(case.specimen, records),
            only=case.check,
            on_fail=None,
            **{"deadline": allowed(case.deadline), **case.options},
        )
    assert (case.verdict, not case.library) == (result.verdict, result.failed), result.explanation
    _require_words(case, result)


def _require_words(case, result):
    assert case.says in result.explanation.splitlines()[0]
    assert case.cause in result.cause


def _require_pass(case, records):
    (result,) = check_dataset(
        functools.partial(case.twin, records), only=case.check, on_fail=None, **case.options
    )
    assert result.passed, result.explanation


@pytest.mark.parametrize("case", SPECIMENS_AND_CHECKS)
def test_specimen_fails_its_check(case, ask_once):
    hangs = {"deadline": allowed(case.deadline)} if case.verdict == "hung" else {}
    result = ask_once(case.specimen, case.check, fails=True, **{**hangs, **case.options})

    assert (case.verdict, False) == (result.verdict, result.passed), result.explanation
    assert case.library == result.finding.library, result.explanation
    _require_words(case, result)


@pytest.mark.parametrize("case", TWINS_AND_CHECKS)
def test_twin_passes_that_check(case, ask_once):
    result = ask_once(case.twin, case.check, **case.options)

    assert result.passed, result.explanation


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("judge", [_require_failure, _require_pass], ids=["specimen", "twin"])
@pytest.mark.parametrize(
    "case", CASES, ids=lambda param_case: f"{param_case.entry}-{param_case.check}"
)
def test_five_runs_in_a_row_agree(case, judge, tmp_path):
    for run in range(5):
        judge(case, write_records(tmp_path / str(run) / "records"))


def _expected_results(results):
    """Without what needs an accelerator, where there is none, and what few datasets do."""
    lacking = {
        name
        for name, check in CHECKS.items()
        if check.scenario.uses_accelerator and missing_accelerator()
    }
    return [
        result
        for result in results
        if result.check not in lacking and (result.applies or result.check not in RARE)
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", TWINS.values(), ids=TWINS)
def test_twin_passes_every_check(case, records):
    left_out = [*case.options.get("exclude", ()), *OF_FILES_BEFORE]
    options = {**case.options, "exclude": left_out}
    results = check_dataset(functools.partial(case.twin, records), on_fail=None, **options)

    not_applicable = {
        result.check: result.explanation
        for result in _expected_results(results)
        if not result.applies
    }
    assert case.not_applicable.keys() == not_applicable.keys(), not_applicable
    assert all(case.not_applicable[name] in not_applicable[name] for name in not_applicable), (
        not_applicable
    )
    assert [each.explanation for each in results if each.failed] == []
