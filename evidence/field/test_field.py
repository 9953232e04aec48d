"""The battery says of other people's datasets what the page about them says."""

from __future__ import annotations

import pytest

from field import load_all
from field.audit import AUDIT
from pages import datasets as writer

RECORD = writer.PAGE.record()
TRIED = load_all()
QUICK = {
    "wds_plain": ["read-error-first", "truncated-tail"],
    "h5_kept": ["read-error-first", "read-error-next-epoch"],
    "hf_disk": ["read-error-first", "closed-descriptor"],
    "augmented": ["workers-agree", "read-error-first"],
    "memmap_blocks": ["truncated-at-rest", "empty-at-rest"],
    "ranks_hf_plain": ["ranks-agree"],
    "ranks_wds_split": ["ranks-agree"],
    "fromfile_rows": ["missing-at-rest", "read-error-at-rest"],
}
"""Of a few classes whose libraries the suite has, checks that fail and checks that pass."""


def _require(one):
    if missing := one.missing():
        pytest.skip(f"{missing} is not installed")


def test_every_failure_is_audited():
    """Each row has a class, and each failing check a cause."""
    failures = [(key, check) for key, row in RECORD.items() for check in writer.failed(row)]
    assert [each for each in failures if writer.audited(*each) is None] == []
    assert set(RECORD) | set(AUDIT) <= set(TRIED)


@pytest.mark.parametrize("key", QUICK)
@pytest.mark.usefixtures("engine")
def test_a_few_checks_of_a_few_classes(key):
    """They fail, pass or do not apply as the page says."""
    one = TRIED[key]
    _require(one)

    row = writer.run(one, only=QUICK[key])

    assert list(row["failed"]) == [
        name for name in QUICK[key] if name in writer.failed(RECORD[key])
    ]


@pytest.mark.parametrize("key", [key for key in RECORD if "refused" in RECORD[key]])
@pytest.mark.usefixtures("engine")
def test_a_refused_class_is_refused_with_the_sentence_of_the_page(key):
    """The page quotes what the package says today."""
    one = TRIED[key]
    _require(one)

    assert writer.run(one)["refused"] == RECORD[key]["refused"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("key", [key for key in RECORD if "failed" in RECORD[key]])
@pytest.mark.usefixtures("engine")
def test_the_whole_battery_of_each_class(key):
    """The same checks fail as on the page."""
    one = TRIED[key]
    _require(one)

    row = writer._in_a_process(key)
    if "at rest" in RECORD[key]:
        row["at rest"] = writer._in_a_process(key, ",".join(writer.AT_REST))

    assert set(writer.failed(row)) == set(writer.failed(RECORD[key]))
