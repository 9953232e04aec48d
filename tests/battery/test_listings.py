"""The checks of the order of listings: contracts, ranks, and where they do not apply."""

import os

from pytest_dataloader_faults import Contract, run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.faults import ListingOrder
from support.corpus.listings import LabeledByPlace
from support.datasets import SIZE, Records
from support.judging import judge_trial
from support.results import failure_of, result_of

LISTING_ORDER = "listing-order"
NO_ORDER = "no folder of its files that is listed has several entries"


class AsListed(Records):
    """All files of a folder, in the order in which it is listed."""

    def __init__(self, folder):
        self.paths = [folder / name for name in os.listdir(folder)]

    def __getitem__(self, index):
        return self.paths[index].read_bytes()


class Scans(Records):
    """Each worker lists the folder again for each sample, and takes one by its place."""

    def __getitem__(self, index):
        folder = self.paths[0].parent
        return (folder / os.listdir(folder)[index]).read_bytes()


def test_a_contract_allows_another_order(records):
    contract = Contract(may_reorder=True)
    result = result_of(lambda: AsListed(records), LISTING_ORDER, contract=contract)
    assert result.verdict == "survived"
    assert "every sample was delivered, some under another index" in result.sentence
    pairs = failure_of(lambda: LabeledByPlace(records), LISTING_ORDER, contract=contract)
    assert pairs.verdict == "corrupted"


def test_a_folder_with_one_entry_has_no_order(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "all.bin").write_bytes(bytes(SIZE))
    result = result_of(lambda: AsListed(tmp_path / "one"), LISTING_ORDER)
    assert not result.applies
    assert NO_ORDER in result.explanation


def test_a_random_order_is_the_same_in_each_process(records):
    """The main process and the workers of a dataset that lists in each of them agree."""
    reference = take_reference(lambda: Scans(records))
    fault = ListingOrder(records, "random", seed=3)
    outcomes = [run_trial(lambda: Scans(records), fault, before_init=True) for _ in range(2)]
    assert {judge_trial(each, reference).verdict for each in outcomes} == {"corrupted"}
    first, second = ([batch.digests for batch in each.delivered] for each in outcomes)
    assert first == second
