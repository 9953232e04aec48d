"""The check of stray entries: which files it adds, what contracts allow, what it leaves behind."""

import functools
import os
import shutil

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from pytest_dataloader_faults import Contract
from support.results import failure_of, result_of

STRAY_ENTRIES = "stray-entries"
COUNT = 16
EXTRA = (
    "img000.bin.part was added to its folder; the dataset has 17 samples instead of 16, and no"
    " exception was raised"
)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "masks").mkdir()
    for number in range(COUNT):
        path = folder / "masks" / f"img{number:03d}.bin"
        path.write_bytes(f"mask {number:03d} ".encode() * 1000)
    return folder


class Masks:
    """Each entry of a flat folder is a sample."""

    def __init__(self, folder):
        self.paths = sorted(self.list_folder(folder / "masks"))

    def list_folder(self, folder):
        return list(folder.iterdir())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.paths[index].read_bytes()


class MasksBySuffix(Masks):
    def list_folder(self, folder):
        return folder.glob("*.bin")


class MasksThatMustFit(Masks):
    """It refuses a file of any other kind."""

    def list_folder(self, folder):
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.endswith(".bin"):
                    raise ValueError(f"{entry.path} is not a mask")
                yield folder / entry.name


class MasksOfTheirSize(Masks):
    """A sample of half a file is an error that names it."""

    def __getitem__(self, index):
        content = super().__getitem__(index)
        if len(content) != 9000:
            raise ValueError(f"{self.paths[index]} has {len(content)} bytes instead of 9000")
        return content


class MasksIfIntact(MasksOfTheirSize):
    """It returns None for half a file, which ``drop_none`` leaves out."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except ValueError:
            return None


def drop_none(samples):
    return [each for each in samples if each is not None]


class Stream(IterableDataset):
    def __init__(self, folder):
        self.folder = folder / "masks"

    def __iter__(self):
        yield from (path.read_bytes() for _, path in self.own_files())

    def own_files(self):
        """Those of the worker, with their numbers."""
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return [*enumerate(sorted(self.list_folder()))][first::step]

    def list_folder(self):
        return self.folder.iterdir()


class NumberedStream(Stream):
    """Each sample has its number, and half a file is an error, in one of the workers."""

    def __iter__(self):
        for number, path in self.own_files():
            content = path.read_bytes()
            if len(content) != 9000:
                raise ValueError(f"{path} has {len(content)} bytes instead of 9000")
            yield number, content


def _check(make, folder, **arguments):
    return result_of(functools.partial(make, folder), STRAY_ENTRIES, **arguments)


def _failure(make, folder, **arguments):
    return failure_of(functools.partial(make, folder), STRAY_ENTRIES, **arguments)


@pytest.mark.parametrize(
    "twin",
    [
        *(MasksThatMustFit, NumberedStream),
    ],
)
def test_a_dataset_that_raises_an_error_passes(folder, twin):
    result = _check(twin, folder)
    assert (result.verdict, result.outcome.fired > 0) == ("failed_cleanly", True)


def test_a_failure_is_confirmed_and_no_file_is_left_behind(folder):
    before = sorted(folder.rglob("*"))
    result = _check(Masks, folder)
    assert EXTRA in result.sentence
    assert len(result.trials) == 2
    assert sorted(folder.rglob("*")) == before


def test_a_contract_allows_to_skip_it(folder):
    def load(folder):
        return DataLoader(MasksIfIntact(folder), 4, num_workers=2, collate_fn=drop_none)

    result = _check(load, folder, contract=Contract(may_skip=True))
    assert result.verdict == "survived"
    assert "1 sample hit by a fault is missing; all other samples match" in result.sentence
    assert _failure(load, folder).verdict == "corrupted"


def _copy(data, folder):
    """A dataset of a copy of its files, as of those on a slow drive."""
    shutil.copytree(data / "masks", folder / "masks", dirs_exist_ok=True)
    return MasksBySuffix(folder)


def test_a_dataset_may_copy_its_folder(folder):
    make = functools.partial(_copy, folder)
    result = result_of(make, STRAY_ENTRIES, contract=Contract(survives=True))
    assert (result.verdict, result.outcome.fired > 0) == ("survived", True), result.explanation
    assert len(os.listdir(folder / "masks")) == COUNT
