"""Samples that are not the same twice, and what of them is compared all the same."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults import Contract, check_dataset
from pytest_dataloader_faults.outcomes.contract import Compared
from support.random_samples import (
    OwnGenerator,
    OwnGeneratorRepeats,
    SeedsItself,
    SeedsItselfRepeats,
    Timed,
    TimedOther,
    TimedStream,
)


def _checked(make, only, **options):
    return check_dataset(make, only=only, on_fail=None, **options)


@pytest.mark.parametrize(
    ("kind", "verdict"), [(Timed, "failed_cleanly"), (TimedOther, "corrupted")]
)
def test_a_time_in_a_sample_hides_no_other_part(kind, verdict, records):
    """It alone is left out, and the note names it, and no generator."""
    (result,) = _checked(lambda: kind(records), "file-missing")

    assert result.verdict == verdict, result.explanation
    (note,) = result.notes
    assert note.startswith("['info']['load_time'] of a sample varies from reading to reading")
    assert "generator" not in note
    assert (verdict == "corrupted") == ("it has the content of sample 9" in result.explanation)


def test_a_time_in_the_samples_of_a_stream(records):
    """Samples that were left out are missed by the other parts."""
    good, bad = _checked(lambda: TimedStream(records), ["workers-agree", "truncated-half"])

    assert (good.verdict, bad.verdict) == ("survived", "corrupted")
    assert "16 of 16 samples are missing" in bad.sentence


CONTENT = ["truncated-half", "truncated-at-rest"]


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        (SeedsItself, "failed_cleanly"),
        (SeedsItselfRepeats, "corrupted"),
        (OwnGenerator, "failed_cleanly"),
        (OwnGeneratorRepeats, "corrupted"),
    ],
)
def test_a_dataset_that_seeds_itself_is_compared_with_an_epoch_of_workers(kind, verdict, records):
    """Two such epochs agree, in whatever order the sampler draws."""
    results = _checked(lambda: kind(records), CONTENT, loader={"shuffle": True})

    for result in results:
        assert result.verdict == verdict, result.explanation
        assert result.outcome.comparison.in_workers
        assert "so they were compared with those of an epoch of workers" in result.notes[0]


def test_an_attempt_after_an_error_may_draw_again(records):
    """So an error that does not last is not judged by the content of an epoch of workers."""
    contract = Contract(may_skip=True)
    (result,) = _checked(lambda: SeedsItself(records), "read-error-transient")
    (skips,) = _checked(lambda: SeedsItself(records), "file-missing", contract=contract)

    assert result.outcome.comparison.what is Compared.SHAPES
    assert skips.outcome.comparison.what is Compared.SHAPES
    assert "If the dataset seeds these generators" in result.notes[0]
