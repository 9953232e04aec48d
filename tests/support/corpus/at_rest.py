"""Datasets of files that may be damaged before: one declared defect each, and twins.

Each is made of a folder that was filled before, since a fault at rest happens to files that are
there before the dataset is. The samples are COUNT blocks of noise, of one megabyte in all.
"""

import functools
import hashlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from pytest_dataloader_faults import Contract
from support.corpus.cases import Case
from support.datasets import shard
from support.readers.register import READERS, values

COUNT, SIZE = 16, 1 << 16
_DATA, _INDEX, _SUMS = "samples.bin", "samples.idx", "sums.json"


def noise() -> np.ndarray:
    """The samples: COUNT rows of SIZE bytes, always the same."""
    return np.random.default_rng(0).integers(0, 256, (COUNT, SIZE), np.uint8)


def tensor(data: Any) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def require(path: Path, unit: str, count: int, expected: int) -> None:
    """ValueError unless as many came as are expected."""
    if count != expected:
        message = f"{path}: {count} {unit}, expected {expected}"
        raise ValueError(message)


class Whole(Dataset[Any]):
    """Has its samples in ``self.samples`` once it is made."""

    samples: Any

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return tensor(self.samples[index])


def write_block(folder: Path) -> None:
    """All samples in one file."""
    noise().tofile(folder / _DATA)


class MappedMean(Whole):
    """Computes a mean of what it has mapped, in the process of the loader."""

    def __init__(self, folder: Path) -> None:
        self.samples = np.memmap(folder / _DATA, np.uint8, "r").reshape(-1, SIZE)
        require(folder / _DATA, "samples", len(self), COUNT)
        self.mean = self.samples.mean()


class ReadMean(Whole):
    """Computes the mean of what it has read: healthy."""

    def __init__(self, folder: Path) -> None:
        self.samples = np.frombuffer((folder / _DATA).read_bytes(), np.uint8).reshape(-1, SIZE)
        require(folder / _DATA, "samples", len(self), COUNT)
        self.mean = self.samples.mean()


class CountsBytes(Whole):
    """Divides the size of the file by that of a sample, and reads each sample on request."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _DATA
        self.samples = range(os.path.getsize(self.path) // SIZE)

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "rb") as file:
            file.seek(index * SIZE)
            data = file.read(SIZE)
        require(self.path, f"bytes of sample {index}", len(data), SIZE)
        return tensor(data)


class KnowsItsSize(CountsBytes):
    """Knows how large the file should be: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        require(self.path, "bytes", os.path.getsize(self.path), COUNT * SIZE)


def write_indexed(folder: Path) -> None:
    """Samples, and in another file where each starts, and a digest of each."""
    noise().tofile(folder / _DATA)
    np.arange(0, COUNT * SIZE, SIZE).tofile(folder / _INDEX)
    digests = [hashlib.sha256(each.tobytes()).hexdigest() for each in noise()]
    (folder / _SUMS).write_text(json.dumps(digests), encoding="ascii")


class Indexed(Whole):
    """As many samples as the index has entries; and of each as many bytes as there are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.samples = np.fromfile(folder / _INDEX, np.int64)

    def __getitem__(self, index: int) -> Any:
        with open(self.folder / _DATA, "rb") as file:
            file.seek(self.samples[index])
            return tensor(self._check(file.read(SIZE), index))

    def _check(self, data: bytes, index: int) -> bytes:
        return data


class IndexedChecked(Indexed):
    """Compares the number of entries, and each sample, with digests: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.digests = json.loads((folder / _SUMS).read_bytes())
        require(folder / _INDEX, "entries", len(self), len(self.digests))

    def _check(self, data: bytes, index: int) -> bytes:
        if hashlib.sha256(data).hexdigest() != self.digests[index]:
            message = f"{self.folder / _DATA}: sample {index} is not what {_SUMS} has a digest of"
            raise ValueError(message)
        return data


def write_lines(folder: Path) -> None:
    """A line that says how many there are, and a line of JSON for each sample."""
    lines = [{"count": COUNT}, *({"hex": each.tobytes().hex()} for each in _halves())]
    text = "".join(f"{json.dumps(each)}\n" for each in lines)
    (folder / "samples.jsonl").write_text(text, encoding="ascii")


def _halves() -> np.ndarray:
    return noise()[:, : SIZE // 2]


class LineStream(IterableDataset[Any]):
    """The lines, as each worker comes by them."""

    is_counted = False

    def __init__(self, folder: Path) -> None:
        self.path = folder / "samples.jsonl"

    def __iter__(self) -> Iterator[Any]:
        own = shard(COUNT)
        with open(self.path, encoding="ascii") as file:
            count = json.loads(next(file, '{"count": -1}'))["count"]
            place = -1
            for place, line in enumerate(file):
                if place in own:
                    yield tensor(bytes.fromhex(json.loads(line)["hex"]))
        if self.is_counted:
            require(self.path, "lines", place + 1, count)


class LineStreamCounted(LineStream):
    """Says so where there are fewer than the first line says: healthy."""

    is_counted = True


def write_files(folder: Path) -> None:
    for index, sample in enumerate(noise()):
        sample.tofile(folder / f"{index:02}.rec")


class Files(Whole):
    """Has a list of the expected files, and of how long they are: healthy."""

    def __init__(self, folder: Path) -> None:
        paths = (folder / f"{index:02}.rec" for index in range(COUNT))
        self.samples = [path for path in paths if self._is_there(path)]

    def _is_there(self, path: Path) -> bool:
        require(path, "bytes", path.stat().st_size, SIZE)
        return True

    def __getitem__(self, index: int) -> Any:
        data = self.samples[index].read_bytes()
        require(self.samples[index], "bytes", len(data), SIZE)
        return tensor(data)


class Listed(Files):
    """Has the files that are in its folder."""

    def __init__(self, folder: Path) -> None:
        self.samples = sorted(folder.glob("*.rec"))


class CompleteGroups(Listed):
    """Leaves out each group of four files that is not complete."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        groups = Counter(int(path.stem) // 4 for path in self.samples)
        self.samples = [each for each in self.samples if groups[int(each.stem) // 4] == 4]


def write_pairs(folder: Path) -> None:
    """An image and a mask for each sample, by the same name."""
    for number, name in enumerate(("images", "masks")):
        (folder / name).mkdir()
        for index, sample in enumerate(noise()):
            (sample + np.uint8(number)).tofile(folder / name / f"{index:02}.rec")


class Zipped(Dataset[Any]):
    """Pairs the files of two folders by their places in the listings."""

    def __init__(self, folder: Path) -> None:
        self.images, self.masks = Listed(folder / "images"), Listed(folder / "masks")

    def __len__(self) -> int:
        return min(len(self.images), len(self.masks))

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.masks[index]


class ZippedByName(Zipped):
    """Compares the names first: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        images, masks = ({path.name for path in each.samples} for each in (self.images, self.masks))
        if difference := sorted(images ^ masks):
            message = f"{folder}: only an image or only a mask of {difference}"
            raise FileNotFoundError(message)


class IfExists(Files):
    """Leaves out what is not there."""

    def _is_there(self, path: Path) -> bool:
        return os.path.exists(path) and super()._is_there(path)


class IfNotEmpty(Files):
    """Leaves out empty files."""

    def _is_there(self, path: Path) -> bool:
        return os.path.getsize(path) > 0


class KeepsAnIndex(CountsBytes):
    """Writes where samples start, and then checks whether they are all there."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.path, self.index = folder / _DATA, cache / _INDEX
        if not self._is_current():
            self._build(os.path.getsize(self.path))
        self.samples = np.fromfile(self.index, np.int64)

    def _is_current(self) -> bool:
        return self.index.exists()

    def _build(self, size: int) -> None:
        np.arange(0, size, SIZE).tofile(self.index)
        require(self.path, "bytes", size, COUNT * SIZE)


class KeepsTheRightIndex(KeepsAnIndex):
    """Looks first, writes under another name, and keeps of which file the index is: healthy."""

    def _is_current(self) -> bool:
        source = self.index.with_suffix(".json")
        return source.exists() and json.loads(source.read_bytes()) == self._source()

    def _source(self) -> list[int]:
        status = self.path.stat()
        return [status.st_size, status.st_mtime_ns]

    def _build(self, size: int) -> None:
        require(self.path, "bytes", size, COUNT * SIZE)
        self._write(self.index, np.arange(0, size, SIZE).tobytes())
        self._write(self.index.with_suffix(".json"), json.dumps(self._source()).encode())

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(data)
        part.replace(path)


class Read(Whole):
    """The samples in what *read* makes of the one file."""

    def __init__(self, read: Callable[[str], bytes], folder: Path) -> None:
        self.samples = values(read(str(folder / "samples"))).reshape(-1, SIZE)


def read_json_or_nothing(path: str) -> bytes:
    """Has nothing for what cannot be read."""
    try:
        return READERS["python_json"].read(path)
    except Exception:  # noqa: BLE001  # the defect
        return b""


def read_whole_lmdb(path: str) -> bytes:
    """All values, if the last page is there: healthy. LMDB does not check how long its file is."""
    with lmdb.open(path, subdir=False, readonly=True, lock=False) as env:
        size = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    require(Path(path), "bytes", os.path.getsize(path), size)
    return READERS["lmdb_store"].read(path)


def read_sqlite(path: str) -> bytes:
    """All rows. SQLite names neither the file nor what is wrong with it; an empty one is right."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return b"".join(data for (data,) in database.execute("SELECT data FROM records"))
    finally:
        database.close()


def read_named_sqlite(path: str) -> bytes:
    """The same, with the file in the error: healthy."""
    try:
        return read_sqlite(path)
    except sqlite3.Error as error:
        message = f"{path}: {error}"
        raise RuntimeError(message) from error


CUT, EMPTY, MISSING = "truncated-file", "empty-file", "missing-file"
DAMAGED, UNREADABLE = "corrupted-file", "read-error"
NOTICES = {"contract": Contract(detects_corruption=True)}
MISSES = {"contract": Contract(detects_missing_files=True)}


def expect_loss(reason: str, delivered: int = 0) -> str:
    """That this many were delivered without an error, because of *reason*."""
    are = "is" if delivered == 1 else "are"
    left = f"only {delivered} of {COUNT} samples {are} left, and no exception"
    return f"corrupted: {reason}; {left}"


def cases_of(
    write: Callable[[Path], object],
    specimen: Callable[..., Any],
    twin: Callable[..., Any],
    fails: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
    library: str = "",
) -> Iterator[Case]:
    """A case for each check that the specimen fails."""
    for check, finding in fails.items():
        options = options or {}
        more = {"options": options, "library": library, "write": write}
        yield Case("at-rest", specimen, check, finding, twin, **more)


def _of_format(
    reader: str,
    fails: Mapping[str, str],
    specimen: Callable[[str], bytes] | None = None,
    twin: Callable[[str], bytes] | None = None,
) -> Iterator[Case]:
    """Cases of a file that one of READERS writes, which is the one that is not passed."""
    datasets = [functools.partial(Read, each or READERS[reader].read) for each in (specimen, twin)]
    for dataset in datasets:
        vars(dataset)["__name__"] = reader

    def write(folder: Path) -> None:
        READERS[reader].write_as(folder / "samples", content=noise().tobytes())

    yield from cases_of(write, *datasets, fails)


_NOTHING = "corrupted: it is torch.Tensor torch.uint8 (0,) instead of torch.Tensor"
_ANEW = "poisoned: a dataset that a new process created from the same files has only"
_NO_PAGE = "crashed: a page of a mapped file that the disk could not deliver"
_BEYOND_END = "crashed: a mapped file beyond the point where it was truncated"
_MISSING = expect_loss("08.rec is missing", 15)
_SILENT = {
    CUT: expect_loss("samples has 50 % fewer bytes"),
    EMPTY: expect_loss("samples is empty"),
    MISSING: expect_loss("samples is missing"),
    UNREADABLE: expect_loss("samples cannot be read"),
}
"""What comes of an error that is caught, whatever it was."""
_UNCLEAR = {
    EMPTY: "failed_unclearly: does not say that the content of samples is damaged",
    MISSING: "failed_unclearly: does not say that its cause is [Errno 2]",
}
_EACH: tuple[tuple[Any, ...], ...] = (
    (write_block, MappedMean, ReadMean, {UNREADABLE: _NO_PAGE}, {}, "the kernel"),
    (
        write_block,
        CountsBytes,
        KnowsItsSize,
        {
            CUT: expect_loss(f"{_DATA} has 50 % fewer bytes", 8),
            EMPTY: expect_loss(f"{_DATA} is empty"),
        },
    ),
    (
        write_indexed,
        Indexed,
        IndexedChecked,
        {CUT: _NOTHING, EMPTY: _NOTHING, DAMAGED: "corrupted: sample"},
        NOTICES,
    ),
    (
        write_lines,
        LineStream,
        LineStreamCounted,
        {CUT: "corrupted: missing", EMPTY: "corrupted: missing"},
    ),
    (write_files, Listed, Files, {MISSING: _MISSING}, MISSES),
    (
        write_pairs,
        Zipped,
        ZippedByName,
        {MISSING: "corrupted: 08.rec is missing; 7 samples are not among those of"},
    ),
    (write_files, CompleteGroups, Files, {MISSING: expect_loss("08.rec is missing", 12)}),
    (write_files, IfExists, Files, {MISSING: _MISSING}),
    (write_files, IfNotEmpty, Files, {EMPTY: expect_loss("08.rec is empty", 15)}),
    (
        write_block,
        KeepsAnIndex,
        KeepsTheRightIndex,
        {CUT: f"{_ANEW} 8 of 16 samples", EMPTY: f"{_ANEW} 0 of 16 samples"},
    ),
)
CASES = (
    *(case for each in _EACH for case in cases_of(*each)),
    *_of_format("python_json", _SILENT, read_json_or_nothing),
    *_of_format("lmdb_store", {CUT: _BEYOND_END}, twin=read_whole_lmdb),
    *_of_format("python_sqlite3", _UNCLEAR, read_sqlite, read_named_sqlite),
)
