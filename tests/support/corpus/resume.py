"""Loaders and datasets that save their state: bugs, and twins without them."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from support.corpus.cases import Case
from support.datasets import Records, RecordStream, shard

_SHARD = 4


class ResumableStream(RecordStream):
    """Knows how many of its records it has given, in each worker: healthy.

    The count stays at the end: the last batch of a worker may not be full, and its state is then
    that of a stream which has ended.
    """

    begin = delivered = 0

    def __iter__(self) -> Iterator[Any]:
        self.delivered, self.begin = self.begin, 0
        for index in self._own()[self.delivered :]:
            self.delivered += 1
            yield self.records[index]

    def _own(self) -> list[int]:
        return list(shard(len(self.records)))

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.delivered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin = self.delivered = state["given"]


class ForgetsItsShard(ResumableStream):
    """Has the place in a shard in its state, and not which shard it is."""

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.delivered % _SHARD}


class BeginsAnew(ResumableStream):
    """Sets its position back when an epoch starts, even one that should resume."""

    def __iter__(self) -> Iterator[Any]:
        self.begin = 0
        yield from super().__iter__()


class EndsAtZero(ResumableStream):
    """Sets its count back at its end, before the last batch of a worker is full."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self.delivered = 0


class NeedsItsIterator(ResumableStream):
    """Its state is that of a generator which only iterating makes."""

    def __iter__(self) -> Iterator[Any]:
        self.places = self._own()
        yield from super().__iter__()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.places = self.places[state["given"] :]


class CountingLoader(DataLoader[Any]):
    """Counts the batches that its loop gets, and leaves out as many when it resumes: healthy."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begin = 0
        self.had = {"batches": 0}

    def __iter__(self) -> Iterator[Any]:
        self.had["batches"], self.begin = self.begin, 0
        for batch in itertools.islice(super().__iter__(), self.had["batches"], None):
            self.had["batches"] += 1
            yield batch
        self.had["batches"] = 0

    def state_dict(self) -> dict[str, Any]:
        return dict(self.had)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin = state["batches"]


class ChecksItsWorkers(CountingLoader):
    """Loads no state of another number of workers."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "workers": self.num_workers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["workers"] != self.num_workers:
            raise ValueError("resume with as many workers as before")
        super().load_state_dict(state)


class CountsFromZero(CountingLoader):
    """Counts only the batches of its own process."""

    def __iter__(self) -> Iterator[Any]:
        start, self.begin = self.begin, 0
        self.had["batches"] = 0
        for batch in itertools.islice(DataLoader.__iter__(self), start, None):
            self.had["batches"] += 1
            yield batch
        self.had["batches"] = 0


class StaysAtTheEnd(CountingLoader):
    """Does not set its count back at the end of an epoch."""

    def __iter__(self) -> Iterator[Any]:
        self.had["batches"], self.begin = self.begin, 0
        for batch in itertools.islice(DataLoader.__iter__(self), self.had["batches"], None):
            self.had["batches"] += 1
            yield batch


class SharesItsState(CountingLoader):
    """Gives out the dict in which it counts."""

    def state_dict(self) -> dict[str, Any]:
        return self.had


class KeepsWhatCame(CountingLoader):
    """Has every index that came in its state."""

    def __iter__(self) -> Iterator[Any]:
        self.seen: list[int] = []
        for batch in super().__iter__():
            self.seen += batch[1].tolist()
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seen": list(self.seen)}


class KeepsTheFile(CountingLoader):
    """Has an open file in its state."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "log": open(__file__, encoding="utf-8")}


class CountingSampler(Sampler[int]):
    """Counts the indices that it draws, which is before workers make the samples."""

    def __init__(self, count: int) -> None:
        self.count, self.drawn = count, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        while self.drawn < self.count:
            self.drawn += 1
            yield self.drawn - 1
        self.drawn = 0


class CountsInTheSampler(DataLoader[Any]):
    """Its state is that of its sampler, which is ahead of the loop."""

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.sampler.drawn}  # type: ignore[attr-defined]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.drawn = state["drawn"]  # type: ignore[attr-defined]


class SeededSampler(Sampler[int]):
    """Shuffles from its own seed, in the same way in each process: healthy."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(0)
        return iter(torch.randperm(self.count, generator=generator).tolist())


class KeepsProgressInAFile(CountingLoader):
    """Also writes its position to a file next to the checkpoint, which may be ahead of that."""

    folder: Path

    def __iter__(self) -> Iterator[Any]:
        file = self.folder / "progress"
        if file.exists():
            self.begin = max(self.begin, int(file.read_text()))
        for batch in super().__iter__():
            file.write_text(str(self.had["batches"]))
            yield batch
        file.write_text("0")


def _of(kind: type[DataLoader[Any]], folder: Path, **options: Any) -> Any:
    return kind(Records(folder), batch_size=2, num_workers=2, **options)


def counting(folder: Path) -> Any:
    return _of(CountingLoader, folder)


def counting_a_stream(folder: Path) -> Any:
    """Its batches are others if there are more workers."""
    return CountingLoader(RecordStream(folder), batch_size=2, num_workers=2)


def checking_its_workers(folder: Path) -> Any:
    return ChecksItsWorkers(RecordStream(folder), batch_size=2, num_workers=2)


def counting_from_zero(folder: Path) -> Any:
    return _of(CountsFromZero, folder)


def resuming_without_state(folder: Path) -> Any:
    """Resumes a stream by skipping samples; counts those twice."""
    return StatefulDataLoader(RecordStream(folder), batch_size=4, num_workers=2)


def resuming_with_state(folder: Path) -> Any:
    return StatefulDataLoader(ResumableStream(folder), batch_size=4, num_workers=2)


def staying_at_the_end(folder: Path) -> Any:
    return _of(StaysAtTheEnd, folder)


def sharing_its_state(folder: Path) -> Any:
    return _of(SharesItsState, folder)


def keeping_what_came(folder: Path) -> Any:
    return _of(KeepsWhatCame, folder)


def keeping_the_file(folder: Path) -> Any:
    return _of(KeepsTheFile, folder)


def counting_in_the_sampler(folder: Path) -> Any:
    return _of(CountsInTheSampler, folder, sampler=CountingSampler(len(Records(folder))))


def shuffled(folder: Path) -> Any:
    """Its sampler draws from the global generator, whose state it does not save."""
    return _of(CountingLoader, folder, shuffle=True)


def shuffled_by_seed(folder: Path) -> Any:
    """Its order is the same in each process."""
    return _of(CountingLoader, folder, sampler=SeededSampler(len(Records(folder))))


def keeping_progress_in_a_file(folder: Path, cache: Path) -> Any:
    """A loader of that kind; the file is in *cache*, which the trial removes."""
    loader = _of(KeepsProgressInAFile, folder)
    loader.folder = cache
    return loader


CASES: tuple[Case, ...] = (
    Case(
        "P1",
        ForgetsItsShard,
        "resumes",
        "corrupted: after 1 of 4 batches, the loader repeated 4 samples (0, 2, 4, 6)",
        ResumableStream,
    ),
    Case(
        "P2",
        sharing_its_state,
        "resumes",
        "corrupted: the state taken after 1 batch changed while the next batch was made",
        counting,
    ),
    Case("P3", shuffled, "resumes", "corrupted:  and skipped ", shuffled_by_seed),
    Case(
        "P4",
        keeping_what_came,
        "resumes",
        "leaked: the loader's state grows with every batch, from",
        counting,
    ),
    Case(
        "P5",
        keeping_the_file,
        "resumes",
        "fails_without_fault: the loader's state after 1 batch cannot be saved",
        counting,
    ),
    Case(
        "P6",
        counting_in_the_sampler,
        "resumes",
        "corrupted: after 1 of 8 batches, the loader skipped 8 samples (2, 3, 4, 5, 6, ...)",
        counting,
    ),
    Case(
        "P7",
        BeginsAnew,
        "resumes",
        "corrupted: resumed from its state after 1 of 4 batches",
        ResumableStream,
    ),
    Case(
        "P8",
        staying_at_the_end,
        "resumes",
        "corrupted: the loader delivered no samples instead of 16 in the next epoch",
        counting,
    ),
    Case(
        "P9",
        NeedsItsIterator,
        "resumes",
        "fails_without_fault: the loader raised AttributeError",
        ResumableStream,
    ),
    Case(
        "P11",
        EndsAtZero,
        "resumes",
        "corrupted: the loader delivered 16 more samples, a whole extra epoch",
        ResumableStream,
        options={"loader": {"batch_size": 3, "num_workers": 2}},
    ),
    Case(
        "P10",
        keeping_progress_in_a_file,
        "resumes",
        "corrupted: the loader skipped 2 samples",
        counting,
    ),
    Case(
        "P12",
        counting_from_zero,
        "resumes",
        "corrupted: resumed from its state after 1 of 8 batches and again 3 batches later",
        counting,
    ),
    Case(
        "P13",
        resuming_without_state,
        "resumes",
        "fails_without_fault: resumed from its state after 1 of 4 batches and again 1 batch later",
        resuming_with_state,
    ),
    Case(
        "P14",
        counting_a_stream,
        "resumes",
        "corrupted: resumed from its state after 4 of 8 batches with one more worker, the loader",
        checking_its_workers,
    ),
)
