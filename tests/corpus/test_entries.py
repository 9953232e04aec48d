"""Every entry of the corpus is accounted for, once."""

import re
from pathlib import Path

from pytest_dataloader_faults import Verdict
from pytest_dataloader_faults.battery.checks import CHECKS
from support.causes import all_causes
from support.corpus import BEHAVIOURS, CASES, ENTRIES, EXCUSED, SPECIMENS
from support.corpus.cases import CAUSES
from support.rows import rows

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
