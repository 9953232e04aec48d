"""Faults of files of odd names, of odd sizes, and on odd ways to them."""

import mmap
import os
import tempfile
from collections.abc import Callable
from errno import EBADF, EIO
from functools import partial
from pathlib import Path
from typing import Any

from pytest_dataloader_faults.faults import ClosedDescriptor, OpenError, ReadError, TruncatedFile
from support.attempts import CONTENT
from support.contracts.row import Row, errno
from support.tries import WAYS, direct

NAMES = [
    b"with a space .rec",
    b" [1-2]?*{x}.rec",
    b"two\nlines.rec",
    b"carriage\rreturn\ttab.rec",
    b"back\\slash.rec",
    b"latin \xe9\xff.rec",
    "\N{SNOWMAN} \N{GRINNING FACE}.rec".encode(),
    b"x" * 251 + b".rec",
]
KINDS = {
    OpenError: errno(EIO),
    ReadError: errno(EIO),
    TruncatedFile: CONTENT[:100],
    ClosedDescriptor: errno(EBADF),
}
GB = 1 << 30
ALIGNED = b"a" * 4096 + b"b" * 4096


def _has_direct_reads() -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.write(ALIGNED)
        file.flush()
        try:
            return direct(file.name) == ALIGNED
        except OSError:
            return False


def _write_sparse(size: int) -> Callable[[str], None]:
    """A file of which next to nothing is on the disk: "middle" at 1 GiB, and "end"."""

    def write(path: str) -> None:
        with open(path, "wb") as file:
            file.seek(GB)
            file.write(b"middle")
            file.seek(size - 3)
            file.write(b"end")

    return write


def _last_by_pread(path: str) -> Any:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, 100, 5 * GB - 3), os.fstat(fd).st_size
    finally:
        os.close(fd)


def _last_by_mapping(path: str) -> Any:
    """The same, of a mapping that begins beyond 4 GiB, after a read that fails."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), 65536, access=mmap.ACCESS_READ, offset=size - 65536) as data:
            return data[-3:], size, os.pread(file.fileno(), 3, size - 3)


def _inside(path: str) -> Any:
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        inside = os.pread(file.fileno(), 8, GB - 1)
        return status.st_size, status.st_blocks * 512 < 1 << 24, inside


def _write_roundabout(path: str) -> None:
    """The parent of a linked folder is that of the folder, not that of the link."""
    folder = Path(path).parent
    (folder / "far" / "folder").mkdir(parents=True)
    (folder / "far" / "file.rec").write_bytes(b"the kernel's")
    (folder / "file.rec").write_bytes(b"taken by the letters")
    (folder / "link").symlink_to(folder / "far" / "folder")


def _by_roundabout(way: str, path: str) -> Any:
    return WAYS[way](os.path.join(os.path.dirname(path), "link", "..", "file.rec"))


def _open_again(path: str) -> bytes:
    with open(path, "rb") as file, open(f"/proc/self/fd/{file.fileno()}", "rb") as again:
        return again.read()


_HALF = partial(TruncatedFile, keep=0.5)
ODD_PATHS = {
    **{
        f"{kind.__name__} of {name!r}": Row(kind, WAYS["pread"], effect, name=os.fsdecode(name))
        for name in NAMES
        for kind, effect in KINDS.items()
    },
    **{
        f"{kind.__name__} of bytes": Row(
            kind, lambda path: WAYS["pread"](os.fsencode(path)), effect, name=os.fsdecode(NAMES[5])
        )
        for kind, effect in KINDS.items()
    },
    # Past the page cache there is a system call like any other. A substitute has any length.
    **{
        f"{kind.__name__}, O_DIRECT": Row(kind, direct, effect, ALIGNED)
        for kind, effect in {**KINDS, TruncatedFile: ALIGNED[:4096]}.items()
        if _has_direct_reads()
    },
    "beyond 4 GiB": Row(ReadError, _last_by_pread, errno(EIO), _write_sparse(5 * GB)),
    "mapped beyond 4 GiB": Row(OpenError, _last_by_mapping, errno(EIO), _write_sparse(5 * GB)),
    "sparse": Row(_HALF, _inside, (3 * GB // 2, True, b"\0middle\0"), _write_sparse(3 * GB)),
    **{
        f"roundabout {way}": Row(
            partial(TruncatedFile, keep=3), partial(_by_roundabout, way), b"the", _write_roundabout
        )
        for way in ("pread", "read", "thread")
    },
    "opened again": Row(ReadError, _open_again, errno(EIO)),
}
