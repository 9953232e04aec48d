"""Datasets that list a folder: bugs with its order and its entries, and twins without them."""

import os
from pathlib import Path
from typing import Any

import torch

from pytest_dataloader_faults import Contract
from support.corpus.cases import Case
from support.corpus.ranks import TWO
from support.datasets import SIZE, Records


class InListingOrder(Records):
    """Uses the files in the order in which the folder is listed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.paths = list(folder.iterdir())


class DividedAsListed(InListingOrder):
    """May have another order, as its contract says, but not in one of its ranks."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0]


class Labeled(Records):
    """Has a label for each record, by the name of its file: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.labels = self._labels(folder)

    def _labels(self, folder: Path) -> list[int]:
        return sorted(int(path.stem) for path in folder.glob("*.rec"))

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0], self.labels[index]


class LabeledByPlace(Labeled):
    """Pairs sorted files with labels from a second listing, which is not sorted."""

    def _labels(self, folder: Path) -> list[int]:
        return [int(path.stem) for path in folder.glob("*.rec")]


class EveryEntry(Records):
    """Makes a sample of every file, and fills short ones with zeros."""

    def __getitem__(self, index: int) -> Any:
        data = self.paths[index].read_bytes()[:SIZE].ljust(SIZE, b"\0")
        return torch.tensor(list(data), dtype=torch.uint8)


class EntriesBySuffix(Records):
    """Selects the files by their suffix, and checks their length: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.paths = sorted(folder.glob("*.rec"))


class FolderPerClass(EntriesBySuffix):
    """Has a class for each folder next to that of its records: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.classes = sorted(self._list_classes(folder.parent))

    def _list_classes(self, root: Path) -> list[str]:
        return [path.name for path in root.iterdir() if path.is_dir()]

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        return super().__getitem__(index)[0], self.classes.index(path.parent.name)


class EntryPerClass(FolderPerClass):
    """Has a class for each entry, whether it is a folder or not."""

    def _list_classes(self, root: Path) -> list[str]:
        return os.listdir(root)


def write_folders(root: Path) -> None:
    """Eight records in each of three folders."""
    for name in "abc":
        (root / name).mkdir()
        for number in range(8):
            content = bytes(ord(name) + number for _ in range(SIZE))
            (root / name / f"{number}.rec").write_bytes(content)


class WalksFolders(EntriesBySuffix):
    """Walks all folders, which leaves out those that cannot be listed."""

    def __init__(self, folder: Path) -> None:
        walk = os.walk(folder, onerror=self._on_error)
        self.paths = sorted(Path(where, name) for where, _, names in walk for name in names)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0]

    def _on_error(self, error: OSError) -> None:
        """Go on, as os.walk does without such a function."""


class ListsEachFolder(WalksFolders):
    """Raises the error: healthy."""

    def _on_error(self, error: OSError) -> None:
        raise error


CASES: tuple[Case, ...] = (
    Case(
        "S1",
        InListingOrder,
        "listing-order",
        "corrupted: when its folders are listed in another order, sample 0",
    ),
    Case(
        "S1",
        DividedAsListed,
        "listing-order",
        "corrupted: when one rank lists its folders in another order",
        options={**TWO, "contract": Contract(may_reorder=True)},
    ),
    Case(
        "S2",
        LabeledByPlace,
        "listing-order",
        "corrupted: when its folders are listed in another order, sample 0",
        Labeled,
    ),
    Case(
        "S3",
        EveryEntry,
        "stray-entries",
        "corrupted: the dataset has 17 samples instead of 16",
        EntriesBySuffix,
    ),
    Case(
        "S4",
        EntryPerClass,
        "stray-entries",
        "corrupted: sample 0 (batch 0) is wrong",
        FolderPerClass,
    ),
    Case(
        "S5",
        WalksFolders,
        "open-error",
        "corrupted: b cannot be listed; only 16 of 24 samples are left",
        ListsEachFolder,
        write=write_folders,
    ),
)
