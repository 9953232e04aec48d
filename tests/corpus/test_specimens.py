"""Each specimen fails its check with the verdict and the cause of its bug, and each twin passes.

Every run has a specimen for each check and for each verdict, and a twin for each check. The others
are slow. Modules of single checks test only what is special there. Each verdict comes from its
fault: disarmed, it shows nothing.
"""

import functools
import itertools
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from pytest_dataloader_faults import Verdict, check_dataset
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import run_trial_job, take_reference
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults._trial.ranks import run_ranks
from pytest_dataloader_faults._trial.resources import missing_accelerator
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS, workers
from pytest_dataloader_faults.battery.checks.files import LISTINGS
from pytest_dataloader_faults.battery.checks.memory import copy_on_write
from pytest_dataloader_faults.battery.checks.network import NETWORK
from pytest_dataloader_faults.battery.checks.workers import file_locks, write_error
from pytest_dataloader_faults.faults import WorkerKilled
from support.causes import all_causes
from support.corpus import BEHAVIOURS, CASES, ENTRIES, EXCUSED, OF_CHECK, SPECIMENS
from support.corpus.cases import CAUSES
from support.corpus.ranks import RankedStream
from support.datasets import write_records
from support.judging import judge_trial
from support.ranked import RankedStreamWithState, copy_records
from support.rows import rows, slow

OF_FILES_BEFORE = [check.name for check in LISTINGS]
_FIRST_TWINS = {case.entry[0]: case for case in reversed(CASES)}
TWINS = {family: _FIRST_TWINS[family] for family in "AHJNOPQ"}
"""The first of the families whose twins differ most from plain records. evidence has the others."""
VERDICTS = {case.verdict: case for case in (*reversed(CASES), *reversed(OF_CHECK.values()))}
"""A case of each: where there is one, that of a check."""
OFTEN = [case for case in (*OF_CHECK.values(), *VERDICTS.values()) if case.check != "copy-on-write"]
"""Specimens of every run. For copy-on-write, see test_growth.py."""
_OF_CONNECTIONS = [each for each in NETWORK if each.name != "hung-read"]
_LOCKS_AND_THREADS = (file_locks, workers.thread_exhaustion)
_OF_MEMORY = (copy_on_write, workers.memory_exhaustion)
_RARE = (write_error, *_LOCKS_AND_THREADS, *_OF_CONNECTIONS, *_OF_MEMORY)
RARE = {check.name for check in _RARE if check.name != "copy-on-write"} | {
    *("listing-order", "pin-memory")
}
"""Checks that the healthy stream below, which passes the others, skips or passes in another way:
twins pass these in every run. For copy-on-write, see test_growth.py."""


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
    def result_of(case, role):
        limits = case.limits if role == "specimen" else {}
        make, options = getattr(case, role), {**limits, **case.options}
        return ask_once(make, case.check, fails=role == "specimen", fill=case.fill, **options)

    return result_of


@pytest.mark.parametrize("case", _by_name("specimen", OFTEN))
def test_specimen_fails_its_check(case, result_of):
    _require_failure(case, result_of(case, "specimen"))


@pytest.mark.parametrize("case", _by_name("twin", [OF_CHECK[check] for check in RARE]))
def test_twin_passes_that_check(case, result_of):
    _require_pass(result_of(case, "twin"))


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::pytest_dataloader_faults.UnclearErrorWarning")
@pytest.mark.parametrize("case", _by_name("specimen", []))
def test_a_check_of_a_battery_has_the_verdict_of_the_check_alone(case, tmp_path):
    """Whatever the checks before it have found."""
    make = functools.partial(case.specimen, case.fill(tmp_path / "records"))
    results = check_dataset(make, on_fail=None, **case.limits, **case.options)

    _require_failure(case, next(each for each in results if each.check == case.check))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::pytest_dataloader_faults.UnclearErrorWarning")
@pytest.mark.parametrize("case", VERDICTS.values(), ids=VERDICTS)
def test_three_runs_in_a_row_agree(case, tmp_path):
    for run in range(3):
        make = functools.partial(case.specimen, case.fill(tmp_path / str(run) / "records"))
        options = {**case.limits, **case.options}
        (result,) = check_dataset(make, only=case.check, on_fail=None, **options)
        _require_failure(case, result)


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


_WITHOUT_FAULTS = (
    *("workers-agree", "read-before-fork", "pickles", "two-epochs", "persistent-workers"),
    *("resumes", "ranks-agree", "pin-memory"),
)
"""Their deaths and holds are no faults of files: see the modules that test them."""
_OF_OTHER_OPERATIONS = (*_OF_CONNECTIONS, *LISTINGS, *_LOCKS_AND_THREADS, *_OF_MEMORY)
OF_SPECIMENS = [each for each in _OF_OTHER_OPERATIONS if each.name != "copy-on-write"]
"""The healthy stream shows nothing of their faults. For copy-on-write, see test_growth.py."""
FIRST_OF_EACH = [_OF_CONNECTIONS[0], LISTINGS[0], *_LOCKS_AND_THREADS, _OF_MEMORY[-1]]
FAULTY = [
    name
    for name, check in CHECKS.items()
    if name not in _WITHOUT_FAULTS and check not in _OF_OTHER_OPERATIONS
]


@pytest.fixture(scope="module", name="records_of_module")
def _records_of_module(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("disarmed") / "records")


def test_healthy_dataset_passes_every_check(records_of_module):
    make = functools.partial(RankedStreamWithState, records_of_module)
    results = {each.check: each for each in check_dataset(make, ranks=2, on_fail=None)}

    assert list(results) == list(CHECKS)
    assert [each.explanation for each in results.values() if each.applies != each.passed] == []
    rare = {each.name for each in _RARE}
    lacking = {
        name
        for name, check in CHECKS.items()
        if check.scenario.uses_accelerator and missing_accelerator()
    }
    assert {name for name, each in results.items() if not each.applies} == rare | lacking


@pytest.fixture(scope="module", name="healthy")
def _healthy(records_of_module):
    """Two datasets that pass, what they give, and their batteries. The second one writes."""
    stream = functools.partial(RankedStream, records_of_module)
    writing = functools.partial(copy_records, records_of_module)
    return [
        (make, take_reference(make), Battery(make, Settings(ranks=2))) for make in (stream, writing)
    ]


def _disarmed(fault):
    """*fault*, so that it can never happen."""
    if isinstance(fault, WorkerKilled):
        return replace(fault, at=10**6)
    if "path" not in {each.name for each in fields(fault)}:
        return replace(fault, workers=(99,))
    is_of_connections = "tcp:" in str(fault.path)
    return replace(fault, path="tcp://192.0.2.1:1" if is_of_connections else "/no/such/file")


def _run_disarmed(name, make, faults):
    """A trial as that of a check, with its *faults*, none of which can happen."""
    scenario = CHECKS[name].scenario
    job = Job(
        make_dataset=make,
        faults=tuple(map(_disarmed, faults)),
        settings=Settings(loader={"num_workers": 2, "batch_size": 4}, ranks=2),
        changes=scenario.loader,
        options=scenario.options,
    )
    return run_ranks(job) if scenario.ranks else run_trial_job(job)


def _kind_of_trial(name):
    scenario = CHECKS[name].scenario
    return CHECKS[name] is write_error, repr((scenario.ranks, scenario.loader, scenario.options))


GROUPS = [
    [*names] for _, names in itertools.groupby(sorted(FAULTY, key=_kind_of_trial), _kind_of_trial)
]


@pytest.mark.parametrize("names", GROUPS, ids=" ".join)
def test_checks_that_are_disarmed_are_not_exercised(names, healthy):
    """One trial has the faults of all checks that run the same steps, and none of them fires."""
    make, reference, battery = healthy[CHECKS[names[0]] is write_error]
    planned = [battery._plan_scenarios(CHECKS[name])[0].faults for name in names]
    assert all(planned)
    outcome = _run_disarmed(names[0], make, itertools.chain(*planned))
    assert judge_trial(outcome, reference).verdict == "not_exercised"


@pytest.mark.parametrize(
    "case",
    [
        OF_CHECK[each.name] if each in FIRST_OF_EACH else slow(OF_CHECK[each.name])
        for each in OF_SPECIMENS
    ],
    ids=lambda case: case.check,
)
def test_a_specimen_that_is_disarmed_shows_nothing(case, tmp_path, result_of):
    armed = result_of(case, "specimen")
    make = functools.partial(case.specimen, case.fill(tmp_path / "records"))

    assert armed.outcome.schedule
    outcome = _run_disarmed(case.check, make, armed.outcome.schedule)
    assert judge_trial(outcome, take_reference(make)).verdict == "not_exercised"


TESTS = Path(__file__).parent.parent
SHOWN = {case.entry for case in CASES}


def test_every_entry_is_shown_explained_or_exempt():
    accounts = [*SHOWN, *BEHAVIOURS, *EXCUSED]

    assert sorted(ENTRIES) == sorted(accounts)


def test_every_check_has_a_specimen():
    assert {case.check for case in SPECIMENS} == CHECKS.keys()


def test_every_specimen_has_a_likely_cause():
    assert CAUSES.keys() == {case.key for case in SPECIMENS}
    assert set(CAUSES.values()) <= {cause.phrase for cause in all_causes()}


def test_every_violation_has_a_specimen():
    violations = set(Verdict) - {"survived", "failed_cleanly", "not_exercised", "contract_broken"}

    assert violations - {case.verdict for case in CASES} == set()


@rows("entry", BEHAVIOURS)
def test_behaviour_is_tested_where_it_says(entry):
    (where,) = re.findall(r"\(([\w/]+\.py::\w+)\)", BEHAVIOURS[entry])
    path, name = where.split("::")

    assert f"def {name}(" in (TESTS / path).read_text(encoding="utf-8")
