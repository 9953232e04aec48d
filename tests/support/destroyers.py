"""Datasets that destroy their files after an error. Spawned workers can import them.

Each gets the folder of its records, and a log, in which it notes the answers to its attempts.
"""

import os
import select
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from pytest_dataloader_faults._engine.system.processes import fork
from support.corpus.resume import CountingLoader
from support.datasets import Records
from support.protection import Notes, answer_of
from support.waiting import until


class Log:
    """Lines of an existing file, by a descriptor that forked processes inherit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    def __getstate__(self) -> Path:
        return self.path

    def __setstate__(self, path: Path) -> None:
        self.__init__(path)  # type: ignore[misc]

    def add(self, line: str) -> None:
        os.write(self.fd, f"{line}\n".encode())

    def lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines()


def destroy(folder: Path, log: Log, path: Path | None = None) -> None:
    if path is not None:
        log.add(answer_of(os.remove, path))
    log.add(answer_of(shutil.rmtree, folder))
    shutil.rmtree(folder, ignore_errors=True)


class Deletes(Records):
    """Removes a file that it cannot read, and then the folder, in which something must be wrong."""

    errors: tuple[type[Exception], ...] = (OSError, ValueError, MemoryError)

    def __init__(self, folder: Path, log: Log) -> None:
        self.folder, self.log = folder, log
        try:
            super().__init__(folder)
        except self.errors:
            destroy(folder, log)
            raise

    def __getitem__(self, index: int) -> Any:
        try:
            return self.load(index)
        except self.errors:
            destroy(self.folder, self.log, self.paths[index])
            raise

    def load(self, index: int) -> Any:
        bytearray(1 << 26)  # malloc(3) always gets so much from the kernel, so it can fail.
        data, _ = super().__getitem__(index)
        if data.tolist() != list(range(data[0], data[0] + len(data))):
            message = f"{self.paths[index]} is damaged"
            raise ValueError(message)
        return data, index


class DeletesOnly(Deletes):
    """Removes the file alone."""

    def __getitem__(self, index: int) -> Any:
        try:
            return self.load(index)
        except self.errors:
            self.log.add(answer_of(self.change, self.paths[index]))
            raise

    def change(self, path: Path) -> None:
        os.remove(path)


class DeletesNotes(DeletesOnly):
    """Removes a file that it does not read."""

    def change(self, path: Path) -> None:
        os.remove(path.parent.with_name("notes.txt"))


class DeletesElsewhere(Deletes):
    """Has the other worker delete after an error in worker 0."""

    def __init__(self, folder: Path, log: Log) -> None:
        super().__init__(folder, log)
        self.notes = Notes(2)

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info is not None and info.id == 1:
            until(lambda: bool(self.notes[0]))
            destroy(self.folder, self.log)
            self.notes[1] = "deleted"
        try:
            return self.load(index)
        except self.errors:
            self.notes[0] = "failed"
            until(lambda: bool(self.notes[1]))
            raise


class DeletesAfterCrash(Deletes):
    """Deletes when it finds the mark of a worker that died."""

    def __getitem__(self, index: int) -> Any:
        mark = self.folder.with_name("running")
        if mark.exists() and mark.read_text(encoding="ascii") != str(os.getpid()):
            destroy(self.folder, self.log)
        mark.write_text(str(os.getpid()), encoding="ascii")
        return self.load(index)


class DeletesOnRestart(Deletes):
    """Leaves a mark when it cannot read a file in its constructor, and deletes when it finds it."""

    def __init__(self, folder: Path, log: Log) -> None:
        mark = folder.with_name("failed")
        if mark.exists():
            destroy(folder, log)
        super().__init__(folder, log)
        try:
            self.load(0)
        except self.errors:
            mark.touch()
            raise


class LeavesDaemon(Deletes):
    """Leaves a process behind that deletes when its worker has exited; others wait for it."""

    def __init__(self, folder: Path, log: Log) -> None:
        super().__init__(folder, log)
        self.notes = Notes(2)

    def __getitem__(self, index: int) -> Any:
        if self.notes[0] not in {"", str(os.getpid())}:
            until(lambda: bool(self.notes[1]))
        try:
            return self.load(index)
        except self.errors:
            self.notes[0] = str(os.getpid())
            self._leave_daemon()
            raise

    def _leave_daemon(self) -> None:
        worker_fd = os.pidfd_open(os.getpid())
        if child := fork():
            os.waitpid(child, 0)
            os.close(worker_fd)
            return
        os.setsid()
        if not fork():
            select.select([worker_fd], [], [])
            destroy(self.folder, self.log)
            self.notes[1] = "deleted"
        os._exit(0)


class Caches(Deletes):
    """Keeps each record in a folder for caches, with other files, and deletes nothing."""

    errors = ()

    def __init__(self, folder: Path, log: Log, cache: Path) -> None:
        super().__init__(folder, log)
        self.cache = cache

    def load(self, index: int) -> Any:
        data, _ = super().load(index)
        if not (self.cache / f"{index}.bin").exists():
            self.write(index, bytes(data.tolist()))
        return data, index

    def write(self, index: int, data: bytes) -> None:
        part = self.cache / f"{index}.part"
        part.write_bytes(data)
        part.rename(self.cache / f"{index}.bin")
        (self.cache / f"{index}.link").symlink_to(f"{index}.bin")
        (self.cache / f"{index}.d" / "inner").mkdir(parents=True)
        (self.cache / f"{index}.d" / "inner" / "file").touch()


class CachesAtStart(Caches):
    """Keeps the records when it is created."""

    def __init__(self, folder: Path, log: Log, cache: Path) -> None:
        super().__init__(folder, log, cache)
        for number, path in enumerate(self.paths):
            Caches.write(self, number, path.name.encode())

    def write(self, index: int, data: bytes) -> None:
        """Nothing is written later."""


class _Loader(DataLoader[Any]):
    """Deletes in the main process, when a worker has failed."""

    def __iter__(self) -> Iterator[Any]:
        dataset: Any = self.dataset
        try:
            yield from super().__iter__()
        except Exception:
            destroy(dataset.folder, dataset.log)
            raise


class _Resumed(CountingLoader):
    """Deletes when it finds the mark of an epoch that has not ended."""

    def __init__(self, dataset: Deletes, **options: Any) -> None:
        super().__init__(dataset, **options)
        self.mark = dataset.folder.with_name("running")
        if self.mark.exists():
            destroy(dataset.folder, dataset.log)

    def __iter__(self) -> Iterator[Any]:
        self.mark.touch()
        try:
            yield from super().__iter__()
        finally:
            self.mark.unlink(missing_ok=True)


class _Sound(Deletes):
    """Deletes nothing itself."""

    errors = ()


def in_the_main_process(folder: Path, log: Log) -> DataLoader[Any]:
    return _Loader(_Sound(folder, log), batch_size=4, num_workers=2)


def resumed(folder: Path, log: Log) -> DataLoader[Any]:
    return _Resumed(_Sound(folder, log), batch_size=2, num_workers=2)
