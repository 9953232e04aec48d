"""The cases of a record have every check, and a comparison shows all differences and no others."""

from __future__ import annotations

import gzip
from collections import Counter

import pytest

import record
from pytest_dataloader_faults.battery.checks import CHECKS
from record.cases import NEEDS_ACCELERATOR, all_cases
from record.compare import ADDED, FACTS, FOUND, LOST, MISSING, STATUSES, VERDICTS, compare, report
from record.names import current_names
from support.corpus import CASES

CAUSE = "accepts a truncated file"
FAILED = {
    "case": "corpus/Short",
    "check": "truncated-half",
    "status": "failed",
    "verdict": "corrupted",
    "wrong": "missing",
    "cause": CAUSE,
    "faults": [{"fault": "TruncatedFile", "matched": True, "fired": True, "file": "00.rec"}],
}
PASSED = {"case": "corpus/Short", "check": "read-error", "status": "passed", "verdict": "survived"}


def _sections(old, new):
    """The section and the check of each difference."""
    records = [{record.key_of(entry): entry for entry in entries} for entries in (old, new)]
    return [(change.section, change.key.check) for change in compare(*records)]


@pytest.fixture(name="cases", scope="module")
def _cases():
    return all_cases(full=False)


def test_every_check_has_a_case(cases):
    checks = {check for case in cases for check in case.checks}
    assert checks == CHECKS.keys() - {NEEDS_ACCELERATOR}


def test_every_specimen_and_twin_runs_its_check(cases):
    checks = {(case.name.partition("(")[0], check) for case in cases for check in case.checks}
    expected = {
        (f"corpus/{make.__name__}", case.check)
        for case in CASES
        for make in (case.specimen, case.twin)
        if case.check != NEEDS_ACCELERATOR
    }
    assert expected <= checks


def test_what_is_intermittent_is_in_the_record(cases):
    assert record.INTERMITTENT.keys() <= {
        (case.name, check) for case in cases for check in case.checks
    }


def test_no_pair_is_recorded_twice(cases):
    counts = Counter((case.name, check) for case in cases for check in case.checks)
    assert set(counts.values()) == {1}


def test_the_classes_of_a_short_record_are_those_of_the_suite(cases):
    assert [case.name for case in cases if case.lacks] == []


def test_a_full_record_has_all_classes(cases):
    full = all_cases(full=True)
    assert {case.name for case in cases} <= {case.name for case in full}
    assert any(case.lacks for case in full)


def test_an_old_name_stands_for_its_present_one():
    assert current_names(["truncated-half", "pickles", "truncated-tail"]) == [
        "truncated-file",
        "pickles",
    ]


def test_a_record_does_not_differ_from_itself():
    assert _sections([FAILED, PASSED], [FAILED, PASSED]) == []
    assert list(report([])) == []


def test_a_failure_that_is_lost():
    passes = {**PASSED, "check": "truncated-half"}
    assert _sections([FAILED], [passes]) == [
        (LOST, ""),
        (VERDICTS, "truncated-half"),
        (FACTS, "truncated-half"),
        (FACTS, "truncated-half"),
    ]
    assert (FOUND, "") in _sections([passes], [FAILED])


def test_a_cause_that_another_check_still_finds():
    tail = {**FAILED, "check": "truncated-tail"}
    passes = {**PASSED, "check": "truncated-half"}
    sections = _sections([FAILED, tail], [passes, tail])
    assert (VERDICTS, "truncated-half") in sections
    assert LOST not in dict(sections)


def test_a_status_is_listed_apart_from_a_verdict():
    assert _sections([FAILED], [{**FAILED, "status": "warned"}]) == [(STATUSES, "truncated-half")]


@pytest.mark.parametrize("name", ["notes", "faults", "wrong"])
def test_other_facts(name):
    assert _sections([FAILED], [{**FAILED, name: "other"}]) == [(FACTS, "truncated-half")]


def test_entries_of_one_record_only():
    assert _sections([FAILED, PASSED], [FAILED]) == [(MISSING, "read-error")]
    assert _sections([FAILED], [FAILED, PASSED]) == [(ADDED, "read-error")]


def test_intermittent_facts_are_not_compared():
    other_faults = {**FAILED, "faults": [], "intermittent": ["faults"]}
    assert _sections([FAILED], [other_faults]) == []
    assert (VERDICTS, "truncated-half") in _sections([FAILED], [{**other_faults, "cause": "other"}])
    hung = {**FAILED, "verdict": "hung", "intermittent": ["verdict"]}
    assert _sections([FAILED], [hung]) == []
    assert _sections([FAILED], [{**hung, "status": "flaky"}]) == [(STATUSES, "truncated-half")]


def test_the_worst_of_the_checks_that_became_one_counts():
    tail = {**FAILED, "check": "truncated-tail", "status": "passed", "verdict": "survived"}
    merged = {**FAILED, "check": "truncated-file", "faults": []}
    assert _sections([FAILED, tail], [merged]) == []
    passes = {**PASSED, "check": "truncated-file"}
    assert _sections([FAILED, tail], [passes]) == [(LOST, ""), (VERDICTS, "truncated-file")]


def test_a_change_is_printed_once():
    cases = [{**FAILED, "case": f"corpus/{name}"} for name in "AB"]
    warned = [{**case, "status": "warned"} for case in cases]
    records = [{record.key_of(entry): entry for entry in entries} for entries in (cases, warned)]
    assert list(report(compare(*records))) == [
        f"{STATUSES}:",
        f"  failed, corrupted, {CAUSE} -> warned",
        "    corpus/A: truncated-half",
        "    corpus/B: truncated-half",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/tmp/record-x/abc/data/00.rec is gone", "00.rec is gone"),
        ("0.12345 and 12.345.npy", "0.N and 12.N.npy"),
        ("/dev/shm/torch_7941_1202992716_10", "/dev/shm/torch_N_N_10"),
        ("127.0.0.1:40123, 16 of 1,024 samples", "127.0.0.1:N, 16 of 1,024 samples"),
        ("cache-3a9d8297f0.arrow of <A object at 0x7f12>", "cache-N.arrow of <A object at 0xN>"),
        ("tmpab12cd34 and sample-014.jpg", "N and sample-014.jpg"),
        ("cache-4nqv80o1/10.cache", "cache-N/10.cache"),
        ("site-packages/torch/functional.py", "site-packages/torch/functional.py"),
    ],
)
def test_what_varies_is_left_out(text, expected, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/tmp/record-x")
    assert record.without_varying_names(text) == expected


def test_a_record_is_read_as_it_is_written(tmp_path):
    file = tmp_path / "record.jsonl"
    assert record.read(file) == {}
    file.write_text("".join(map(record.line_of, (FAILED, PASSED))), encoding="utf-8")
    assert list(record.read(file).values()) == [FAILED, PASSED]
    packed = tmp_path / "record.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert record.read(packed) == record.read(file)
