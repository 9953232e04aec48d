"""The battery convicts every specimen of the corpus of its crime, and acquits every twin."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._trial.accelerator import missing_accelerator
from pytest_dataloader_faults.battery.checks import CHECKS
from support.corpus import CASES
from support.datasets import Records, RecordStream, write_records

BY_ENTRY = {f"{case.entry}-{case.guilty.__name__}-{case.check}": case for case in CASES}
TWINS = {f"{case.entry}-{case.twin.__name__}": case for case in CASES}


def _convict(case, records):
    (result,) = check_dataset(
        lambda: case.guilty(records),
        only=case.check,
        on_fail=None,
        **{"deadline": case.deadline, **case.options},
    )
    assert (case.verdict, True) == (result.verdict, result.failed), result.explanation
    assert case.says in result.explanation.splitlines()[0]


def _acquit(case, records):
    (result,) = check_dataset(
        lambda: case.twin(records), only=case.check, on_fail=None, **case.options
    )
    assert result.passed, result.explanation


@pytest.mark.parametrize("case", BY_ENTRY.values(), ids=BY_ENTRY)
def test_specimen_is_convicted(case, records):
    """Its check finds the bug, and calls it by its name."""
    _convict(case, records)


@pytest.mark.parametrize("case", BY_ENTRY.values(), ids=BY_ENTRY)
def test_twin_is_acquitted(case, records):
    """The twin passes the check that its specimen fails."""
    _acquit(case, records)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("judge", [_convict, _acquit], ids=["specimen", "twin"])
@pytest.mark.parametrize("case", BY_ENTRY.values(), ids=BY_ENTRY)
def test_five_runs_in_a_row_agree(case, judge, tmp_path):
    """Each time anew, with files of its own."""
    for run in range(5):
        judge(case, write_records(tmp_path / str(run) / "records"))


@pytest.mark.parametrize("healthy", [Records, RecordStream])
def test_healthy_dataset_is_acquitted_on_every_check(healthy, records):
    """Every check is asked, and finds nothing."""
    results = check_dataset(lambda: healthy(records), on_fail=None)

    assert [each.check for each in results] == list(CHECKS)
    assert [each.explanation for each in _asked(results) if not each.passed] == []


def _asked(results):
    """Without what needs an accelerator, where there is none."""
    return [each for each in results if not (CHECKS[each.check].gpu and missing_accelerator())]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", TWINS.values(), ids=TWINS)
def test_twin_is_acquitted_on_every_check(case, records):
    """And all others, but those that cannot be asked of it."""
    results = check_dataset(lambda: case.twin(records), on_fail=None, **case.options)

    moot = {each.check: each.explanation for each in _asked(results) if not each.applies}
    assert case.moot.keys() == moot.keys(), moot
    assert all(case.moot[name] in moot[name] for name in moot), moot
    assert [each.explanation for each in results if each.failed] == []
