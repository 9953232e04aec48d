"""Reports in files: which form by the name's ending, to and from the disk."""

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
from pytest_dataloader_faults.outcomes.text import cut, shown
from pytest_dataloader_faults.report import ci, html
from pytest_dataloader_faults.report.model import Report


def as_json(report: Report) -> str:
    """The report as JSON; see schema.json."""
    return json.dumps(report.to_dict(), indent=2) + "\n"


RENDERERS: dict[str, Callable[[Report], str]] = {
    ".gitlab.json": ci.of_gitlab,
    ".html": html.render,
    ".json": as_json,
    ".md": ci.render,
}
"""The form of a report by the ending of its file's name; the first that fits."""
_ADVICE = "Pass a file that --dataloader-faults-report=NAME.json wrote"
_PATIENCE = 30
"""Seconds to wait for the process at the other end of a FIFO."""
_CHUNK = 1 << 16


def require_known(path: str) -> str:
    """*path*, if there is a form for its ending."""
    if not path.endswith(tuple(RENDERERS)):
        message = f"report={path!r} must end in one of {', '.join(RENDERERS)}"
        raise InvalidArgumentError(message)
    return path


def write(report: Report, path: str) -> None:
    """Write *report* to *path*, in the form that the ending names."""
    render = next(each for ending, each in RENDERERS.items() if path.endswith(ending))
    write_text(render(report), path)


def write_text(text: str, path: str) -> None:
    """Write *text* to *path*, in folders that are made if necessary. An OSError names *path*.

    A regular file is replaced once the whole text is on the disk, and keeps its owner and its mode.
    Its other hard links keep the former text: whoever made them may want to have it. Devices, FIFOs
    and the files of standard output and standard error are written to.
    """
    data = text.encode("utf-8", errors="backslashreplace")
    with _error_of(path):
        target = os.path.realpath(path)
        _make_folder(os.path.dirname(target))
        fd = _opened(path)
        if fd is None:
            _replace(target, data, None)
            return
        with open(fd, "wb", buffering=0):
            former = os.fstat(fd)
            if not (_is_replaceable(former, target) and _is_replaced(target, data, former)):
                _write_all(_output(former) or fd, data)


def _make_folder(path: str) -> None:
    """Make the folder *path*, and those above it."""
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error


def append_text(text: str, path: str) -> None:
    """Write *text* to the end of the file *path*. An OSError names it."""
    flags = os.O_CREAT | _FLAGS
    with _error_of(path), open(os.open(path, flags, 0o666), "wb", buffering=0) as file:
        _write_all(file.fileno(), text.encode("utf-8", errors="backslashreplace"))


@contextlib.contextmanager
def _error_of(path: str) -> Iterator[None]:
    """Have an OSError name *path*, and not the temporary file, which nobody knows."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, _explained(error, path), path) from error


_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
"""Without O_NONBLOCK, open(2) waits until somebody reads a FIFO."""


def _opened(path: str) -> int | None:
    """A descriptor of *path*, of which nothing is changed yet; None if there is no such file."""
    try:
        return os.open(path, _FLAGS)
    except FileNotFoundError:
        return None


def _is_replaceable(former: os.stat_result, target: str) -> bool:
    """Whether a new file may take the place of *former*, which may have no name or be in use."""
    if not stat.S_ISREG(former.st_mode) or _output(former) is not None:
        return False
    with contextlib.suppress(OSError):
        return os.path.samestat(former, os.stat(target))
    return False


def _output(former: os.stat_result) -> int | None:
    """The descriptor by which this process prints to the file *former*, as behind /dev/stdout.

    It has an offset of its own, so what another descriptor writes would be overwritten.
    """
    for fd in (1, 2) if stat.S_ISREG(former.st_mode) else ():
        with contextlib.suppress(OSError):
            if os.path.samestat(former, os.fstat(fd)):
                return fd
    return None


_NOT_HERE = {errno.EACCES, errno.EPERM, errno.EBUSY}
"""What a folder that takes no new file answers, and a file that is a mount point, as in Docker."""


def _is_replaced(target: str, data: bytes, former: os.stat_result) -> bool:
    """Replace *former*, or else empty it, because no other file can take its place."""
    try:
        _replace(target, data, former)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        os.truncate(target, 0)
        return False
    return True


def _replace(target: str, data: bytes, former: os.stat_result | None) -> None:
    """Write *data* to a new file, and give it the name *target*, and what *former* had."""
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
    """Write *data* to *fd*, which does not block: wait for its reader, but not forever."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    rest = memoryview(data)
    while rest:
        if not poll.poll(_PATIENCE * 1000):
            raise TimeoutError(errno.ETIMEDOUT, f"its reader has read nothing for {_PATIENCE} s")
        with contextlib.suppress(BlockingIOError):  # Another writer was faster.
            rest = rest[os.write(fd, rest) :]


def _explained(error: OSError, path: str) -> str | None:
    """What *error* says, and what to do about a FIFO."""
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


def read_json(path: str, *, may_be_fifo: bool = False) -> Any:
    """What the regular file *path* holds, or a FIFO, such as that of a shell's ``<(command)``.

    Raises:
        OSError: It cannot be read.
        InvalidArgumentError: It is no such file, or holds no JSON.
    """
    mode = os.stat(path).st_mode
    is_fifo = may_be_fifo and stat.S_ISFIFO(mode)
    if not is_fifo and (kind := _KINDS.get(stat.S_IFMT(mode))):
        message = f"it must be a regular file, got {kind}"
        raise InvalidArgumentError(message)
    try:
        with open(path, "rb", opener=_open_for_reading) as file:
            data = _read_fifo(file.fileno()) if is_fifo else file.read()
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_with_each_key_once)
    except InvalidArgumentError:
        raise
    except ValueError as error:
        raise InvalidArgumentError(f"it is not JSON: {error}") from error
    except RecursionError:
        raise InvalidArgumentError("its lists and objects are nested too deeply") from None


def _open_for_reading(path: str, flags: int) -> int:
    """Open *path* without waiting until somebody writes to a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read_fifo(fd: int) -> bytes:
    """All that is written to *fd*: wait for its writer, but not forever."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    parts: list[bytes] = []
    while poll.poll(_PATIENCE * 1000):
        with contextlib.suppress(BlockingIOError):  # Another reader was faster.
            parts.append(os.read(fd, _CHUNK))
            if not parts[-1]:
                return b"".join(parts)
    raise TimeoutError(errno.ETIMEDOUT, f"nothing was written to this FIFO for {_PATIENCE} s")


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of *pairs*. Python would keep the last value of a key without a word."""
    made = dict(pairs)
    if len(made) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        message = (
            f"an object must have each key once, got {key!r} more than once in {cut(shown(made))}"
        )
        raise InvalidArgumentError(message)
    return made


def read(path: str) -> Report:
    """The report in the file *path*, which is one of JSON."""
    try:
        return Report.from_dict(read_json(path, may_be_fifo=True))
    except InvalidArgumentError as error:
        message = f"{path} is not a JSON report written by this plugin: {error}. {_ADVICE}"
        raise InvalidArgumentError(message) from None
