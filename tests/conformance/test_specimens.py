"""The battery convicts each specimen of exactly its crime, and acquits its healthy twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_dataloader_faults import Verdict, check_dataset
from pytest_dataloader_faults._checks import CHECKS
from support.datasets import Records, RecordStream
from support.specimens import (
    AtomicCache,
    BadSample,
    BoundedRetry,
    ChainedError,
    CountsFromFile,
    EndlessRetry,
    FirstOrNothing,
    Helper,
    HelperLeftBehind,
    IndexLeftOpen,
    NeighbourOnError,
    OpenedOnce,
    OpenedPerProcess,
    Packed,
    RaisesUnbuildable,
    ReusedBuffer,
    SharedHandle,
    ShortStream,
    StopsTheEpoch,
    TakesTheGroupDown,
    TakesTheJobDown,
    TornCache,
    Unpicklable,
    Unsharded,
    ZerosOnError,
)


@dataclass(frozen=True)
class Specimen:
    """A defect: who has it, which check finds it, as what, in which words, and who has it not."""

    guilty: Callable[[Path], Any]
    check: str
    verdict: str
    says: str
    twin: Callable[[Path], Any] = Records
    also: tuple[str, ...] = ()
    """Other checks that the twin must pass in the normal run."""
    options: dict[str, Any] = field(default_factory=dict)


SPECIMENS = (
    Specimen(SharedHandle, "workers-agree", "corrupted", "sample", Packed),
    Specimen(OpenedOnce, "used-before", "corrupted", "sample", OpenedPerProcess),
    Specimen(Unpicklable, "pickles", "failed_cleanly", "although there was no fault"),
    Specimen(ZerosOnError, "read-error-first", "corrupted", "wrong content"),
    Specimen(ZerosOnError, "truncated-half", "corrupted", "wrong content"),
    Specimen(NeighbourOnError, "read-error-transient", "corrupted", "holds the content of sample"),
    Specimen(BadSample, "read-error-first", "failed_unclearly", "hides", ChainedError),
    Specimen(BadSample, "truncated-empty", "failed_unclearly", "hides", ChainedError),
    Specimen(RaisesUnbuildable, "read-error-first", "failed_unclearly", "TypeError", ChainedError),
    Specimen(RaisesUnbuildable, "truncated-half", "failed_unclearly", "TypeError", ChainedError),
    Specimen(
        EndlessRetry,
        "read-error-first",
        "hung",
        "neither an error nor an end within 5 s",
        BoundedRetry,
        ("read-error-transient",),
        {"deadline": 5},
    ),
    Specimen(
        TornCache,
        "read-error-first",
        "poisoned",
        "a fresh pass over the same dataset object raised ValueError",
        AtomicCache,
        options={"files": "*.rec"},
    ),
    Specimen(TakesTheJobDown, "read-error-first", "crashed", "signal 15 (SIGTERM)"),
    Specimen(TakesTheGroupDown, "read-error-first", "crashed", "died"),
    Specimen(HelperLeftBehind, "read-error-first", "leaked", "left running (sleep 600)", Helper),
    Specimen(IndexLeftOpen, "worker-killed-first", "leaked", "index.txt", CountsFromFile),
    Specimen(ReusedBuffer, "workers-agree", "corrupted", "holds the content of sample"),
    Specimen(Unsharded, "workers-agree", "corrupted", "more often", RecordStream),
    Specimen(ShortStream, "read-error-first", "corrupted", "never came", RecordStream),
    Specimen(StopsTheEpoch, "truncated-empty", "corrupted", "never came", FirstOrNothing),
)


def _ids(specimen: Specimen) -> str:
    return f"{specimen.guilty.__name__}-{specimen.check}"


@pytest.mark.parametrize("specimen", SPECIMENS, ids=_ids)
def test_specimen_is_convicted(specimen, records):
    """Its check finds the defect, and calls it by its name."""
    (result,) = check_dataset(
        lambda: specimen.guilty(records),
        only=specimen.check,
        on_fail=None,
        **specimen.options,
    )

    assert (specimen.verdict, True) == (result.verdict, result.failed), result.explanation
    assert specimen.says in result.explanation.splitlines()[0]


def _twins():
    """Each twin with the checks that its specimens fail, once."""
    wanted = {}
    for each in SPECIMENS:
        checks, options = wanted.setdefault(each.twin, (set(), {}))
        checks |= {each.check, *each.also}
        options |= {name: value for name, value in each.options.items() if name != "deadline"}
    return [
        pytest.param(twin, checks, options, id=twin.__name__)
        for twin, (checks, options) in wanted.items()
        if twin not in (Records, RecordStream)
    ]


@pytest.mark.parametrize(("twin", "checks", "options"), _twins())
def test_twin_is_acquitted(twin, checks, options, records):
    """The twin passes the checks that its specimens fail, by faults that fired."""
    results = check_dataset(lambda: twin(records), only=checks, on_fail=None, **options)

    assert [each.explanation for each in results if not each.passed] == []


@pytest.mark.parametrize(
    "twin",
    [
        Records,
        RecordStream,
        pytest.param(Packed, marks=pytest.mark.slow),
        pytest.param(BoundedRetry, marks=pytest.mark.slow),
        pytest.param(ChainedError, marks=pytest.mark.slow),
    ],
)
def test_twin_is_acquitted_on_every_check(twin, records):
    """A healthy dataset passes the whole battery, and every check is asked."""
    results = check_dataset(lambda: twin(records), on_fail=None)

    assert [each.check for each in results] == list(CHECKS)
    assert [each.explanation for each in results if not each.passed] == []


def test_every_violation_has_a_specimen():
    """No verdict against a dataset goes without a specimen that gets it."""
    violations = set(Verdict) - {"survived", "failed_cleanly", "not_exercised"}

    assert set() == violations - {each.verdict for each in SPECIMENS}
