"""Iterable datasets, and the counting of epochs: bugs, and twins without them."""

import contextlib
import itertools
import logging
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, get_worker_info

from support.corpus.cases import Case
from support.corpus.endless import EndsAtAnError, RandomForAll, RandomPerWorker
from support.datasets import COUNT, Records, RecordStream
from support.specimens import FirstOrNothing, ShortStream, StopsTheEpoch, Unsharded


class ShufflesFirst(Sampler[int]):
    """Shuffles all indices, and leaves out those that fill no batch: healthy."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw(self.count)[: len(self)])

    def draw(self, count: int) -> list[int]:
        return torch.randperm(count).tolist()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self.count - self.count % 3


class CutsFirst(ShufflesFirst):
    """Shuffles only those that fill the batches."""

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw(len(self)))


class ShufflesOnce(ShufflesFirst):
    """Shuffles where it is made, and never again."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.order = super().draw(count)

    def draw(self, count: int) -> list[int]:
        return self.order[:count]


def shuffles_once(folder: Path) -> DataLoader[Any]:
    return DataLoader(Records(folder), 3, sampler=ShufflesOnce(COUNT), num_workers=2)


def shuffles_first(folder: Path) -> DataLoader[Any]:
    return DataLoader(Records(folder), 3, sampler=ShufflesFirst(COUNT), num_workers=2)


def cuts_first(folder: Path) -> DataLoader[Any]:
    return DataLoader(Records(folder), 3, sampler=CutsFirst(COUNT), num_workers=2)


class GoesOnAfterTheError(RecordStream):
    """Catches what its generator raises, and calls it again: but it has come to its end."""

    def __iter__(self) -> Iterator[Any]:
        samples = super().__iter__()
        while True:
            try:
                yield next(samples)
            except StopIteration:
                return
            except OSError as error:
                logging.getLogger(__name__).warning("skipped: %r", error)


class Shards(IterableDataset[Any]):
    """Reads tar archives, each of them by one worker: healthy with any number of workers."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self.paths = sorted(folder.iterdir())
        self.shards = []
        for number in range(count):
            shard = folder.parent / f"shard-{number}.tar"
            with tarfile.open(shard, "w") as archive:
                for path in self.paths[number::count]:
                    archive.add(path, path.name)
            self.shards.append((shard, len(self.paths[number::count])))

    def _own(self) -> list[tuple[Path, int]]:
        info = get_worker_info()
        return self.shards[info.id :: info.num_workers] if info else self.shards

    def __iter__(self) -> Iterator[Any]:
        for shard, count in self._own():
            members = list(self._members(shard))
            if len(members) != count:
                message = f"{shard}: {len(members)} members, expected {count}: it is truncated"
                raise ValueError(message)
            yield from members

    def _members(self, shard: Path) -> Iterator[torch.Tensor]:
        with tarfile.open(shard) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                yield torch.tensor(list(file.read()), dtype=torch.uint8)


class OneShardForTwo(Shards):
    """Has fewer shards than workers, and calls that an error in the one that goes empty."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, count=1)

    def _own(self) -> list[tuple[Path, int]]:
        if shards := super()._own():
            return shards
        message = "no samples found; perhaps you have fewer shards than workers"
        raise ValueError(message)


class RestDropped(RecordStream):
    """Gives each worker as many files as the others, and nobody the rest."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, count = (info.id, info.num_workers) if info else (0, 1)
        share = len(self.records) // count
        return (self.records[index] for index in range(worker * share, (worker + 1) * share))


class WrongLength(RecordStream):
    """Says what each worker gives, and not what all give."""

    def __len__(self) -> int:
        return COUNT // 2


class IteratorOnSelf(IterableDataset[Any]):
    """Keeps one iterator for good."""

    def __init__(self, folder: Path) -> None:
        records = Records(folder)
        self.samples = (records[index] for index in range(COUNT))

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for place, sample in enumerate(self.samples):
            if info is None or place % info.num_workers == info.id:
                yield sample


class KeepsPosition(RecordStream):
    """Continues in an epoch that the loop has left."""

    samples: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.samples = self.samples or super().__iter__()
        yield from self.samples
        self.samples = None


class FewerThanAsked(Records):
    """Leaves out of a batch what it has seen in it before, so to say."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices if index % 5]


def write_lines(folder: Path) -> None:
    """Fill *folder* with one text, of which a single read returns all."""
    lines = "".join(f"{number}\n" for number in range(COUNT))
    (folder / "lines.txt").write_text(lines, encoding="ascii")


class Lines(IterableDataset[Any]):
    """Reads one small text; each worker has every second line."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lines.txt"

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, count = (info.id, info.num_workers) if info else (0, 1)
        with self.path.open(encoding="ascii") as file:
            yield from map(int, itertools.islice(file, worker, None, count))


class LinesUntilAnError(Lines):
    """Takes an error for the end of the text."""

    def __iter__(self) -> Iterator[Any]:
        with contextlib.suppress(OSError):
            yield from super().__iter__()


class GroupsOfThree(IterableDataset[Any]):
    """Gives the samples of each worker in groups of three, the last of which may be smaller."""

    def __init__(self, folder: Path) -> None:
        self.records = RecordStream(folder)

    def __iter__(self) -> Iterator[Any]:
        group = []
        for sample in self.records:
            group.append(sample)
            if len(group) == 3:
                yield from group
                group.clear()
        yield from self._end(group)

    def _end(self, group: list[Any]) -> list[Any]:
        return group


class ShufflesAlike(RecordStream):
    """Shuffles all indices alike in each worker, which takes its part of that order: healthy."""

    def __iter__(self) -> Iterator[Any]:
        order = random.Random(self._seed()).sample(range(COUNT), COUNT)
        info = get_worker_info()
        own = order[info.id :: info.num_workers] if info else order
        return (self.records[index] for index in own)

    def _seed(self) -> int:
        return 0


class ShufflesApart(ShufflesAlike):
    """Shuffles in another way in each worker."""

    def _seed(self) -> int:
        info = get_worker_info()
        return info.id if info else 0


class WholeGroups(GroupsOfThree):
    """Drops what does not fill a group."""

    def _end(self, group: list[Any]) -> list[Any]:
        return []


CASES: tuple[Case, ...] = (
    Case("H1", Unsharded, "workers-agree", "corrupted: more often", RecordStream),
    Case(
        "H1",
        RandomForAll,
        "workers-agree",
        "corrupted: the same samples in the same order",
        RandomPerWorker,
    ),
    Case("H8", EndsAtAnError, "read-error-once", "corrupted: ended after", RandomPerWorker),
    Case(
        "H2", GoesOnAfterTheError, "read-error-once", "corrupted: samples are missing", RecordStream
    ),
    Case("H3", StopsTheEpoch, "empty-file", "corrupted: are missing", FirstOrNothing),
    Case("H4", OneShardForTwo, "workers-agree", "fails_without_fault: the loader raised ", Shards),
    Case(
        "H10",
        RestDropped,
        "workers-agree",
        "corrupted: with 3 workers, 1 of 16 samples is missing",
        RecordStream,
    ),
    Case("H14", ShufflesApart, "workers-agree", "corrupted: more often", ShufflesAlike),
    Case("H13", WholeGroups, "workers-agree", "corrupted: are missing", GroupsOfThree),
    Case("H7", IteratorOnSelf, "two-epochs", "corrupted: 0 of its 16 samples", RecordStream),
    Case("H12", shuffles_once, "two-epochs", "corrupted: the same order in", shuffles_first),
    Case("H11", cuts_first, "two-epochs", "corrupted: the last 1 of 16", shuffles_first),
    Case(
        "H7",
        IteratorOnSelf,
        "persistent-workers",
        "corrupted: in epoch 2, 16 of 16 samples are missing",
        RecordStream,
    ),
    Case(
        "H7",
        KeepsPosition,
        "persistent-workers",
        "corrupted: in epoch 2, 12 of 16 samples are missing",
        RecordStream,
    ),
    Case("H8", ShortStream, "read-error", "corrupted: are missing", RecordStream),
    Case("H8", LinesUntilAnError, "read-error", "corrupted: are missing", Lines, write=write_lines),
    Case(
        "H9", FewerThanAsked, "workers-agree", "corrupted: does not contain the requested samples"
    ),
)
