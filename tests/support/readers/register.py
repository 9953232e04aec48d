"""The register: for each reader, how its file is written and read, and what to expect of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 256
CONTENT: bytes = np.random.default_rng(0).integers(0, 256, SIDE * SIDE, dtype=np.uint8).tobytes()
"""64 KiB, 16 pages; noise, so that half of a compressed file is half of its content."""
COUNT = 16
"""The records of a content."""
STANDARD = "Python"


def split(content: bytes) -> list[bytes]:
    size = len(content) // COUNT
    return [content[start : start + size] for start in range(0, len(content), size)]


def values(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def raw(path: str, content: bytes = CONTENT) -> None:
    Path(path).write_bytes(content)


@dataclass(frozen=True)
class Reader:
    """A way to read a file.

    Attributes:
        shown: How users call it; "" if the page about readers leaves it out.
        package: The distribution it comes from.
        file: The name of its file or folder.
        write: Makes that file, of CONTENT or of the bytes that are its second argument.
        read: What the file at a path or a URL holds; None if the library returned nothing.
        key: Its name in the register.
        server: What serves its file: "http", "s3", or "" if it reads local files.
        content: What the file holds.
        hit: Which files the faults are about, where there is more than one.
        exact: Whether what is read is CONTENT; a lossy format gives something near it.
        decodes: Whether it raises an error for every file that is too short.
        pure: Whether it is Python down to the file.
        python: The oldest Python that the library's release runs on.

    """

    shown: str
    package: str
    file: str
    write: Callable[..., object]
    read: Callable[[str], Any]
    key: str
    server: str = ""
    content: bytes = CONTENT
    hit: str = "*"
    exact: bool = True
    decodes: bool = False
    pure: bool = False
    python: tuple[int, int] = (3, 10)

    @property
    def is_raw(self) -> bool:
        """Whether the format does not store a length, so that a shorter file is valid."""
        return self.write is raw

    def write_as(self, path: Path, content: bytes | None = None) -> None:
        """Write its file under any name: its extension says the format to some writers."""
        file = path.with_name(self.file)
        self.write(str(file), self.content if content is None else content)
        file.rename(path)


READERS: dict[str, Reader] = {}


def reads(
    shown: str = "",
    package: str = STANDARD,
    file: str = "x.bin",
    write: Callable[..., object] = raw,
    **options: Any,
):
    """Enter a function into READERS, by its name unless *options* have a key."""

    def enter(read: Callable[[str], Any]) -> Callable[[str], Any]:
        reader = Reader(shown, package, file, write, read, **{"key": read.__name__, **options})
        assert reader.key not in READERS
        READERS[reader.key] = reader
        return read

    return enter
