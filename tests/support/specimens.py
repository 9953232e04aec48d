"""Datasets with one declared defect each, and for each a twin without it."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from support.datasets import COUNT, SIZE, Records, RecordStream, Substitutes, decode, zeros


class Packed(Records):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pack = folder.parent / "all.pack"
        self.pack.write_bytes(b"".join(path.read_bytes() for path in self.paths))

    def __getitem__(self, index: int) -> Any:
        with open(self.pack, "rb", buffering=0) as pack:
            pack.seek(index * SIZE)
            return decode(pack.read(SIZE), self.pack)


class SharedHandle(Packed):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.handle = open(self.pack, "rb", buffering=0)

    def __getitem__(self, index: int) -> Any:
        self.handle.seek(index * SIZE)
        return decode(self.handle.read(SIZE), self.pack)


class GivesZeros(Substitutes, Records):
    def substitute(self, index: int, _error: Exception) -> Any:
        return zeros(), index


class ZerosOnError(GivesZeros):
    """Gives zeros for what it cannot read."""


class BadSample(Substitutes, Records):
    def substitute(self, _index: int, _error: Exception) -> Any:
        raise RuntimeError("bad sample") from None


class UnbuildableError(Exception):
    """Has a ``message``, which torch then passes by that name, but takes something else."""

    message = "bad record"

    def __init__(self, index: int) -> None:
        super().__init__(index)


class RaisesUnbuildable(Substitutes, Records):
    """Raises an exception that cannot be made again where the loader is."""

    def substitute(self, index: int, _error: Exception) -> Any:
        raise UnbuildableError(index) from None


class ChainedError(Substitutes, Records):
    """Says what it was about and keeps the cause: healthy."""

    def substitute(self, index: int, error: Exception) -> Any:
        message = f"bad sample {index}"
        raise RuntimeError(message) from error


class BoundedRetry(Records):
    """Tries three times: healthy."""

    def __getitem__(self, index: int) -> Any:
        for _ in range(2):
            try:
                return super().__getitem__(index)
            except OSError:
                continue
        return super().__getitem__(index)


class TornCache(Records):
    """Makes the cache's file before it has what belongs in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cache = Path(tempfile.mkdtemp(prefix="cache-", dir=folder.parent))

    def __getitem__(self, index: int) -> Any:
        cached = self.cache / f"{index}.cache"
        if not cached.exists():
            self._fill(cached, self.paths[index])
        return decode(cached.read_bytes(), cached)

    def _fill(self, cached: Path, path: Path) -> None:
        with open(cached, "wb") as file:
            file.write(path.read_bytes())


class AtomicCache(TornCache):
    """Names the cache's file when it is whole: healthy."""

    def _fill(self, cached: Path, path: Path) -> None:
        data = path.read_bytes()
        decode(data, path)
        part = cached.with_suffix(f".{os.getpid()}")
        part.write_bytes(data)
        part.rename(cached)


class TakesTheJobDown(Substitutes, Records):
    """On an error it ends the training process that started its worker."""

    errors = (OSError,)

    def substitute(self, _index: int, error: Exception) -> Any:
        os.kill(os.getppid(), signal.SIGTERM)
        raise error


class TakesTheGroupDown(TakesTheJobDown):
    """On an error it ends all processes of its group, as ``trap 'kill 0'`` in a job script does."""

    def substitute(self, _index: int, error: Exception) -> Any:
        os.killpg(0, signal.SIGTERM)
        raise error


class Helper(Records):
    """Starts a helper process for each sample, and ends it also when an error comes: healthy."""

    def __getitem__(self, index: int) -> Any:
        helper = self._start()
        try:
            return super().__getitem__(index)
        finally:
            self._end(helper)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "600"])  # noqa: S607  # wherever it is

    def _end(self, helper: subprocess.Popen[bytes]) -> None:
        helper.kill()
        helper.wait()


class HelperLeftBehind(Helper):
    """Ends the helper only where nothing goes wrong."""

    def __getitem__(self, index: int) -> Any:
        helper = self._start()
        sample = Records.__getitem__(self, index)
        self._end(helper)
        return sample


class CountsFromFile(Records):
    """Reads its length from a file, and closes it: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.index = folder.parent / "index.txt"
        self.index.write_text(str(COUNT), encoding="ascii")

    def __len__(self) -> int:
        with open(self.index, encoding="ascii") as index:
            return int(index.read())


class IndexLeftOpen(CountsFromFile):
    """Opens a file at each ``len``, which samplers read once per pass, and keeps it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.opened: list[Any] = []

    def __len__(self) -> int:
        self.opened.append(open(self.index, encoding="ascii"))
        return int(self.opened[-1].read())


class ReusedBuffer(Records):
    """Hands out the same tensor each time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.buffer = torch.zeros(SIZE, dtype=torch.uint8)

    def __getitem__(self, index: int) -> Any:
        return self.buffer.copy_(super().__getitem__(index)[0])


class Unsharded(RecordStream):
    """Every worker gives the whole stream."""

    def __iter__(self) -> Any:
        return (self.records[index] for index in range(len(self.records)))


class ShortStream(RecordStream):
    """Takes an error for the end of the stream."""

    def __iter__(self) -> Any:
        samples = super().__iter__()
        try:
            yield from samples
        except OSError:
            return


class StopsTheEpoch(Records):
    """Lets a StopIteration out of ``__getitem__``, which ends the loop over the loader."""

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file:
            return decode(self._first(iter(lambda: file.read(SIZE), b"")), self.paths[index])

    def _first(self, chunks: Any) -> bytes:
        return next(chunks)


class FirstOrNothing(StopsTheEpoch):
    """Has an answer for a file without a chunk: healthy."""

    def _first(self, chunks: Any) -> bytes:
        return next(chunks, b"")
