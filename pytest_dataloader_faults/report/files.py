"""Reports in files: which form by the name's ending, to and from the disk."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable
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
    """Write *text* to *path*; folders are made.

    What is there stays until the whole text is on the disk. An OSError names *path*.
    """
    target = os.path.realpath(path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):  # It names the other file, which nobody knows.
            raise OSError(error.errno, error.strerror, path) from error
        raise


def read_json(path: str) -> Any:
    """What is in the file *path*.

    Raises:
        OSError: It cannot be read.
        InvalidArgumentError: It holds no JSON.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file, object_pairs_hook=_with_each_key_once)
    except InvalidArgumentError:
        raise
    except ValueError as error:
        raise InvalidArgumentError(f"it is not JSON: {error}") from error
    except RecursionError:
        raise InvalidArgumentError("its lists and objects are nested too deeply") from None


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of *pairs*. Python would keep the last value of a key without a word."""
    made = dict(pairs)
    if len(made) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        message = (
            f"an object must have each key once, got {key!r} several times in {cut(shown(made))}"
        )
        raise InvalidArgumentError(message)
    return made


def read(path: str) -> Report:
    """The report in the file *path*, which is one of JSON."""
    try:
        return Report.from_dict(read_json(path))
    except InvalidArgumentError as error:
        message = f"{path} is not a JSON report written by this plugin: {error}. {_ADVICE}"
        raise InvalidArgumentError(message) from None
