"""Show the text of a failed check as it stands, since there is a test in it to copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def show(report: pytest.TestReport, error: pytest.ExceptionInfo[BaseException]) -> None:
    """Have *report* show the text of *error* without pytest's marks, and the line that raised it.

    Before each line of an error, pytest writes "E", so that nobody can copy what is in it.
    """
    text = error.getrepr(style="value", chain=False)
    if notes := getattr(error.value, "__notes__", ()):  # Hypothesis' falsifying example.
        text.addsection("notes", "\n".join(notes))
    users = [one for one in error.traceback if not (one.ishidden(error) or _is_unittests(one))]
    if users:
        text.addsection(f"raised at {os.path.relpath(users[-1].path)}:{users[-1].lineno + 1}", "")
    report.longrepr = text


def _is_unittests(entry: Any) -> bool:
    """Whether *entry* is of unittest, which a sub-test has no other frames than."""
    return "__unittest" in entry.frame.f_globals


def is_wanted(config: pytest.Config) -> bool:
    """Whether the user has not asked for more of a traceback than pytest shows by default."""
    option = config.option
    return not (option.fulltrace or option.showlocals or option.tbstyle == "native")
