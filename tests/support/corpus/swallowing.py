"""Errors that are swallowed, retried, or replaced by a sample: bugs, and twins without them."""

import logging
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info

from pytest_dataloader_faults import Contract
from support.corpus.archives import Virtual
from support.corpus.cases import Case
from support.datasets import COUNT, SIZE, Records, Substitutes, zeros
from support.specimens import BoundedRetry, ChainedError, GivesZeros, Packed, ZerosOnError

SKIPS = {"contract": Contract(may_skip=True)}


class NextOnError(Substitutes, Records):
    """Tries the next one instead, and the next, as long as it takes."""

    errors = (OSError,)

    def substitute(self, index: int, _error: Exception) -> Any:
        return self[(index + 1) % len(self)]


class RandomOnError(Records):
    """Takes another at random until one can be read."""

    def __getitem__(self, index: int) -> Any:
        while True:
            try:
                return super().__getitem__(index)
            except OSError:
                index = random.randint(0, len(self) - 1)


class RetriesAndFallsThrough(Records):
    """Has nothing to return after the last try."""

    def __getitem__(self, index: int) -> Any:
        for _ in range(3):
            try:
                sample = super().__getitem__(index)
                break
            except OSError as error:
                logging.getLogger(__name__).warning("cannot read %s: %r", index, error)
        return sample


class LabelOfAnother(Records):
    """Takes another image if one cannot be read, and keeps the label."""

    def __getitem__(self, index: int) -> Any:
        try:
            image, _ = super().__getitem__(index)
        except OSError:
            image, _ = super().__getitem__((index + 1) % len(self))
        return {"image": image, "label": index % 10}


class OwnLabel(Records):
    """The same without another image: healthy."""

    def __getitem__(self, index: int) -> Any:
        image, _ = super().__getitem__(index)
        return {"image": image, "label": index % 10}


class NoneOnError(Substitutes, Records):
    """Gives None for what cannot be read: healthy only with a loader that leaves it out."""

    def substitute(self, _index: int, _error: Exception) -> Any:
        return None


def without_nones(samples: list[Any]) -> Any:
    """What is there, collated; None if nothing is."""
    samples = [sample for sample in samples if sample is not None]
    return default_collate(samples) if samples else None


def nones_filtered(folder: Path) -> DataLoader[Any]:
    """Leaves unreadable samples out in ``collate_fn``, without a report."""
    return DataLoader(NoneOnError(folder), batch_size=4, num_workers=2, collate_fn=without_nones)


def nones_filtered_unless_all(folder: Path) -> DataLoader[Any]:
    """The same, with a ``collate_fn`` that cannot make a batch of nothing."""

    def collate(samples: list[Any]) -> Any:
        return default_collate([sample for sample in samples if sample is not None])

    return DataLoader(NoneOnError(folder), batch_size=4, num_workers=2, collate_fn=collate)


class FirstGoodOnError(Records):
    """Gives a copy of the last good sample for one it cannot read."""

    good: Any = None

    def __getitem__(self, index: int) -> Any:
        try:
            self.good = super().__getitem__(index)
        except (OSError, ValueError):
            if self.good is None:
                return zeros(), -1
        return self.good


class BareExcept(GivesZeros):
    """Swallows everything, Ctrl-C and sys.exit() too."""

    errors = (BaseException,)


class ExceptOverSharedHandle(Packed):
    """Takes what a shared file offset does to its records for bad records, and leaves them out."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.handle = open(self.pack, "rb", buffering=0)

    def __getitem__(self, index: int) -> Any:
        try:
            self.handle.seek(index * SIZE)
            record = np.frombuffer(self.handle.read(SIZE), np.uint8)
            if record[0] != index:
                message = f"record {index} is damaged"
                raise ValueError(message)
            return torch.from_numpy(record.copy())
        except ValueError:
            return zeros()


class Skips(Records):
    """Records what it cannot read in a file next to the data, and never tries it again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bad = folder.parent / "bad.txt"
        self.bad.write_text("", encoding="ascii")

    def __getitem__(self, index: int) -> Any:
        if str(index) in self.bad.read_text(encoding="ascii").split():
            return None
        try:
            return super().__getitem__(index)
        except OSError:
            with self.bad.open("a", encoding="ascii") as bad:
                bad.write(f"{index}\n")
            return None


class SkipsInMemory(Records):
    """The same, with a list in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bad: set[int] = set()

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            return None
        try:
            return super().__getitem__(index)
        except OSError:
            self.bad.add(index)
            return None


class RaisesAgain(Records):
    """Remembers the error of a file, and raises it without another look."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.errors: dict[int, OSError] = {}

    def __getitem__(self, index: int) -> Any:
        if index in self.errors:
            raise self.errors[index]
        try:
            return super().__getitem__(index)
        except OSError as error:
            self.errors[index] = error
            raise


def _filtered(dataset: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=without_nones)


def skip_list_on_disk(folder: Path) -> DataLoader[Any]:
    """A transient error is forever."""
    return _filtered(Skips(folder))


def skip_list_in_memory(folder: Path) -> DataLoader[Any]:
    """A transient error is for as long as the worker lives."""
    return _filtered(SkipsInMemory(folder))


def skips_the_unreadable(folder: Path) -> DataLoader[Any]:
    """Each time again: healthy, if that is the contract."""
    return _filtered(NoneOnError(folder))


class NextWithoutEnd(Substitutes, Records):
    """Tries the next one instead, and after the last one an index that is not there."""

    errors = (OSError,)

    def substitute(self, index: int, _error: Exception) -> Any:
        return self[index + 1]


class AnotherWithoutEnd(Records):
    """Tries another one instead, until Python's stack is full: a very long message.

    Its stack is smaller than usual, because Python takes a second to print that many calls.
    """

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            sys.setrecursionlimit(400)
        try:
            return self._decoded(index)
        except Exception:  # noqa: BLE001  # the flaw
            return self._another(index)

    def _another(self, index: int) -> Any:
        return self[(index * 7 + 1) % len(self)]

    def _decoded(self, index: int) -> Any:
        return super().__getitem__(index)


class SaysSoInHandler(Substitutes, Records):
    """Says in its own words that a sample is missing: healthy, even without ``from``."""

    errors = (OSError,)

    def substitute(self, index: int, _error: Exception) -> Any:
        message = f"sample {index} cannot be had"
        raise RuntimeError(message)


class NextIfGone(Records):
    """Knows the names of its files, and takes the next one instead of a missing one."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / f"{number:02}.rec" for number in range(COUNT)]

    def __getitem__(self, index: int) -> Any:
        for place in range(index, index + 3):
            try:
                return super().__getitem__(place % len(self))
            except FileNotFoundError:
                continue
        raise FileNotFoundError(self.paths[index])


class RemovesUnreadable(Records):
    """Removes an image that it cannot read, so that the next run does not find it."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError as error:
            logging.getLogger(__name__).warning("removing %s: %r", self.paths[index], error)
            os.remove(self.paths[index])
            raise


class Aligned(Records):
    """Adds the rows of two alignments to each structure, and needs all three files: healthy.

    The structure is the largest of them, so that it is tried first.
    """

    alignments = "bfd.a3m", "uniref.a3m"
    times = 8

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.entries = [folder.parent / "entries" / path.stem for path in self.paths]
        for path, entry in zip(self.paths, self.entries, strict=True):
            if not entry.exists():
                entry.mkdir(parents=True)
                (entry / "chain.pdb").write_bytes(path.read_bytes() * self.times)
                for name in self.alignments:
                    (entry / name).write_bytes(path.read_bytes())

    def __getitem__(self, index: int) -> Any:
        entry = self.entries[index]
        files = self._structure(entry), *self._alignments(entry)
        return torch.tensor(sum(sum(self._read(path)) for path in files))

    def _read(self, path: Path) -> bytes:
        data = path.read_bytes()
        if len(data) != SIZE * (1 if path.name in self.alignments else self.times):
            message = f"{path} is truncated"
            raise ValueError(message)
        return data

    def _structure(self, entry: Path) -> Path:
        return entry / "chain.pdb"

    def _alignments(self, entry: Path) -> list[Path]:
        return [entry / name for name in self.alignments]


class AlignedWithAny(Aligned):
    """Says something else if there is no structure, and takes the alignments that are there."""

    def _structure(self, entry: Path) -> Path:
        if not super()._structure(entry).exists():
            raise ValueError("Invalid file type")
        return super()._structure(entry)

    def _alignments(self, entry: Path) -> list[Path]:
        return sorted(entry.glob("*.a3m"))


class VirtualOnly(Virtual):
    """Has zeros of HDF5 for the rows of a file that cannot be opened."""

    def __getitem__(self, index: int) -> Any:
        return self._sample(index)


_WITHOUT_MEMORY = {"exclude": ["memory-exhaustion"]}
"""HDF5 itself dies of an allocation that fails."""
CASES: tuple[Case, ...] = (
    Case("G1", NextIfGone, "missing-file", "corrupted: has the content"),
    Case(
        "G1",
        NextWithoutEnd,
        "read-error",
        "failed_unclearly: its cause is [Errno 5] Input/output error, and was raised by accident",
        SaysSoInHandler,
    ),
    Case(
        "G1",
        NextWithoutEnd,
        "descriptor-exhaustion",
        "failed_unclearly: its cause is [Errno 24] Too many open files, and was raised by accident",
        SaysSoInHandler,
    ),
    *(
        Case(
            "G1",
            AnotherWithoutEnd,
            check,
            "failed_unclearly: RecursionError does not say that its cause is",
            SaysSoInHandler,
        )
        for check in ("open-error", "read-error", "closed-descriptor")
    ),
    Case("G1", NextOnError, "read-error-once", "corrupted: has the content", BoundedRetry),
    Case(
        "G2",
        RandomOnError,
        "read-error",
        "hung: neither finished nor raised an exception",
        BoundedRetry,
    ),
    Case(
        "G3",
        RetriesAndFallsThrough,
        "read-error",
        "failed_unclearly: UnboundLocalError does not say",
        BoundedRetry,
    ),
    Case(
        "G4",
        LabelOfAnother,
        "read-error-once",
        "corrupted: is wrong: it has the content of sample",
        OwnLabel,
    ),
    Case(
        "G5", nones_filtered, "read-error-once", "corrupted: does not contain the requested samples"
    ),
    Case(
        "G5",
        nones_filtered_unless_all,
        "read-error",
        "failed_unclearly: IndexError does not say",
        skips_the_unreadable,
        options=SKIPS,
    ),
    Case("G6", ZerosOnError, "truncated-file", "corrupted: identical"),
    Case("G6", FirstGoodOnError, "read-error", "corrupted: has the content", ChainedError),
    Case("G7", BareExcept, "read-error", "corrupted: identical", ChainedError),
    Case("G8", ExceptOverSharedHandle, "workers-agree", "corrupted: identical", Packed),
    Case(
        "G9",
        skip_list_on_disk,
        "read-error",
        "poisoned: does not contain the requested samples",
        skips_the_unreadable,
        options={**SKIPS, "files": "*.rec"},
    ),
    Case(
        "G9",
        skip_list_in_memory,
        "read-error-once",
        "corrupted: in epoch 2",
        skips_the_unreadable,
        options=SKIPS,
    ),
    Case("G9", RaisesAgain, "read-error-once", "poisoned: the same workers raised"),
    *(
        Case("G12", VirtualOnly, check, "corrupted: identical", Virtual, _WITHOUT_MEMORY)
        for check in ("open-error", "missing-file")
    ),
    Case("G13", AlignedWithAny, "missing-file", "corrupted: is wrong", Aligned),
    Case("G11", RemovesUnreadable, "read-error", "poisoned: would delete "),
)
