"""Datasets that start threads and processes: bugs when none can start, and healthy twins."""

import contextlib
import os
import queue
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import torch
from pyarrow import parquet

from support.corpus.cases import Case
from support.datasets import SIZE, Records, decode, zeros


def _read(path: Path) -> torch.Tensor:
    return decode(path.read_bytes(), path)


def _serve(
    paths: queue.Queue[Path | None], contents: queue.Queue[torch.Tensor | Exception]
) -> None:
    while (path := paths.get()) is not None:
        try:
            contents.put(_read(path))
        except Exception as error:  # noqa: BLE001  # whatever it is, the caller raises it
            contents.put(error)


def _next_of(contents: queue.Queue[torch.Tensor | Exception]) -> torch.Tensor:
    result = contents.get()
    if isinstance(result, Exception):
        raise result
    return result


class ReadsInPool(Records):
    """Reads each record in a pool of threads: healthy."""

    def __getitem__(self, index: int) -> Any:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(_read, [self.paths[index]] * 2))[-1]


class ZerosWithoutPool(ReadsInPool):
    """Returns zeros if the pool raises an error."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except RuntimeError:
            return zeros()


class ReadsInThreadPool(Records):
    """Reads each record in a pool of multiprocessing: healthy."""

    def __getitem__(self, index: int) -> Any:
        with ThreadPool(2) as pool:
            return pool.apply(_read, (self.paths[index],))


class KeepsThread(Records):
    """Starts a thread at the first record in a process, and passes all paths to it: healthy."""

    reader: tuple[int, queue.Queue[Any], queue.Queue[Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "reader": None}

    def __getitem__(self, index: int) -> Any:
        if self.reader is None or self.reader[0] != os.getpid():
            self._start(queue.Queue(), queue.Queue())
        _, paths, contents = self.reader
        paths.put(self.paths[index])
        return _next_of(contents)

    def _start(self, paths: queue.Queue[Any], contents: queue.Queue[Any]) -> None:
        threading.Thread(target=_serve, args=(paths, contents), daemon=True).start()
        self.reader = os.getpid(), paths, contents


class WaitsForThread(KeepsThread):
    """Keeps the queues of a thread that did not start, and waits for it at the next record."""

    def _start(self, paths: queue.Queue[Any], contents: queue.Queue[Any]) -> None:
        self.reader = os.getpid(), paths, contents
        threading.Thread(target=_serve, args=(paths, contents), daemon=True).start()


class RunsCommand(Records):
    """Has a command print each record: healthy."""

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        return decode(self._print(path), path)

    def _print(self, path: Path) -> bytes:
        return subprocess.run(["/bin/cat", path], capture_output=True, check=True).stdout


class ZerosWithoutCommand(RunsCommand):
    """Returns zeros if the command does not start."""

    def _print(self, path: Path) -> bytes:
        try:
            return super()._print(path)
        except OSError:
            return bytes(SIZE)


class NamesProgram(RunsCommand):
    """Raises an error that names the command, as all that is known: healthy."""

    def _print(self, path: Path) -> bytes:
        process = subprocess.run(["/bin/cat", path], capture_output=True, check=False)
        self._require_success(process, index=self.paths.index(path))
        return process.stdout

    def _require_success(self, process: subprocess.CompletedProcess[bytes], index: int) -> None:
        if process.returncode:
            raise ValueError(f"cat gave nothing for record {index}")


class HidesStatus(NamesProgram):
    """Raises an error that says nothing about the command."""

    def _require_success(self, process: subprocess.CompletedProcess[bytes], index: int) -> None:
        if process.returncode:
            raise ValueError(f"record {index} is bad")


class Decodes(Records):
    """Has a program decode each record, which prints 2 kB about each damaged byte: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for path in self.paths:
            path.write_bytes(bytes(number % 8 for number in range(SIZE)))

    def __getitem__(self, index: int) -> Any:
        damaged = "$(tr -d '\\000-\\007' < \"$0\" | wc -c)"
        script = f'cat "$0"; head -c $(({damaged} * 2000)) /dev/zero >&2'
        return torch.tensor(list(self._run(["/bin/sh", "-c", script, self.paths[index]])))

    def _run(self, command: list[Any]) -> bytes:
        return subprocess.run(command, capture_output=True, check=True).stdout


class NeverReadsErrors(Decodes):
    """Has a pipe for the messages as well, and looks at it only when the program has ended."""

    def _run(self, command: list[Any]) -> bytes:
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
            assert process.stdout
            content = process.stdout.read()
            process.wait()
            return content


class ReadsTable(Records):
    """Has Arrow read a table in threads of its own, one of which reads the file ahead."""

    options: Mapping[str, bool] = MappingProxyType({})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.table = folder.parent / "records.parquet"
        if not self.table.exists():
            values = [list(path.read_bytes()) for path in self.paths]
            parquet.write_table(pa.table({"values": values}), self.table)

    def __getitem__(self, index: int) -> Any:
        table = parquet.read_table(self.table, **self.options)
        return torch.tensor(table["values"][index].as_py())


class ReadsTableAlone(ReadsTable):
    """Has Arrow read the file within the call, where it raises its error: healthy."""

    options = MappingProxyType({"use_threads": False, "pre_buffer": False})


class Aborts(ReadsInPool):
    """Aborts, as C++ does if nothing catches std::system_error."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except RuntimeError:
            os.abort()


class LocksOffset(Records):
    """Reads the samples of a batch in threads, each with the file for itself: healthy."""

    pid = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.whole = folder.parent / "all.bin"
        self.whole.write_bytes(b"".join(path.read_bytes() for path in self.paths))

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if self.pid != os.getpid():
            self.file = open(self.whole, "rb", buffering=0)  # The worker keeps it.
            self.lock, self.pid = self._make_lock(), os.getpid()
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(self._read, indices))

    def _make_lock(self) -> Any:
        return threading.Lock()

    def _read(self, index: int) -> Any:
        with self.lock:
            self.file.seek(index * SIZE)
            time.sleep(0.001)
            return torch.frombuffer(bytearray(self.file.read(SIZE)), dtype=torch.uint8)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "whole": self.whole}


class SharesOffset(LocksOffset):
    """Has all threads seek and read at once."""

    def _make_lock(self) -> Any:
        return contextlib.nullcontext()


_CHECK, _MEMORY = "thread-exhaustion", "memory-exhaustion"
_ARROW = {"exclude": ["closed-descriptor"]}
"""Arrow does not say why it cannot use a descriptor that was closed."""
CASES = (
    Case("R1", ZerosWithoutPool, _CHECK, "corrupted: samples 0 to 15 are identical", ReadsInPool),
    Case("R2", WaitsForThread, _CHECK, "hung: ", KeepsThread),
    Case("R3", ZerosWithoutCommand, _CHECK, "corrupted: samples 0 to 15", RunsCommand),
    Case("R6", HidesStatus, _MEMORY, "failed_unclearly: ValueError does not say", RunsCommand),
    Case("R4", Aborts, _CHECK, "failed_unclearly: worker 0 was killed", ReadsInThreadPool),
    Case("R7", NeverReadsErrors, "corrupted-file", "hung: ", Decodes),
    Case("R8", SharesOffset, "workers-agree", "corrupted: sample ", LocksOffset),
    Case("R5", ReadsTable, _CHECK, "hung: ", ReadsTableAlone, _ARROW),
)
"""test_exhaustion.py has those of OpenMP and OpenBLAS: their twins start no threads."""
