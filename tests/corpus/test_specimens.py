"""The battery convicts every specimen of the corpus of its crime, and acquits every twin."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults import check_dataset
from support.corpus import CASES

BY_ENTRY = {f"{case.entry}-{case.guilty.__name__}-{case.check}": case for case in CASES}
TWINS = {f"{case.entry}-{case.twin.__name__}": case for case in CASES}


@pytest.mark.parametrize("case", BY_ENTRY.values(), ids=BY_ENTRY)
def test_specimen_is_convicted(case, records):
    """Its check finds the bug, and calls it by its name."""
    (result,) = check_dataset(
        lambda: case.guilty(records),
        only=case.check,
        on_fail=None,
        **{"deadline": case.deadline, **case.options},
    )

    assert (case.verdict, True) == (result.verdict, result.failed), result.explanation
    assert case.says in result.explanation.splitlines()[0]


@pytest.mark.parametrize("case", BY_ENTRY.values(), ids=BY_ENTRY)
def test_twin_is_acquitted(case, records):
    """The twin passes the check that its specimen fails."""
    (result,) = check_dataset(
        lambda: case.twin(records), only=case.check, on_fail=None, **case.options
    )

    assert result.passed, result.explanation


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", TWINS.values(), ids=TWINS)
def test_twin_is_acquitted_on_every_check(case, records):
    """And all others, but those that cannot be asked of it."""
    results = check_dataset(lambda: case.twin(records), on_fail=None, **case.options)

    moot = {each.check: each.explanation for each in results if not each.applies}
    assert case.moot.keys() == moot.keys(), moot
    assert all(case.moot[name] in moot[name] for name in moot), moot
    assert [each.explanation for each in results if each.failed] == []
