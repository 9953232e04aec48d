"""The checks of the order of listings: contracts, ranks, and where they do not apply."""

import os

import pytest
from torch.utils.data import IterableDataset

from pytest_dataloader_faults import Contract, run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.faults import ListingOrder
from support.judging import judge_trial
from support.results import failure_of, result_of

LISTING_ORDER = "listing-order"
COUNT = 16
CAUSE = "depends on the order in which a folder is listed"


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """Images and masks with the same names."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("images", "masks"):
        (folder / name).mkdir()
        for number in range(COUNT):
            content = f"{name} {number:03d} ".encode() * 10_000
            (folder / name / f"{number:03d}.bin").write_bytes(content)
    return folder


class Images:
    """All images of a folder, in the order in which it is listed."""

    def __init__(self, folder):
        self.images = self.list_folder(folder / "images")

    def list_folder(self, folder):
        return [folder / name for name in os.listdir(folder)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index].read_bytes()


class SortedImages(Images):
    def list_folder(self, folder):
        return sorted(super().list_folder(folder))


class Pairs(SortedImages):
    """An image and a mask by their places in two lists, one of which is not sorted."""

    def __init__(self, folder):
        super().__init__(folder)
        self.masks = Images.list_folder(self, folder / "masks")

    def __getitem__(self, index):
        return super().__getitem__(index), self.masks[index].read_bytes()


class Scans(SortedImages):
    """Each worker lists the folder again for each sample, and takes one by its place."""

    def __getitem__(self, index):
        return Images.list_folder(self, self.images[0].parent)[index].read_bytes()


class Stream(IterableDataset):
    """A stream of the images, which has no indices."""

    def __init__(self, folder):
        self.images = Images(folder)

    def __iter__(self):
        yield from map(self.images.__getitem__, range(COUNT))


class Named(SortedImages):
    """A dataset that knows its files without a listing."""

    def list_folder(self, folder):
        return [folder / f"{number:03d}.bin" for number in range(COUNT)]


def _check(make, folder, **arguments):
    return result_of(lambda: make(folder), LISTING_ORDER, **arguments)


def test_a_contract_allows_another_order(folder):
    contract = Contract(may_reorder=True)
    result = _check(Images, folder, contract=contract)
    assert result.verdict == "survived"
    assert "every sample was delivered, some under another index" in result.sentence
    pairs = failure_of(lambda: Pairs(folder), LISTING_ORDER, contract=contract)
    assert pairs.verdict == "corrupted"


def test_it_applies_to_datasets_that_have_indices(folder):
    result = _check(Stream, folder)
    assert not result.applies
    assert "the samples of a stream have no index" in result.explanation


def test_a_folder_with_one_entry_has_no_order(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "all.bin").write_bytes(b"image")
    result = _check(Images, tmp_path)
    assert not result.applies
    assert "no folder of its files that is listed has several entries" in result.explanation


def test_a_random_order_is_the_same_in_each_process(folder):
    """The main process and the workers of a dataset that lists in each of them agree."""
    reference = take_reference(lambda: Scans(folder))
    fault = ListingOrder("*/images", "random", seed=3)
    outcomes = [run_trial(lambda: Scans(folder), fault, before_init=True) for _ in range(2)]
    assert {judge_trial(each, reference).verdict for each in outcomes} == {"corrupted"}
    first, second = ([batch.digests for batch in each.delivered] for each in outcomes)
    assert first == second


RANKS_LISTING_ORDER = "ranks-listing-order"


def _check_ranks(make, folder, ranks=2):
    return result_of(lambda: make(folder), RANKS_LISTING_ORDER, ranks=ranks)


def _fail_ranks(make, folder, **options):
    return failure_of(lambda: make(folder), RANKS_LISTING_ORDER, ranks=2, **options)


def test_a_rank_with_another_order_reads_the_samples_of_others(folder):
    """Some are read twice and others never, which no contract allows."""
    result = _fail_ranks(Images, folder, contract=Contract(may_reorder=True))
    assert (result.verdict, result.cause) == ("corrupted", CAUSE), result.explanation
    assert result.sentence.startswith("when one rank lists its folders in another order, rank 1: ")
    delivered = [
        row for rank in result.outcome.ranks for each in rank.delivered for row in each.digests
    ]
    assert len(set(delivered)) < len(delivered) == COUNT


def test_ranks_that_list_no_folder(folder):
    result = _check_ranks(Named, folder)
    assert not result.applies
    assert "no folder of its files that is listed has several entries" in result.explanation
    assert "pass ranks=2" in _check_ranks(Images, folder, ranks=None).explanation
