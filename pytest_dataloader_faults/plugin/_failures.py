"""How failures are reported: in full once, without frames of this package, and ready to copy.

If a dataset cannot be tested, one item reports the reason in full, and the others refer to it.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from types import TracebackType

import pytest

from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    DataLoaderFaultsError,
    HarnessError,
    LostProcessError,
    UnusableEnvironmentError,
)
from pytest_dataloader_faults.exceptions import _shorten as shorten
from pytest_dataloader_faults.plugin import _items

_PACKAGE = __name__.partition(".")[0]
_PYTEST = ("_pytest", "pluggy")
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_OUR_ERRORS = f"{DataLoaderFaultsError.__module__}."
_first_items = pytest.StashKey[dict[Hashable, str]]()
CALLED = pytest.StashKey[bool]()
"""Whether the check of an item was called."""
NOT_RUN = pytest.StashKey[str]()
"""Why an item was skipped, and its check did not run."""


def first_items(node: pytest.Item) -> dict[Hashable, str]:
    """The id of the item that reports a mistake in full, by what the mistake is about."""
    return node.config.stash.setdefault(_first_items, {})


def prepare(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Change the error of *call* to what pytest should report."""
    assert call.excinfo is not None
    error = call.excinfo.value
    if isinstance(error, DataLoaderFaultsError) and not (
        isinstance(error, HarnessError) and not isinstance(error, LostProcessError)
    ):
        error.__suppress_context__ = True
        call.excinfo = pytest.ExceptionInfo.from_exception(_without_own_frames(error))
    if not _items.runs_check(item) or call.when == "teardown":
        return
    replacement: BaseException | None = None
    if isinstance(error, LostProcessError):  # All of its frames are ours.
        replacement = pytest.fail.Exception(str(error), pytrace=False)
    elif isinstance(error, UnusableEnvironmentError):
        first = first_items(item).setdefault(error.lacking, item.nodeid)
        text = f"{error.lacking}: see {first}. No dataset was judged"
        text = str(error) if first == item.nodeid else text
        replacement = pytest.fail.Exception(text, pytrace=False)
    elif isinstance(error, (Exception, pytest.fail.Exception)):
        is_late = item.stash.get(CALLED, False)
        replacement = None if is_late else _refer_to_first(item, call.excinfo)
    if replacement:
        call.excinfo = pytest.ExceptionInfo.from_exception(
            replacement.with_traceback(error.__traceback__)
        )


def _refer_to_first(
    item: pytest.Item, error: pytest.ExceptionInfo[BaseException]
) -> BaseException | None:
    """Skip *item* if it fails before its check for the same reason as another item of its test."""
    *_, entry = error.traceback
    about = _items.test_of(item), error.typename, str(entry.path), entry.lineno
    first = first_items(item).setdefault(about, item.nodeid)
    if first == item.nodeid:
        return None
    text = f"not run, because the test failed before its check: see {first}"
    item.stash[NOT_RUN] = text
    skipped = pytest.skip.Exception(text)
    skipped._use_item_location = True  # Otherwise, this line is reported.
    return skipped


def _without_own_frames(error: BaseException) -> BaseException:
    """*error* with a traceback that ends where the user's code called this package."""
    entries = list(_entries(error.__traceback__))
    packages = list(map(_package_of, entries))
    outer = [place for place, package in enumerate(packages) if package in _PYTEST]
    start = outer[-1] + 1 if outer else 0
    end = packages.index(_PACKAGE, start) if _PACKAGE in packages[start:] else len(packages)
    while end > start and packages[end - 1] == "torch":  # The frames of a loop over a loader.
        end -= 1
    traceback: TracebackType | None = None
    for entry in reversed(entries[start:end]):
        traceback = TracebackType(traceback, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return error.with_traceback(traceback) if traceback else error


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _package_of(entry: TracebackType) -> str:
    """The package of the code of *entry*: the constructor of a dataclass is not in a file."""
    name: str = entry.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def show(
    item: pytest.Item, report: pytest.TestReport, error: pytest.ExceptionInfo[BaseException]
) -> None:
    """Have *report* show *error* in full once, and in pytest's short summary in one line.

    In CI and with -vv, pytest repeats the whole message there. It stands above, and in JUnit files.
    """
    values = [item.config.getoption(name, default=False) for name in ("fulltrace", "showlocals")]
    is_usual = item.config.getoption("tbstyle", default="auto") not in {"native", "line"}
    if isinstance(error.value, CheckFailedError) and is_usual and not any(values):
        _show_unprefixed(report, error)
    if not (crash := getattr(report.longrepr, "reprcrash", None)):
        return
    runs_check, is_own = _items.runs_check(item), crash.path.startswith(_FOLDER)
    if runs_check and is_own:
        path, line, _ = item.reportinfo()
        crash.path, crash.lineno = os.fspath(path), (line or 0) + 1
    if runs_check or is_own or isinstance(error.value, DataLoaderFaultsError):
        crash.message = shorten(first_line(crash.message))


def _show_unprefixed(report: pytest.TestReport, error: pytest.ExceptionInfo[BaseException]) -> None:
    """Make *report* show *error* without pytest's marks, and the line that raised it.

    pytest prefixes each line of an error with E, which breaks copying.
    """
    text = error.getrepr(style="value", chain=False)
    if notes := getattr(error.value, "__notes__", ()):  # Hypothesis' falsifying example.
        text.addsection("notes", "\n".join(notes))
    place = error.traceback[-1]
    text.addsection(f"raised at {os.path.relpath(place.path)}:{place.lineno + 1}", "")
    report.longrepr = text


def first_line(message: str) -> str:
    """The first line of the *message* of an error, without a class that explains nothing."""
    from pytest_dataloader_faults.outcomes.text import headline

    line = headline(message.strip())
    return line.removeprefix(_OUR_ERRORS).removeprefix("Failed: ")
