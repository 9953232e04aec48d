"""Samples that are not the same twice, and what of them is compared all the same."""

from support.random_samples import (
    OwnGeneratorRepeats,
    Timed,
    TimedOther,
)
from support.results import failure_of, result_of


def test_a_time_in_a_sample_hides_no_other_part(records):
    timed = result_of(lambda: Timed(records), "empty-file")
    other = failure_of(lambda: TimedOther(records), "empty-file")

    assert (timed.verdict, other.verdict) == ("failed_cleanly", "corrupted"), timed.explanation
    assert "it has the content of sample 9" in other.explanation
    for (note,) in (timed.notes, other.notes):
        assert note.endswith("zeros returned for them would pass: ['info']['load_time']")
        assert "generator" not in note


SHUFFLED = {"shuffle": True}


def test_a_dataset_that_seeds_itself_and_repeats_a_sample_is_corrupted(records):
    make = lambda: OwnGeneratorRepeats(records)  # noqa: E731
    result = failure_of(make, "truncated-file", loader=SHUFFLED)
    assert result.verdict == "corrupted", result.explanation
    _require_comparison_in_workers(result)


def _require_comparison_in_workers(result):
    assert result.outcome.comparison.in_workers
    assert "so they were compared with the samples that workers returned" in result.notes[0]
