"""Pickling of the dataset, of the sample and of the loader's own functions."""

import sqlite3
from multiprocessing import Pool
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from support.corpus.cases import Case
from support.datasets import Records


class Labelled(Records):
    """Takes its labels from a database, and keeps the connection."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.database = folder.parent / "labels.db"
        self.database.unlink(missing_ok=True)
        with sqlite3.connect(self.database) as connection:
            connection.execute("create table labels (label integer)")
            connection.executemany("insert into labels values (?)", [(i,) for i in range(16)])
        connection.close()
        self.connection = sqlite3.connect(self.database)
        self.labels = [row[0] for row in self.connection.execute("select label from labels")]

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0], self.labels[index]


class LabelledAtOnce(Labelled):
    """Closes it when it has the labels."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.connection.close()
        del self.connection


class LabelsOfASet(Records):
    """Numbers its labels by the order of a set, which each interpreter has its own of."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.names = list({f"class {number}" for number in range(16)})

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0], self.names.index(f"class {index}")


class LabelsInOrder(LabelsOfASet):
    """Sorts them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.names.sort()


def stacked(samples: list[Any]) -> Any:
    return torch.stack([each[0] for each in samples])


def lambda_as_collate(folder: Path) -> Any:
    collate = lambda samples: torch.stack([each[0] for each in samples])  # noqa: E731
    return DataLoader(Records(folder), batch_size=4, num_workers=2, collate_fn=collate)


def function_as_collate(folder: Path) -> Any:
    """The same, with a function that a spawned worker can import."""
    return DataLoader(Records(folder), batch_size=4, num_workers=2, collate_fn=stacked)


class OpensWhereItIsUnpickled(Records):
    """Reopens in ``__setstate__`` what was only ever there for the process that made it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.index = "/proc/self/environ-of-the-first"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with open(self.index, "rb") as index:
            self.header = index.read(1)


class Embedded(Records):
    """Gives tensors that still know of the weights they were made with."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.embedding = torch.nn.Embedding(256, 4)

    def __getitem__(self, index: int) -> Any:
        return self.embedding(super().__getitem__(index)[0].int())


class Detached(Embedded):
    """Gives tensors alone."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index).detach()


def embedded(folder: Path) -> Any:
    return DataLoader(Embedded(folder), batch_size=None, num_workers=2)


def detached(folder: Path) -> Any:
    return DataLoader(Detached(folder), batch_size=None, num_workers=2)


class LazyImages(Records):
    """Returns images that ``Image.open`` has only started to read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        images = folder.parent / "images"
        images.mkdir(exist_ok=True)
        for path in self.paths:
            data = np.frombuffer(path.read_bytes() * 3, np.uint8).reshape(8, 8, 3)
            Image.fromarray(data).resize((64, 64)).save(images / f"{path.stem}.png")
        self.paths = sorted(images.iterdir())

    def __getitem__(self, index: int) -> Any:
        return Image.open(self.paths[index])


class LoadedImages(LazyImages):
    """Reads them whole."""

    def __getitem__(self, index: int) -> Any:
        with super().__getitem__(index) as image:
            image.load()
            return image


def lazy_images(folder: Path) -> Any:
    return DataLoader(LazyImages(folder), batch_size=4, num_workers=2, collate_fn=list)


def loaded_images(folder: Path) -> Any:
    return DataLoader(LoadedImages(folder), batch_size=4, num_workers=2, collate_fn=list)


class Graph:
    """A batch that looks up its samples in a registry; only the worker has filled it."""

    registry: dict[int, str] = {}  # noqa: RUF012  # that is the bug

    def __init__(self, index: int) -> None:
        self.index = index
        Graph.registry[index] = f"graph {index}"

    def __getstate__(self) -> dict[str, Any]:
        return {"index": self.index}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.index = state["index"]
        self.name = Graph.registry[self.index]


class GivesGraphs(Records):
    """Gives objects that can be made again in its own process only."""

    def __getitem__(self, index: int) -> Any:
        return Graph(index).index, super().__getitem__(index)[0]


def registered(samples: list[Any]) -> Any:
    return [Graph(index) for index, _ in samples]


def plain(samples: list[Any]) -> Any:
    return [index for index, _ in samples]


def graphs(folder: Path) -> Any:
    return DataLoader(GivesGraphs(folder), batch_size=4, num_workers=2, collate_fn=registered)


def plain_graphs(folder: Path) -> Any:
    return DataLoader(GivesGraphs(folder), batch_size=4, num_workers=2, collate_fn=plain)


class BoxesApart(Records):
    """Keeps a small tensor for each of many annotations."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.boxes = [torch.full((4,), number) for number in range(1500)]

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0], self.boxes[index]


class BoxesTogether(BoxesApart):
    """Keeps one for all of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.boxes = torch.stack(self.boxes)  # type: ignore[assignment]


class StartsProcesses(Records):
    """Shares the work of one sample among its own processes."""

    def __getitem__(self, index: int) -> Any:
        sample, _ = super().__getitem__(index)
        with self._pool() as pool:
            return torch.tensor(pool.map(sum, [sample.tolist()]))

    def _pool(self) -> Any:
        return Pool(1)


class StartsThreads(StartsProcesses):
    """Shares it among threads."""

    def _pool(self) -> Any:
        return ThreadPool(1)


_FAILS = "the loader raised "
_DROPPED = "a worker could not pickle its result ("
CASES: tuple[Case, ...] = (
    Case("B1", Labelled, "pickles", "fails_without_fault: sqlite3.Connection", LabelledAtOnce),
    Case("B2", lambda_as_collate, "pickles", "fails_without_fault: <lambda>", function_as_collate),
    Case(
        "B3",
        OpensWhereItIsUnpickled,
        "pickles",
        "fails_without_fault: a worker printed: FileNotFoundError: [Errno 2] No such file",
    ),
    Case(
        "B4",
        embedded,
        "workers-agree",
        f"hung: {_DROPPED}RuntimeError: Cowardly refusing to serialize non-leaf tensor",
        detached,
    ),
    Case(
        "B5",
        lazy_images,
        "truncated-file",
        f"hung: {_DROPPED}OSError: image file is truncated",
        loaded_images,
    ),
    Case("B6", graphs, "workers-agree", f"fails_without_fault: {_FAILS}KeyError: ", plain_graphs),
    Case("B7", BoxesApart, "pickles", "fails_without_fault: Too many open files", BoxesTogether),
    Case(
        "B8",
        StartsProcesses,
        "workers-agree",
        f"fails_without_fault: {_FAILS}AssertionError: daemonic processes are not allowed",
        StartsThreads,
    ),
    Case("B9", LabelsOfASet, "pickles", "corrupted: ", LabelsInOrder),
)
