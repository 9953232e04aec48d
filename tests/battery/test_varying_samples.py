"""Samples that are not the same twice, and what of them is compared all the same."""

import torch

from pytest_dataloader_faults import Contract, check_dataset
from support.datasets import Records
from support.random_samples import (
    OwnGeneratorRepeats,
    PatchQueue,
    PatchQueueOfZeros,
    SeedsItself,
    Timed,
    TimedOther,
    TimedStream,
)
from support.results import failure_of, result_of


def _checked(make, only, **options):
    return check_dataset(make, only=only, on_fail=None, **options)


def test_a_time_in_a_sample_hides_no_other_part(records):
    timed = result_of(lambda: Timed(records), "empty-file")
    other = failure_of(lambda: TimedOther(records), "empty-file")

    assert (timed.verdict, other.verdict) == ("failed_cleanly", "corrupted"), timed.explanation
    assert "it has the content of sample 9" in other.explanation
    for (note,) in (timed.notes, other.notes):
        assert note.endswith("zeros returned for them would pass: ['info']['load_time']")
        assert "generator" not in note


def test_a_time_in_the_samples_of_a_stream(records):
    good, bad = _checked(lambda: TimedStream(records), ["workers-agree", "truncated-file"])

    assert (good.verdict, bad.verdict) == ("survived", "corrupted")
    assert "16 of 16 samples are missing" in bad.sentence


CONTENT, SHUFFLED = ["truncated-file", "truncated-file"], {"shuffle": True}


def test_a_dataset_that_seeds_itself_is_compared_with_an_epoch_of_workers(records):
    for result in _checked(lambda: SeedsItself(records), CONTENT, loader=SHUFFLED):
        assert result.verdict == "failed_cleanly", result.explanation
        _require_comparison_in_workers(result)


def test_a_dataset_that_seeds_itself_and_repeats_a_sample_is_corrupted(records):
    make = lambda: OwnGeneratorRepeats(records)  # noqa: E731
    result = failure_of(make, "truncated-file", loader=SHUFFLED)
    assert result.verdict == "corrupted", result.explanation
    _require_comparison_in_workers(result)


def _require_comparison_in_workers(result):
    assert result.outcome.comparison.in_workers
    assert "so they were compared with the samples that workers returned" in result.notes[0]


def test_an_attempt_after_an_error_may_draw_again(records):
    contract = Contract(may_skip=True)
    (result,) = _checked(lambda: SeedsItself(records), "read-error-once")
    (skips,) = _checked(lambda: SeedsItself(records), "missing-file", contract=contract)

    assert result.outcome.comparison.by_form
    assert skips.outcome.comparison.by_form
    assert "If the dataset seeds these generators" in result.notes[0]


class Crops(Records):
    """A random crop of each sample, from the global generator."""

    def __getitem__(self, index):
        data, index = super().__getitem__(index)
        return data[: int(torch.randint(1, 8, ()))], index


def test_samples_of_random_length_in_a_list(records):
    """The items of a batch vary as those of another do, even if two have the same length."""
    loader = {"collate_fn": lambda samples: tuple(zip(*samples, strict=True)), "shuffle": True}
    for result in _checked(lambda: Crops(records), ["two-epochs", "workers-agree"], loader=loader):
        assert result.verdict == "survived", result.explanation


class EmptyHeaded(Records):
    """Has nothing for each fourth index, which ``collate_fn`` leaves out: healthy."""

    def __getitem__(self, index):
        return super().__getitem__(index)[0] if index % 4 else None


def _without_none(samples):
    kept = [each for each in samples if each is not None]
    return torch.stack(kept) if kept else None


def test_samples_that_are_always_left_out(records):
    loader = {"collate_fn": _without_none}
    result = result_of(lambda: EmptyHeaded(records), "workers-agree", loader=loader)
    assert result.verdict == "survived", result.explanation


def test_random_samples_may_depend_on_those_read_before(records):
    agree, reads_before, pickles = _checked(
        lambda: PatchQueue(records), ["workers-agree", "read-before-fork", "pickles"]
    )
    assert "survived" == agree.verdict == reads_before.verdict, agree.explanation
    assert "NotImplementedError: ('{} cannot be pickled'" in pickles.explanation

    zeros = failure_of(lambda: PatchQueueOfZeros(records), "truncated-file")
    assert "corrupted" == zeros.verdict, zeros.explanation
