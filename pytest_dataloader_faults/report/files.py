"""Read and write report files; the suffix of the name selects the format."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.text import format_value, shorten
from pytest_dataloader_faults.report import ci, html
from pytest_dataloader_faults.report.model import Report


def as_json(report: Report) -> str:
    """Return the report as JSON; see schema.json."""
    return json.dumps(report.to_dict(), indent=2) + "\n"


RENDERERS: dict[str, Callable[[Report], str]] = {
    ".html": html.render,
    ".json": as_json,
    ".md": ci.render,
}
"""The format of a report by the suffix of its file."""
_ADVICE = "Pass a file that --dataloader-faults-report=NAME.json wrote, or a baseline"
_PATIENCE = 30
"""Seconds to wait for the process at the other end of a FIFO."""
_CHUNK = 1 << 16


def require_format(path: str) -> str:
    """Return *path* if its suffix selects a format."""
    if not path.endswith(tuple(RENDERERS)):
        message = f"report={path!r} must end in one of {', '.join(RENDERERS)}"
        raise InvalidArgumentError(message)
    return path


def write(report: Report, path: str) -> None:
    """Write *report* to *path*, in the format that the suffix selects."""
    render = next(each for ending, each in RENDERERS.items() if path.endswith(ending))
    write_text(render(report), path)


def write_text(text: str, path: str) -> None:
    """Write *text* to *path*, and create missing folders. An OSError names *path*.

    A regular file is replaced once the whole text is on the disk, and keeps its owner and its mode.
    Its other hard links keep the former text: they may have been made to keep it. Devices, FIFOs
    and the files of standard output and standard error are written to.
    """
    data = text.encode("utf-8", errors="backslashreplace")
    with _name_path_in_errors(path):
        target = os.path.realpath(path)
        _make_folder(os.path.dirname(target))
        fd = _open_existing(path)
        if fd is None:
            _replace(target, data, None)
            return
        with open(fd, "wb", buffering=0):
            former = os.fstat(fd)
            if not (_is_replaceable(former, target) and _replace_or_empty(target, data, former)):
                _write_all(_standard_descriptor(former) or fd, data)


def _make_folder(path: str) -> None:
    """Create the folder *path* and its parents."""
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error


def append_text(text: str, path: str) -> None:
    """Append *text* to the file *path*. An OSError names *path*."""
    flags = os.O_CREAT | _FLAGS
    with _name_path_in_errors(path), open(os.open(path, flags, 0o666), "wb", buffering=0) as file:
        _write_all(file.fileno(), text.encode("utf-8", errors="backslashreplace"))


@contextlib.contextmanager
def _name_path_in_errors(path: str) -> Iterator[None]:
    """Make an OSError name *path* instead of the temporary file, which users do not know."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, _explain(error, path), path) from error


_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
"""Without O_NONBLOCK, open(2) waits for a reader of a FIFO."""


def _open_existing(path: str) -> int | None:
    """Open *path* without changing it; None if the file does not exist."""
    try:
        return os.open(path, _FLAGS)
    except FileNotFoundError:
        return None


def _is_replaceable(former: os.stat_result, target: str) -> bool:
    """Whether a new file may replace *former*, which may have no name or be in use."""
    if not stat.S_ISREG(former.st_mode) or _standard_descriptor(former) is not None:
        return False
    with contextlib.suppress(OSError):
        return os.path.samestat(former, os.stat(target))
    return False


def _standard_descriptor(former: os.stat_result) -> int | None:
    """Return the descriptor with which this process prints to *former*, as for /dev/stdout.

    It has its own offset, so what another descriptor writes would be overwritten.
    """
    for fd in (1, 2) if stat.S_ISREG(former.st_mode) else ():
        with contextlib.suppress(OSError):
            if os.path.samestat(former, os.fstat(fd)):
                return fd
    return None


_NOT_HERE = {errno.EACCES, errno.EPERM, errno.EBUSY}
"""Errors of a read-only folder, and of a file that is a mount point, as in Docker."""


def _replace_or_empty(target: str, data: bytes, former: os.stat_result) -> bool:
    """Replace *former*, or truncate it if no other file can replace it."""
    try:
        _replace(target, data, former)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        os.truncate(target, 0)
        return False
    return True


def _replace(target: str, data: bytes, former: os.stat_result | None) -> None:
    """Write *data* to a new file, named *target*, with the mode and owner of *former*."""
    temporary = os.path.join(os.path.dirname(target), f".{os.getpid()}-{time.monotonic_ns()}.tmp")
    mode = 0o666 if former is None else 0o600
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            if former is not None:
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), former.st_uid, former.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(former.st_mode))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _write_all(fd: int, data: bytes) -> None:
    """Write *data* to *fd*, which does not block: wait for its reader up to a limit."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    unwritten = memoryview(data)
    while unwritten:
        if not poll.poll(_PATIENCE * 1000):
            raise TimeoutError(errno.ETIMEDOUT, f"its reader has read nothing for {_PATIENCE} s")
        with contextlib.suppress(BlockingIOError):  # Another writer was faster.
            unwritten = unwritten[os.write(fd, unwritten) :]


def _explain(error: OSError, path: str) -> str | None:
    """Return the message of *error*, with advice for a FIFO."""
    with contextlib.suppress(OSError):
        if error.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(path).st_mode):
            return "no process reads this FIFO. Start its reader first"
    return error.strerror


_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def _read_json(path: str, *, may_be_fifo: bool) -> Any:
    """Read JSON from the regular file *path*, or from a FIFO such as a shell's ``<(command)``.

    Raises:
        OSError: The file cannot be read.
        InvalidArgumentError: It is another kind of file, or does not contain JSON.
    """
    mode = os.stat(path).st_mode
    is_fifo = may_be_fifo and stat.S_ISFIFO(mode)
    if not is_fifo and (kind := _KINDS.get(stat.S_IFMT(mode))):
        message = f"it must be a regular file, got {kind}"
        raise InvalidArgumentError(message)
    try:
        with open(path, "rb", opener=_open_for_reading) as file:
            data = _read_fifo(file.fileno()) if is_fifo else file.read()
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_reject_repeated_keys)
    except InvalidArgumentError:
        raise
    except ValueError as error:
        raise InvalidArgumentError(f"it is not valid JSON: {error}") from error
    except RecursionError:
        raise InvalidArgumentError("its lists and objects are nested too deeply") from None


def _open_for_reading(path: str, flags: int) -> int:
    """Open *path* without waiting for a writer of a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read_fifo(fd: int) -> bytes:
    """Read everything from *fd*: wait for its writer up to a limit."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    parts: list[bytes] = []
    while poll.poll(_PATIENCE * 1000):
        with contextlib.suppress(BlockingIOError):  # Another reader was faster.
            parts.append(os.read(fd, _CHUNK))
            if not parts[-1]:
                return b"".join(parts)
    raise TimeoutError(errno.ETIMEDOUT, f"nothing was written to this FIFO for {_PATIENCE} s")


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of *pairs*. Python would silently keep the last value of a repeated key."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        text = shorten(format_value(mapping))
        message = f"an object must not repeat a key, got {key!r} more than once in {text}"
        raise InvalidArgumentError(message)
    return mapping


def load(path: str, *, may_be_fifo: bool = False) -> Report:
    """Read the report or baseline *path*; raises the errors of ``_read_json`` and ``from_dict``."""
    return Report.from_dict(_read_json(path, may_be_fifo=may_be_fifo))


def read(path: str) -> Report:
    """Read the report or baseline *path*, which may be a FIFO. Errors name *path*."""
    try:
        return load(path, may_be_fifo=True)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}. {_ADVICE}"
        raise InvalidArgumentError(message) from error
    except InvalidArgumentError as error:
        message = f"{path} is not a JSON report written by this plugin: {error}. {_ADVICE}"
        raise InvalidArgumentError(message) from None
