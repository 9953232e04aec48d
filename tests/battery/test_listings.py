"""The checks of listings and of stray entries: contracts, ranks, and where they do not apply."""

import functools
import os
import shutil

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Contract
from support.corpus.listings import EntriesBySuffix, LabeledByPlace
from support.corpus.swallowing import without_nones
from support.datasets import COUNT, SIZE, Records, RecordStream
from support.results import failure_of, result_of

LISTING_ORDER = "listing-order"
NO_ORDER = "no folder of its files that is listed has several entries"


class AsListed(Records):
    def __init__(self, folder):
        self.paths = [folder / name for name in os.listdir(folder)]

    def __getitem__(self, index):
        return self.paths[index].read_bytes()


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


STRAY_ENTRIES = "stray-entries"


class RefusesOthers(Records):
    def __init__(self, folder):
        super().__init__(folder)
        for path in self.paths:
            if path.suffix != ".rec":
                raise ValueError(f"{path} is not a record")


@pytest.mark.parametrize("twin", [RecordStream, RefusesOthers])
def test_a_dataset_that_raises_an_error_passes(records, twin):
    """Also a stream, in one of its workers."""
    result = result_of(functools.partial(twin, records), STRAY_ENTRIES)
    assert (result.verdict, result.outcome.fired > 0) == ("failed_cleanly", True)


class NoneForHalves(Records):
    def __getitem__(self, index):
        try:
            return super().__getitem__(index)[0]
        except ValueError:
            return None


def test_a_contract_allows_to_skip_it(records):
    def make():
        return DataLoader(NoneForHalves(records), 4, num_workers=2, collate_fn=without_nones)

    result = result_of(make, STRAY_ENTRIES, contract=Contract(may_skip=True))
    assert result.verdict == "survived"
    assert "1 sample hit by a fault is missing; all other samples match" in result.sentence
    assert failure_of(make, STRAY_ENTRIES).verdict == "corrupted"


def _copy(records, folder):
    """A dataset of a copy of its files, as of those on a slow drive."""
    return EntriesBySuffix(shutil.copytree(records, folder / "records", dirs_exist_ok=True))


def test_a_dataset_may_copy_its_folder(records):
    make = functools.partial(_copy, records)
    result = result_of(make, STRAY_ENTRIES, contract=Contract(survives=True))
    assert (result.verdict, result.outcome.fired > 0) == ("survived", True), result.explanation
    assert len(os.listdir(records)) == COUNT
