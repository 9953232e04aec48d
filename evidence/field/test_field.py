"""The battery says of other people's datasets what the page about them says."""

from __future__ import annotations

import pytest

from field import load_all
from field.audit import AUDIT
from pages import datasets as writer
from record.names import current_name

RECORD = writer.PAGE.record()
TRIED = load_all()
QUICK = {
    "wds_plain": ["read-error", "truncated-file"],
    "h5_kept": ["read-error", "read-error-once"],
    "hf_disk": ["read-error", "closed-descriptor"],
    "augmented": ["workers-agree", "read-error"],
    "memmap_blocks": ["truncated-file", "empty-file"],
    "ranks_hf_plain": ["ranks-agree"],
    "ranks_wds_split": ["ranks-agree"],
    "fromfile_rows": ["missing-file", "read-error"],
    "sklearn_files": ["listing-order", "stray-entries"],
    "unet_like": ["listing-order", "stray-entries"],
    "h5_lazy": ["file-locks"],
}
"""Of a few classes whose libraries the suite has, checks that fail and checks that pass."""


def _require(tried_class):
    if missing := tried_class.missing():
        pytest.skip(f"{missing} is not installed")


def test_every_failure_is_audited():
    """Each row has a class, and each failing check a cause."""
    failures = [(key, check) for key, row in RECORD.items() for check in writer.failed(row)]
    assert [each for each in failures if writer.audited(*each) is None] == []
    assert set(RECORD) | set(AUDIT) <= set(TRIED)


@pytest.mark.filterwarnings("ignore::pytest_dataloader_faults.UnclearErrorWarning")
@pytest.mark.parametrize("key", QUICK)
@pytest.mark.usefixtures("engine")
def test_a_few_checks_of_a_few_classes(key):
    """They fail, pass or do not apply as the page says."""
    tried_class = TRIED[key]
    _require(tried_class)

    row = writer.run(tried_class, only=QUICK[key])

    recorded = {current_name(name) for name in writer.failed(RECORD[key])}
    assert list(row["failed"]) == [name for name in QUICK[key] if name in recorded]


@pytest.mark.parametrize("key", [key for key in RECORD if "refused" in RECORD[key]])
@pytest.mark.usefixtures("engine")
def test_a_refused_class_is_refused_with_the_sentence_of_the_page(key):
    """The page quotes what the package says today."""
    tried_class = TRIED[key]
    _require(tried_class)

    assert writer.run(tried_class)["refused"] == RECORD[key]["refused"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("key", [key for key in RECORD if "failed" in RECORD[key]])
@pytest.mark.usefixtures("engine")
def test_the_whole_battery_of_each_class(key):
    """The same checks fail as on the page."""
    tried_class = TRIED[key]
    _require(tried_class)

    row = writer._in_a_process(key)
    for group, checks in writer.GROUPS.items():
        if group in RECORD[key]:
            row[group] = writer._in_a_process(key, ",".join(checks))

    assert set(writer.failed(row)) == set(writer.failed(RECORD[key]))
