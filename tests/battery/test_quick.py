"""The quick checks: how much of what all checks find they find."""

import json
from collections import defaultdict
from pathlib import Path

from pytest_dataloader_faults.battery.checks import GROUPS
from support.old_names import OLD_NAMES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/run-in-ci.md"


def _failures():
    """For each class of the record and each verdict on it: the checks that found it.

    The record has the names of checks of its time.
    """
    record = json.loads((ROOT / "docs/evidence/datasets.json").read_text("utf-8"))
    failures = defaultdict(set)
    for name, row in record.items():
        for check, sentence in row.get("failed", {}).items():
            if not name.startswith(("ranks_", "resume_")):
                found = OLD_NAMES.get(check, check)
                failures[name, sentence.partition(":")[0]].add(found)
    return failures


def test_quick_checks_find_nine_of_ten_failures():
    failures, quick = _failures(), set(GROUPS["quick"])
    caught = [key for key, checks in failures.items() if checks & quick]
    missed = sorted(
        {check for checks in failures.values() if not checks & quick for check in checks}
    )

    assert round(10 * len(caught) / len(failures)) == 9
    page = " ".join(PAGE.read_text("utf-8").split())
    assert f"{len(caught)} of {len(failures)}" in page
    assert all(f"`{check}`" in page for check in missed)
