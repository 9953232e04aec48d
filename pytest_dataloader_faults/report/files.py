"""Reports in files: which form by the name's ending, to and from the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.report import ci, html, markdown
from pytest_dataloader_faults.report.model import Report


def as_json(report: Report) -> str:
    """The report as JSON; see schema.json."""
    return json.dumps(report.to_dict(), indent=2) + "\n"


RENDERERS: dict[str, Callable[[Report], str]] = {
    ".gitlab.json": ci.of_gitlab,
    ".html": html.render,
    ".json": as_json,
    ".md": markdown.render,
}
"""The form of a report by the ending of its file's name; the first that fits."""


def require_known(path: str) -> str:
    """*path*, if there is a form for its ending."""
    if not path.endswith(tuple(RENDERERS)):
        message = f"report={path!r} must end in one of {', '.join(RENDERERS)}"
        raise InvalidArgumentError(message)
    return path


def write(report: Report, path: str) -> None:
    """Write *report* to *path*, in the form that the ending names; folders are made."""
    render = next(each for ending, each in RENDERERS.items() if path.endswith(ending))
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(render(report))


def read(path: str) -> Report:
    """The report in the file *path*, which is one of JSON."""
    with open(path, encoding="utf-8") as file:
        try:
            return Report.from_dict(json.load(file))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            message = f"{path} is no report of this plugin in JSON: {error}"
            raise InvalidArgumentError(message) from error
