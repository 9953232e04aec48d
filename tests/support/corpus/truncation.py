"""Truncated or damaged input that is taken without an error: bugs, and twins without them."""

import contextlib
import csv
import errno
import json
import pickle
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image, ImageFile
from torch.utils.data import IterableDataset

from pytest_dataloader_faults import Contract
from support.corpus.cases import Case
from support.corpus.streams import Shards
from support.datasets import COUNT, SIZE, Records, Substitutes, shard, zeros

_RECORDS = {"files": "*.rec"}
PROMISES = {**_RECORDS, "contract": Contract(detects_corruption=True)}
_CLAIM = "but blames 'FileNotFoundError', which is not the cause"


class EndsWithTheArchive(Shards):
    """Takes the end of the archive for the end of the samples."""

    def __iter__(self) -> Iterator[Any]:
        for archive, _ in self._own():
            yield from self._members(archive)


class FromFile(Records):
    """As many values as there are."""

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.fromfile(self.paths[index], np.uint8))


class FromFileCounted(Records):
    """As many values as there must be: healthy."""

    def __getitem__(self, index: int) -> Any:
        data = self.paths[index].read_bytes()
        return torch.from_numpy(np.frombuffer(data, np.uint8, count=SIZE).copy())


class Rows(IterableDataset[Any]):
    """The rows of a table, each by one worker."""

    def __init__(self, folder: Path) -> None:
        self.table = folder.parent / "table.csv"
        with open(self.table, "w", newline="", encoding="ascii") as file:
            csv.writer(file).writerows([number, number**2] for number in range(COUNT))

    def __iter__(self) -> Iterator[Any]:
        own = shard(COUNT)
        for place, row in enumerate(self._rows()):
            if place in own:
                yield torch.tensor([int(value) for value in row])

    def _rows(self) -> Iterator[list[str]]:
        with open(self.table, newline="", encoding="ascii") as file:
            yield from csv.reader(file)


class CountedRows(Rows):
    """Knows how many there are: healthy."""

    def _rows(self) -> Iterator[list[str]]:
        rows = list(super()._rows())
        if len(rows) != COUNT:
            message = f"{self.table}: {len(rows)} rows, expected {COUNT}"
            raise ValueError(message)
        yield from rows


class PicklesUntilTheEnd(IterableDataset[Any]):
    """One file of pickles, read until there is none left."""

    def __init__(self, folder: Path) -> None:
        self.file = folder.parent / "samples.pkl"
        noise = np.random.default_rng(0)
        samples = [noise.integers(0, 256, SIZE, np.uint8) for _ in range(COUNT)]
        self.file.write_bytes(b"".join(map(pickle.dumps, [{"version": 1}, *samples])))

    def __iter__(self) -> Iterator[Any]:
        _, *samples = self._samples()
        return (torch.from_numpy(samples[index]) for index in shard(len(samples)))

    def _samples(self) -> Iterator[Any]:
        with open(self.file, "rb") as file, contextlib.suppress(EOFError):
            while True:
                yield pickle.load(file)


class CountedPickles(PicklesUntilTheEnd):
    """Knows how many there are: healthy."""

    def _samples(self) -> Iterator[Any]:
        with open(self.file, "rb") as file:
            yield from (pickle.load(file) for _ in range(1 + COUNT))


class Pictures(Records):
    """JPEGs, read by Pillow: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pictures = folder.parent / "pictures"
        self.pictures.mkdir(exist_ok=True)
        noise = np.random.default_rng(0)
        for index in range(COUNT):
            pixels = noise.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(self._path(index), quality=95)
        Image.preinit()

    def _path(self, index: int) -> Path:
        return self.pictures / f"{index:02}.jpg"

    def __getitem__(self, index: int) -> Any:
        with Image.open(self._path(index)) as picture:
            return torch.from_numpy(np.array(picture))


class LoadsTruncatedPictures(Pictures):
    """Has switched the error off."""

    def __getitem__(self, index: int) -> Any:
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        return super().__getitem__(index)


class BlackIfNone(Pictures):
    """Returns a black image where ``imread`` returns None."""

    def __getitem__(self, index: int) -> Any:
        picture = cv2.imread(str(self._path(index)))
        return torch.from_numpy(np.zeros((32, 32, 3), np.uint8) if picture is None else picture)


class TakesHalfPictures(Pictures):
    """Has OpenCV decode whatever there is of a picture."""

    def __getitem__(self, index: int) -> Any:
        self._require_end(self._path(index))
        picture = cv2.imread(str(self._path(index)))
        if picture is None:
            raise OSError(f"{self._path(index)} is no picture")
        return torch.from_numpy(picture)

    def _require_end(self, path: Path) -> None:
        """Look at nothing."""


class WholePictures(TakesHalfPictures):
    """Looks for the mark at its end before: healthy."""

    def _require_end(self, path: Path) -> None:
        if not path.read_bytes().endswith(b"\xff\xd9"):
            raise OSError(f"{path} is truncated")


class NotFoundIfUnreadable(Substitutes, Pictures):
    """Says that the file is not there, whatever is wrong with it."""

    errors = (OSError, SyntaxError)  # PIL raises the latter for a truncated PNG.
    error: type[Exception] = FileNotFoundError
    reason = "Image Not Found"

    def substitute(self, index: int, _error: Exception) -> Any:
        message = f"{self.reason} {self._path(index).name}"
        raise self.error(message) from None


class SaysUnreadable(NotFoundIfUnreadable):
    """Says no more than it knows: healthy."""

    error = RuntimeError
    reason = "cannot read"


class Checked(Records):
    """Compares each record with the checksum that was stored when it was written: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        stored = folder.parent / "checksums.json"
        if not stored.exists():
            stored.write_text(json.dumps([zlib.crc32(path.read_bytes()) for path in self.paths]))
        self.sums = json.loads(stored.read_text())

    def __getitem__(self, index: int) -> Any:
        data = self.paths[index].read_bytes()
        if zlib.crc32(data) != self.sums[index]:
            message = f"{self.paths[index]}: wrong checksum"
            raise ValueError(message)
        return torch.tensor(list(data), dtype=torch.uint8)


class Framed(Records):
    """One file of records, each behind a header of eight bytes, read without a buffer: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.framed = folder.parent / "records.framed"
        self.framed.write_bytes(
            b"".join(struct.pack("<Q", SIZE) + path.read_bytes() for path in self.paths)
        )

    def __getitem__(self, index: int) -> Any:
        with open(self.framed, "rb", buffering=0) as file:
            file.seek(index * (8 + SIZE))
            (size,) = struct.unpack("<Q", self._whole(file, 8))
            return torch.tensor(list(self._payload(file, size)), dtype=torch.uint8)

    def _payload(self, file: Any, size: int) -> bytes:
        return self._whole(file, size)

    def _whole(self, file: Any, size: int) -> bytes:
        data: bytes = file.read(size)
        if len(data) < size:
            message = f"{self.framed}: {len(data)} bytes, expected {size}"
            raise ValueError(message)
        return data


class TrustsPayloads(Framed):
    """Looks whether it got the whole header, and not whether it got the whole record."""

    def _payload(self, file: Any, size: int) -> bytes:
        data: bytes = file.read(size)
        return data


class Mapped(Records):
    """Maps each record, and copies it to a buffer that it uses again: healthy."""

    def __getitem__(self, index: int) -> Any:
        buffer = np.zeros(SIZE, np.uint8)
        self._fill(buffer, self.paths[index])
        return torch.from_numpy(buffer), index

    def _fill(self, buffer: np.ndarray, path: Path) -> None:
        buffer[:] = np.memmap(path, np.uint8, "r")


class FillsNoBuffer(Mapped):
    """Warns of the error of a mapping, and goes on."""

    def _fill(self, buffer: np.ndarray, path: Path) -> None:
        try:
            super()._fill(buffer, path)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            warnings.warn(str(error), stacklevel=2)


class Indexed(Records):
    """Workers read an index before the records that it names: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.index = folder.parent / "index.json"
        self.index.write_text(json.dumps([str(path) for path in self.paths]), encoding="utf-8")
        self.in_worker = False

    def __getitem__(self, index: int) -> Any:
        if not self.in_worker:
            self.paths = [Path(name) for name in json.loads(self.index.read_text(encoding="utf-8"))]
            self.in_worker = True
        return self._record(index)

    def _record(self, index: int) -> Any:
        return super().__getitem__(index)


class ZerosBehindAnIndex(Indexed):
    """Takes the index seriously, and zeros for a record that it cannot read."""

    def _record(self, index: int) -> Any:
        try:
            return super()._record(index)
        except (OSError, ValueError):
            return zeros(), index


class NextIfDamaged(Substitutes, Checked):
    """Takes the next record instead of a damaged one."""

    errors = (ValueError,)

    def substitute(self, index: int, _error: Exception) -> Any:
        return Checked.__getitem__(self, (index + 1) % len(self))


class ZerosIfDamaged(NextIfDamaged):
    """Has zeros instead of a damaged record."""

    def substitute(self, _index: int, _error: Exception) -> Any:
        return zeros()


CASES: tuple[Case, ...] = (
    Case(
        "M1",
        EndsWithTheArchive,
        "truncated-file",
        "corrupted: are missing",
        Shards,
        options={"files": "*.tar"},
    ),
    Case(
        "M2",
        FromFile,
        "truncated-file",
        "corrupted: is wrong: it is torch.Tensor torch.uint8 (32,) instead of",
        FromFileCounted,
    ),
    Case("M3", Rows, "truncated-file", "corrupted: are missing", CountedRows),
    Case("M8", PicklesUntilTheEnd, "truncated-file", "corrupted: are missing", CountedPickles),
    Case("M4", LoadsTruncatedPictures, "truncated-file", "corrupted: is wrong", Pictures),
    Case("M9", TakesHalfPictures, "truncated-file", "corrupted: is wrong", WholePictures),
    Case("M5", BlackIfNone, "open-error", "corrupted: identical", Pictures),
    Case("M6", TrustsPayloads, "short-read", "corrupted: is wrong", Framed),
    Case("M5", NotFoundIfUnreadable, "empty-file", f"failed_unclearly: {_CLAIM}", SaysUnreadable),
    Case("M5", NotFoundIfUnreadable, "open-error", f"failed_unclearly: {_CLAIM}", SaysUnreadable),
    Case("M10", FillsNoBuffer, "read-error", "corrupted: identical (all zeros)", Mapped),
    Case("M7", ZerosBehindAnIndex, "read-error", "corrupted: identical", Indexed),
    Case("M7", ZerosBehindAnIndex, "truncated-file", "corrupted: identical", Indexed),
    Case("M2", Records, "corrupted-file", "corrupted: is wrong", Checked, options=PROMISES),
    Case(
        "G1",
        NextIfDamaged,
        "corrupted-file",
        "corrupted: it has the content of",
        Checked,
        options=_RECORDS,
    ),
    Case("G6", ZerosIfDamaged, "corrupted-file", "corrupted: identical", Checked, options=_RECORDS),
)
