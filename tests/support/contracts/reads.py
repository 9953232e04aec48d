"""Faults of reading, by each way to name, open and read a file, and by readers of formats."""

import mmap
from errno import EBADF, EIO, ESTALE
from functools import partial
from pathlib import Path
from typing import Any

from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    CorruptedFile,
    OpenError,
    ReadError,
    ShortRead,
    TruncatedFile,
)
from support.attempts import CONTENT
from support.contracts.row import RIGHT, Row, errno, text
from support.fake_datasets import by_number, by_path
from support.readers import CONTENT as NOISE
from support.readers import FORMATS, MAPPING, READERS
from support.tries import FAMILIES, WAYS

FLIPS = 9
KEPT = NOISE[: len(NOISE) // 4]
SHORTER = {
    "pillow_png": text("OSError: image file is truncated"),
    "pillow_tiff": text("UnidentifiedImageError: cannot identify image file"),
    "hdf5": text(rf"truncated file: eof = {len(KEPT)},"),
    "safetensors_file": text("SafetensorError: .* incomplete metadata, file not fully covered"),
}
# safetensors 0.8 calls every open(2) that fails "No such file or directory".
HIDDEN = text(r"FileNotFoundError: No such file or directory: .*/x\.rec")


def _mapped(path: str) -> bytes:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        return mapping[:]


def _by_pieces(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return b"".join(iter(lambda: file.read(99), b""))


EVERY_WAY = {**WAYS, **FAMILIES}
COPYING = {**EVERY_WAY, "mmap": _mapped, "pieces": _by_pieces}
"""A mapping gets a copy as every reader does; a disk error, it gets as a signal."""


def differing(data: bytes, content: bytes = CONTENT) -> list[int]:
    return [place for place, (a, b) in enumerate(zip(data, content, strict=True)) if a != b]


def _rows(ways: dict[str, Any], fault: Any, effect: Any) -> dict[str, Row]:
    return {name: Row(fault, way, effect) for name, way in ways.items()}


def _formats(fault: Any, effect: Any, *without: str, **others: Any) -> dict[str, Row]:
    """A row for each reader of a format; a library has *others* if it reports it its own way."""
    return {
        name: Row(
            fault, reader.read, others.get(name, effect), lambda path, r=reader: _write(r, path)
        )
        for name, reader in FORMATS.items()
        if name not in without
    }


def _write(reader: Any, path: str) -> None:
    reader.write_as(Path(path))


_OPEN = partial(OpenError, errno=ESTALE)
_WITHOUT_FREAD = {name: way for name, way in EVERY_WAY.items() if name != "fread"}
"""fopen(3) gives nothing that fread(3) could take."""
OPENS = {
    **_rows(_WITHOUT_FREAD, _OPEN, errno(ESTALE)),
    **_formats(_OPEN, errno(ESTALE), safetensors_file=HIDDEN),
}
READS = {
    **_rows(EVERY_WAY, ReadError, errno(EIO)),
    **_formats(
        ReadError,
        errno(EIO),
        *MAPPING,
        # A finding, as of NumPy 2.4: np.fromfile does not look at ferror(3).
        numpy_fromfile=lambda data, _: len(data) == len(NOISE) and data != NOISE,
    ),
}
CLOSES = {
    **_rows(EVERY_WAY, ClosedDescriptor, errno(EBADF)),
    **_formats(ClosedDescriptor, errno(EBADF)),
}
TRUNCATIONS = {
    **_rows(COPYING, partial(TruncatedFile, keep=50), CONTENT[:50]),
    **_formats(partial(TruncatedFile, keep=len(KEPT)), KEPT, **SHORTER),
}
_CORRUPT = partial(CorruptedFile, flips=FLIPS)
CORRUPTIONS = _rows(COPYING, _CORRUPT, lambda data, _: len(differing(data)) == FLIPS)
_BY_PYTHON = {
    **{name: READERS[name].read for name in ("builtin_open", "os_pread")},
    "by_path": by_path,
    "by_number": by_number,
}
IN_MEMORY = bytes(range(32, 232))
"""What a fake file holds: no end of line, which a text has in another form."""
OF_FAKE_FILES = {
    f"{kind}, {name}": Row(fault, way, effect, IN_MEMORY)
    for kind, (fault, effect) in {
        "open": (_OPEN, errno(ESTALE)),
        "read": (ReadError, errno(EIO)),
        "truncation": (partial(TruncatedFile, keep=50), IN_MEMORY[:50]),
        "corruption": (_CORRUPT, lambda data, _: len(differing(data, IN_MEMORY)) == FLIPS),
        "close": (ClosedDescriptor, errno(EBADF)),
    }.items()
    for name, way in _BY_PYTHON.items()
} | {"short read": Row(partial(ShortRead, max_bytes=3), by_number, RIGHT, IN_MEMORY)}
"""What Python's own functions read of pyfakefs' files."""
