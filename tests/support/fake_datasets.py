"""Datasets over fake files. Module-level, so that spawned workers can import them."""

import importlib
import os
import stat
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from support.readers.libraries import builtin_open

FOLDER = "/fake/records"
COUNT, SIZE = 8, 64


def write_fake_records(files: Any) -> str:
    """COUNT fake files of SIZE bytes; file *i* holds *i*, *i* + 1, ..."""
    for number in range(COUNT):
        content = bytes(range(number, number + SIZE))
        files.create_file(f"{FOLDER}/{number:02}.rec", contents=content)
    return FOLDER


def by_path(path: str) -> bytes:
    return Path(path).read_text(encoding="latin-1").encode("latin-1")


def by_number(path: str) -> bytes:
    """By the functions of os, until nothing comes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(fd, 16), b""))
    finally:
        os.close(fd)


CODEC = "ptcp154"
"""No test imports it, and no library does."""
NEVER_IMPORTED = ("imported_in_the_reader", "imported_from_a_zip_file", f"encodings.{CODEC}")


def write_modules(folder: Path) -> list[str]:
    """Modules that nothing has imported; what must be on ``sys.path``."""
    assert not sys.modules.keys() & NEVER_IMPORTED
    (folder / f"{NEVER_IMPORTED[0]}.py").write_text("")
    with zipfile.ZipFile(folder / "modules.zip", "w") as archive:
        archive.writestr(f"{NEVER_IMPORTED[1]}.py", "")
    return [str(folder), str(folder / "modules.zip")]


def by_modules_of_its_own(path: str) -> bytes:
    """Like ``by_path``, with modules and a codec that it is the first to import."""
    for name in NEVER_IMPORTED[:2]:
        importlib.import_module(name)
    return Path(path).read_text(encoding=CODEC).encode(CODEC)


def by_look(path: str) -> bytes:
    """What a worker sees of things other than content, and the error of a read."""
    facts = [oct(stat.S_IMODE(os.stat("/fake/secret").st_mode)), os.getcwd()]
    facts += [os.readlink("/fake/link"), str(os.stat("/fake/twin").st_nlink)]
    try:
        builtin_open("/fake/secret")
    except OSError as error:
        facts.append(os.strerror(error.errno))
    return ";".join(facts).encode().ljust(SIZE)


class FakeRecords(Dataset[Any]):
    def __init__(self, folder: str = FOLDER, read: Callable[[str], bytes] = builtin_open) -> None:
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        self.read = read

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        data = self.read(path)
        if len(data) != SIZE:
            message = f"{path}: {len(data)} bytes, expected {SIZE}"
            raise ValueError(message)
        return torch.tensor(list(data), dtype=torch.uint8), os.path.getsize(path)
