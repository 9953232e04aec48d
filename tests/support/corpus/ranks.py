"""Datasets that several processes train on: bugs, and twins without them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler, get_worker_info

from pytest_dataloader_faults import Contract
from support.corpus.cases import Case
from support.corpus.endless import RandomPerWorker
from support.corpus.swallowing import NoneOnError, without_nones
from support.datasets import Records, RecordStream, shard


def place() -> tuple[int, int]:
    """The rank of this process or of its loader's, and how many ranks there are."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class RankedStream(RecordStream):
    """Each rank gives the records that are its own, and each worker of it a part: healthy."""

    def __iter__(self) -> Iterator[Any]:
        for index in self._own():
            yield self.records[index]

    def _own(self) -> list[int]:
        indices = self._of_rank(*place())
        return [indices[number] for number in shard(len(indices))]

    def _of_rank(self, rank: int, ranks: int) -> list[int]:
        return list(range(rank, len(self.records), ranks))


class ShardsThatDoNotDivide(RankedStream):
    """Gives whole shards to ranks, three of them to two ranks."""

    def _of_rank(self, rank: int, ranks: int) -> list[int]:
        indices = range(len(self.records))
        shards = [indices[number::3] for number in range(3)]
        return [index for shard in shards[rank::ranks] for index in shard]


class SkipsUnreadable(RankedStream):
    """Leaves out what cannot be read, and so has fewer batches than the other ranks."""

    def __iter__(self) -> Iterator[Any]:
        for index in self._own():
            try:
                yield self.records[index]
            except OSError:
                continue


def skips_unreadable(folder: Path) -> DataLoader[Any]:
    """In small batches, so that a few samples are one batch fewer."""
    return DataLoader(SkipsUnreadable(folder), batch_size=2, num_workers=2)


def skipping_loader(folder: Path) -> DataLoader[Any]:
    """Its ranks have the same number of batches, whatever is left out."""
    sampler = SharedShuffle(len(Records(folder)))
    return DataLoader(
        NoneOnError(folder), batch_size=4, num_workers=2, sampler=sampler, collate_fn=without_nones
    )


class SharedShuffle(Sampler[int]):
    """Shuffles by the epoch, in the same way in all ranks, and has every second index: healthy."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        rank, ranks = place()
        return len(range(rank, self.count, ranks))

    def _generator(self) -> torch.Generator | None:
        return torch.Generator().manual_seed(self.epoch)

    def __iter__(self) -> Iterator[int]:
        rank, ranks = place()
        return iter(torch.randperm(self.count, generator=self._generator()).tolist()[rank::ranks])


class OwnShuffle(SharedShuffle):
    """Shuffles by the random numbers of each process: ranks have indices in common."""

    def _generator(self) -> None:
        return None


class SameShuffle(SharedShuffle):
    """Shuffles each epoch in the same way."""

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(0)


class _Shuffled:
    """Makes a loader over records with a sampler of that kind."""

    def __init__(self, kind: type[SharedShuffle]) -> None:
        self.kind, self.__name__ = kind, kind.__name__

    def __call__(self, folder: Path) -> DataLoader[Any]:
        records = Records(folder)
        return DataLoader(records, batch_size=4, num_workers=2, sampler=self.kind(len(records)))


class SameHalf(SharedShuffle):
    """Has the first half of the indices in each of two ranks."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


class Augmented(Records):
    """Draws from a generator of its own, so that only the labels, of two classes, are compared."""

    generator: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.generator is None:
            self.generator = np.random.default_rng()
        data, _ = super().__getitem__(index)
        return data * self.generator.uniform(0.5, 1.0), index % 2


class _AugmentedIn(_Shuffled):
    """Makes a loader over augmented records with a sampler of that kind."""

    def __call__(self, folder: Path) -> DataLoader[Any]:
        records = Augmented(folder)
        return DataLoader(records, batch_size=4, num_workers=2, sampler=self.kind(len(records)))


class AugmentedPart(Augmented):
    """Has the records of its rank alone: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        rank, ranks = place()
        self.paths = self.paths[rank::ranks]


class RandomPerRank(RandomPerWorker):
    """Seeds its random numbers by the rank, too: healthy."""

    def _seed(self) -> int:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return place()[0] * workers + worker


class LengthOfAllRanks(RankedStream):
    """Has a length, and forgets there that other ranks have a part of it."""

    def __len__(self) -> int:
        return len(self.records)


class LengthOfOneRank(RankedStream):
    """Has the length of its part: healthy."""

    def __len__(self) -> int:
        return len(self._of_rank(*place()))


class EndsAtAnError(DataLoader[Any]):
    """Takes an error of its workers for the end of the epoch."""

    def __iter__(self) -> Any:
        try:
            yield from super().__iter__()
        except RuntimeError:
            return


class RaisesErrors(DataLoader[Any]):
    """Has the same loop, and leaves errors to its caller: healthy."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


def ends_at_an_error(folder: Path) -> DataLoader[Any]:
    return EndsAtAnError(RankedStream(folder), batch_size=2, num_workers=2)


def raises_errors(folder: Path) -> DataLoader[Any]:
    return RaisesErrors(RankedStream(folder), batch_size=2, num_workers=2)


TWO: dict[str, Any] = {"ranks": 2}
_MAY_SKIP = {**TWO, "contract": Contract(may_skip=True)}
CASES: tuple[Case, ...] = (
    Case(
        "K11",
        ends_at_an_error,
        "rank-stops",
        "hung: rank 0 was waiting in batch",
        raises_errors,
        options=TWO,
    ),
    Case(
        "O1",
        RecordStream,
        "ranks-agree",
        "corrupted: 16 of 16 samples (0, 1, 2, 3, 4, ...) were delivered more than once, on ranks",
        RankedStream,
        options=TWO,
    ),
    Case(
        "O2",
        ShardsThatDoNotDivide,
        "ranks-agree",
        "hung: rank 0 was waiting in batch",
        RankedStream,
        options=TWO,
    ),
    Case(
        "O3", skips_unreadable, "rank-stops", "hung: samples after EIO", RankedStream, options=TWO
    ),
    Case(
        "O8",
        skips_unreadable,
        "rank-stops",
        "hung: Contract(may_skip=True) allows a rank to skip samples, but DDP does not",
        skipping_loader,
        options=_MAY_SKIP,
    ),
    Case(
        "O4",
        _Shuffled(OwnShuffle),
        "ranks-agree",
        "corrupted: were delivered more than once, on ranks 0 and 1, and",
        _Shuffled(SharedShuffle),
        options=TWO,
    ),
    *(
        Case(
            "O10",
            _AugmentedIn(SameHalf),
            "ranks-agree",
            "corrupted: 8 of 16 samples (0, 1, 2, 3, 4, ...) were delivered more than once",
            twin,
            options=TWO,
        )
        for twin in (_AugmentedIn(SharedShuffle), AugmentedPart)
    ),
    Case(
        "O5",
        RandomPerWorker,
        "ranks-agree",
        "corrupted: all ranks delivered identical random samples, bit for bit",
        RandomPerRank,
        options=TWO,
    ),
    Case(
        "O6",
        LengthOfAllRanks,
        "ranks-agree",
        "corrupted: the length of rank 0 is 16 samples, but it delivered 8",
        LengthOfOneRank,
        options=TWO,
    ),
    Case(
        "O7",
        _Shuffled(SameShuffle),
        "ranks-agree",
        "corrupted: in the same order in both epochs",
        _Shuffled(SharedShuffle),
        options=TWO,
    ),
)
