"""Datasets that read a file in their constructor, in the main process, or in workers."""

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

COUNT, SIZE = 40, 25_000
"""Records of a file of 1 MB, and their bytes."""


_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


def write_pack(path: Path) -> Path:
    path.write_bytes(b"".join(bytes([number]) * SIZE for number in range(COUNT)))
    return path


class Whole(Dataset[Any]):
    """Reads the file in its constructor, and has as many records as there are whole ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: Any = self.read()

    def read(self) -> bytes:
        return self.path.read_bytes()

    def __len__(self) -> int:
        return len(self.data) // SIZE

    def __getitem__(self, index: int) -> Any:
        record = self.data[index * SIZE : (index + 1) * SIZE]
        return torch.frombuffer(bytearray(record), dtype=torch.uint8)


class Checked(Whole):
    """Compares the size of the file with that of the records."""

    def read(self) -> bytes:
        size = os.path.getsize(self.path)
        if size != COUNT * SIZE:
            message = f"{self.path}: {size} bytes, expected {COUNT * SIZE}"
            raise ValueError(message)
        return super().read()


class Mapped(Whole):
    def read(self) -> Any:
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class MappedAsLong(Mapped):
    """Maps as many bytes as the whole file has, as C code does, and reads them all."""

    def read(self) -> Any:
        with self.path.open("rb") as file:
            descriptor = file.fileno()
            address = _libc.mmap(
                None, COUNT * SIZE, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0
            )
        return ctypes.string_at(address, COUNT * SIZE)


class InThread(Whole):
    def read(self) -> bytes:
        contents: list[bytes] = []
        thread = threading.Thread(target=lambda: contents.append(self.path.read_bytes()))
        thread.start()
        thread.join()
        (data,) = contents
        return data


class InProgram(Whole):
    def read(self) -> bytes:
        code = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
        command = [sys.executable, "-c", code, str(self.path)]
        return subprocess.run(command, check=True, capture_output=True).stdout


class InWorker(Checked):
    """Asks for the size in its constructor, and opens the file for each sample."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.data = self.read()
        return super().__getitem__(index)


class ThreadOfWorker(InWorker):
    def read(self) -> bytes:
        return InThread.read(self)  # type: ignore[arg-type]


def announces_itself(path: Path, pids: Path) -> Whole:
    """A dataset; the process that makes it leaves its pid in the file *pids*."""
    with pids.open("a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    return Whole(path)
