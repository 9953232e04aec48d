"""Read and write report files; the suffix of the name selects the format."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
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
_ADVICE = "Pass a file that --dataloader-faults-report=NAME.json wrote"


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

    A file is replaced once the whole text is on the disk, and keeps its mode.
    """
    with _name_path_in_errors(path):
        target = os.path.realpath(path)
        with contextlib.suppress(FileExistsError):  # If a file is in its way, open(2) says so.
            os.makedirs(os.path.dirname(target))
        if os.path.exists(target):
            _require_regular(target)
            if not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        _replace(target, _encode(text))


def append_text(text: str, path: str) -> None:
    """Append *text* to the file *path*. An OSError names *path*."""
    with _name_path_in_errors(path):
        if os.path.exists(path):
            _require_regular(path)
        with open(path, "ab") as file:
            file.write(_encode(text))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="backslashreplace")


@contextlib.contextmanager
def _name_path_in_errors(path: str) -> Iterator[None]:
    """Make an OSError name *path* instead of the temporary file, which users do not know."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _replace(target: str, data: bytes) -> None:
    """Write *data* to a new file, with the mode of *target* if it exists, and rename it to that."""
    temporary = os.path.join(os.path.dirname(target), f".{os.getpid()}-{time.monotonic_ns()}.tmp")
    try:
        with open(temporary, "xb") as file:
            if os.path.exists(target):
                shutil.copymode(target, temporary)
            file.write(data)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _require_regular(path: str) -> None:
    """Raise an OSError if *path* is a file that cannot be replaced, or that might never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it must be a regular file, not a folder, a device or a pipe")


def read_json(path: str) -> Any:
    """Read *path*.

    Raises an OSError if it cannot be read, and an InvalidArgumentError if it does not contain JSON.
    """
    _require_regular(path)
    try:
        with open(path, encoding="utf-8-sig") as file:
            return json.load(file, object_pairs_hook=_reject_repeated_keys)
    except InvalidArgumentError:
        raise
    except ValueError as error:
        raise InvalidArgumentError(f"it is not valid JSON: {error}") from error
    except RecursionError:
        raise InvalidArgumentError("its lists and objects are nested too deeply") from None


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of *pairs*. Python would silently keep the last value of a repeated key."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        text = shorten(format_value(mapping))
        message = f"an object must not repeat a key, got {key!r} more than once in {text}"
        raise InvalidArgumentError(message)
    return mapping


def read(path: str) -> Report:
    """Read the report *path*. Errors name *path*."""
    try:
        return Report.from_dict(read_json(path))
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}. {_ADVICE}"
        raise InvalidArgumentError(message) from error
    except InvalidArgumentError as error:
        message = f"{path} is not a JSON report written by this plugin: {error}. {_ADVICE}"
        raise InvalidArgumentError(message) from None
