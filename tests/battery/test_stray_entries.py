"""The check of stray entries: what contracts allow, and what it leaves behind."""

import functools
import os
import shutil

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Contract
from support.corpus.listings import EntriesBySuffix, EveryEntry
from support.corpus.swallowing import without_nones
from support.datasets import COUNT, Records, RecordStream
from support.results import failure_of, result_of

STRAY_ENTRIES = "stray-entries"


class RefusesOthers(Records):
    """Refuses a file of any other kind when it is made."""

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


def test_a_failure_is_confirmed_and_no_file_is_left_behind(records):
    before = sorted(records.rglob("*"))
    result = result_of(lambda: EveryEntry(records), STRAY_ENTRIES)
    assert "00.rec.part was added to its folder; the dataset has 17 samples" in result.sentence
    assert len(result.trials) == 2
    assert sorted(records.rglob("*")) == before


class NoneForHalves(Records):
    """Gives None for half a file, which its loader leaves out."""

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
