"""Datasets that list a folder: those that treat each entry as data fail, and their twins do not."""

from __future__ import annotations

import functools
import glob
import os
import shutil

import pytest
import torch
from PIL import Image, ImageFile
from torch.utils.data import DataLoader, IterableDataset

from pytest_dataloader_faults import Contract, run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.faults import StrayEntry
from support.judging import judge_trial
from support.results import failure_of, result_of
from support.rows import slow

STRAY_ENTRIES = "stray-entries"
COUNT = 16
CAUSE = "treats every entry of a folder as data"
EXTRA = (
    "img000.jpg.part was added to its folder; the dataset has 17 samples instead of 16, and no"
    " exception was raised"
)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """Images of two classes, each in its own folder, and masks with the same names in one."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("train/cat", "train/dog", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(COUNT):
        name = f"img{number:03d}"
        color = Image.effect_noise((64, 64), 90).convert("RGB")
        color.save(folder / "train" / ("cat", "dog")[number % 2] / f"{name}.jpg")
        (folder / "masks" / f"{name}.bin").write_bytes(f"mask {number:03d} ".encode() * 1000)
    return folder


def _content(path):
    """The pixels, by Pillow."""
    with Image.open(path) as image:
        return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)


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


class MasksByName(Masks):
    """Hidden names are left out, and other ones are not."""

    def list_folder(self, folder):
        return map(folder.joinpath, glob.glob("*", root_dir=folder))


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


@pytest.mark.parametrize("content", [slow(b""), b"1"], ids=["empty", "one byte"])
def test_files_of_which_there_is_no_half_are_copied(tmp_path, content):
    (tmp_path / "masks").mkdir()
    for number in range(COUNT):
        (tmp_path / "masks" / f"{number:03d}.bin").write_bytes(content)
    flaw, healthy = _failure(Masks, tmp_path), _check(MasksBySuffix, tmp_path)

    assert flaw.verdict == "corrupted", flaw.explanation
    assert flaw.cause == CAUSE
    assert not healthy.applies or healthy.passed, healthy.explanation


class MasksInWorkers(Masks):
    """Each worker lists the folder for each sample, in which the length is not known."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return sorted(self.list_folder(self.paths[0].parent))[index].read_bytes()


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


class StreamBySuffix(Stream):
    def list_folder(self):
        return self.folder.glob("*.bin")


class NumberedStream(Stream):
    """Each sample has its number, and half a file is an error, in one of the workers."""

    def __iter__(self):
        for number, path in self.own_files():
            content = path.read_bytes()
            if len(content) != 9000:
                raise ValueError(f"{path} has {len(content)} bytes instead of 9000")
            yield number, content


class Pictures:
    """Pictures of classes, which are the entries of the root folder."""

    def __init__(self, folder):
        self.root = folder / "train"
        self.classes = self.list_classes()
        self.paths = sorted(self.root.glob(self.pattern))

    pattern = "*/*.jpg"

    def list_classes(self):
        return sorted(os.listdir(self.root))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        return _content(path), self.classes.index(path.parent.name)


class PicturesOfFolders(Pictures):
    """Like ``torchvision.datasets.ImageFolder``, whose classes are the folders."""

    def list_classes(self):
        with os.scandir(self.root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())


class PicturesByWalk(Pictures):
    """It opens each class as a folder, which is the error of a class that is none."""

    def list_classes(self):
        classes = super().list_classes()
        assert all(os.listdir(self.root / name) for name in classes)
        return classes


class PicturesOfAnyName(PicturesOfFolders):
    """Pillow refuses half a picture, and says so."""

    pattern = "*/*"


class TruncatedPictures(PicturesOfAnyName):
    """Pillow fills the rest of half a picture with gray, if it is told to."""

    def __getitem__(self, index):
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        return super().__getitem__(index)


class Pairs(PicturesOfFolders):
    """A picture and a mask by their places in two lists, only one of which is filtered."""

    def __init__(self, folder):
        super().__init__(folder)
        self.paths.sort(key=lambda path: path.name)
        self.masks = sorted((folder / "masks").iterdir())

    def __getitem__(self, index):
        return super().__getitem__(index), self.masks[index].read_bytes()


class PairsByName(Pairs):
    def __getitem__(self, index):
        path = self.paths[index]
        mask = path.parents[2] / "masks" / f"{path.stem}.bin"
        return Pictures.__getitem__(self, index), mask.read_bytes()


def _check(make, folder, **arguments):
    return result_of(functools.partial(make, folder), STRAY_ENTRIES, **arguments)


def _failure(make, folder, **arguments):
    return failure_of(functools.partial(make, folder), STRAY_ENTRIES, **arguments)


@pytest.mark.parametrize(
    ("specimen", "observed"),
    [
        (MasksByName, EXTRA.replace("jpg", "bin")),
        (MasksInWorkers, "sample 1 (batch 0) is wrong"),
        (Stream, "no sample of the reference"),
        (Pictures, "sample 0 (batch 0) is wrong: [1]"),
        (TruncatedPictures, "the dataset has 18 samples instead of 16"),
        slow(Pairs, "sample 1 (batch 0) is wrong"),
    ],
)
def test_a_dataset_that_treats_each_entry_as_data_fails(folder, specimen, observed):
    result = _failure(specimen, folder)
    assert (result.verdict, result.finding.cause.phrase) == ("corrupted", CAUSE)
    assert observed in result.sentence


@pytest.mark.parametrize(
    "twin", [MasksBySuffix, *map(slow, (StreamBySuffix, PicturesOfFolders, PairsByName))]
)
def test_a_dataset_that_selects_its_files_passes(folder, twin):
    result = _check(twin, folder)
    assert (result.verdict, result.outcome.fired > 0) == ("survived", True)
    assert len(result.trials) == 1


@pytest.mark.parametrize(
    "twin",
    [
        *(MasksThatMustFit, NumberedStream),
        *map(slow, (PicturesOfAnyName, MasksOfTheirSize, PicturesByWalk)),
    ],
)
def test_a_dataset_that_raises_an_error_passes(folder, twin):
    result = _check(twin, folder)
    assert (result.verdict, result.outcome.fired > 0) == ("failed_cleanly", True)


def test_a_failure_is_confirmed_and_no_file_is_left_behind(folder):
    before = sorted(folder.rglob("*"))
    result = _check(Masks, folder)
    assert EXTRA.replace("jpg", "bin") in result.sentence
    assert len(result.trials) == 2
    assert sorted(folder.rglob("*")) == before


def test_a_contract_does_not_allow_it(folder):
    contract = Contract(may_skip=True, may_substitute=True, may_reorder=True)
    assert _failure(Masks, folder, contract=contract).verdict == "corrupted"


def test_a_contract_allows_to_skip_it(folder):
    def load(folder):
        return DataLoader(MasksIfIntact(folder), 4, num_workers=2, collate_fn=drop_none)

    result = _check(load, folder, contract=Contract(may_skip=True))
    assert result.verdict == "survived"
    assert "1 sample hit by a fault is missing; all other samples match" in result.sentence
    assert _failure(load, folder).verdict == "corrupted"


def test_disarmed_it_shows_nothing(folder):
    reference = take_reference(lambda: Masks(folder))
    for fault in (StrayEntry("/nothing/has/this/name"), StrayEntry("*", "img000.bin")):
        outcome = run_trial(lambda: Masks(folder), fault, before_init=True)
        assert judge_trial(outcome, reference).verdict == "not_exercised"


def _copy(data, folder):
    """A dataset of a copy of its files, as of those on a slow drive."""
    shutil.copytree(data / "masks", folder / "masks", dirs_exist_ok=True)
    return MasksBySuffix(folder)


def test_a_dataset_may_copy_its_folder(folder):
    make = functools.partial(_copy, folder)
    result = result_of(make, STRAY_ENTRIES, contract=Contract(survives=True))
    assert (result.verdict, result.outcome.fired > 0) == ("survived", True), result.explanation
    assert len(os.listdir(folder / "masks")) == COUNT
