"""Read and write report files; the suffix of the name selects the format."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from typing import Any

from pytest_dataloader_faults.exceptions import InvalidArgumentError
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
    if os.path.splitext(path)[1] not in RENDERERS:
        message = f"report={path!r} must end in one of {', '.join(RENDERERS)}"
        raise InvalidArgumentError(message)
    return path


def write(report: Report, path: str) -> None:
    """Write *report* to *path*, in the format that the suffix selects."""
    write_text(RENDERERS[os.path.splitext(path)[1]](report), path)


def write_text(text: str, path: str) -> None:
    """Write *text* to *path*, and create missing folders. An OSError names *path*.

    A file is replaced once the whole text is on the disk, and keeps its mode.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f".{os.getpid()}.tmp")
    try:
        with contextlib.suppress(FileExistsError):  # If a file is in its way, open(2) says so.
            os.makedirs(folder)
        if os.path.exists(target):
            _require_replaceable(target)
        with open(temporary, "wb") as file:
            if os.path.exists(target):
                shutil.copymode(target, temporary)
            file.write(text.encode("utf-8", errors="backslashreplace"))
        os.replace(temporary, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        with contextlib.suppress(OSError):  # Of a temporary file that was renamed.
            os.unlink(temporary)


def _require_replaceable(path: str) -> None:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it must be a regular file, not a folder, a device or a pipe")
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def read_json(path: str) -> Any:
    """Read *path*. Raises an OSError, or an InvalidArgumentError if it is not JSON."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return json.load(file)
    except ValueError as error:
        raise InvalidArgumentError(f"it is not valid JSON: {error}") from error


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
