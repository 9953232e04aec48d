"""How failures are reported: in full once, without frames of this package, and fit to be copied.

Why nothing can be tried is reported in full by one item; the others say where that is to read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Hashable, Iterator
from types import TracebackType
from typing import Any

import pytest

from pytest_dataloader_faults.exceptions import LostProcessError, UnusableEnvironmentError
from pytest_dataloader_faults.exceptions import _for_log as for_log
from pytest_dataloader_faults.plugin import _options

_PACKAGE = __name__.partition(".")[0]
_PYTEST = ("_pytest", "pluggy")
_first_items = pytest.StashKey[dict[Hashable, str]]()
"""What is wrong with what, and the id of the item that reports it in full."""
_BEFORE_ITS_CHECK = "not asked, for the test fails before its check"


class Report:
    """Why something cannot be tried: the item that says so in full, which may be this one."""

    def __init__(self, node: pytest.Item, about: Hashable) -> None:
        self._node = node
        self.about = about
        self._first = node.config.stash.setdefault(_first_items, {})

    @property
    def elsewhere(self) -> str | None:
        """The id of the item that has reported it, if it is another one."""
        first = self._first.get(self.about)
        return None if first == self._node.nodeid else first

    def is_here(self) -> None:
        """From now on, other items refer to this one, unless there was one before."""
        self._first.setdefault(self.about, self._node.nodeid)

    def is_gone(self) -> None:
        """What was reported here is not so any more: the item was run again, and goes well."""
        self._first.pop(self.about, None)


def about_call(node: pytest.Item, *call: Hashable) -> Report:
    """The report on one *call* of ``fault_check`` in the test of *node*, for all of its items."""
    given = getattr(getattr(node, "callspec", None), "params", {})
    # All items of a test share its parameters, which live as long as the items do.
    others = frozenset((name, id(value)) for name, value in given.items() if name != "fault_check")
    parent = node.parent.nodeid if node.parent else ""
    return Report(node, (parent, getattr(node, "originalname", node.name), others, *call))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Of all items of a test whose fixture fails, one says why."""
    with _mistake_reported_once(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Of all items of a test that fails before its check, one says why."""
    with _mistake_reported_once(item):
        yield


@contextlib.contextmanager
def _mistake_reported_once(node: pytest.Item) -> Iterator[None]:
    """Skip *node* if it fails before its check, and another item of its test did so likewise."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        if not _options.asks_check(node) or _options.CALLED in node.stash:
            raise
        *_, last = _entries(error.__traceback__)
        place = last.tb_frame.f_code.co_filename, last.tb_lineno
        report = about_call(node, type(error).__name__, place)
        report.is_here()
        if report.elsewhere is None:
            raise
        node.stash[_options.NOT_ASKED] = text = f"{_BEFORE_ITS_CHECK}: see {report.elsewhere}"
        skipped = pytest.skip.Exception(text)
        skipped._use_item_location = True  # Else, it would be this line.
        raise skipped from None


@contextlib.contextmanager
def shortage_reported_once(node: pytest.Item) -> Iterator[None]:
    """Fail *node* without a traceback where the machine lacks something: in full once.

    A trial that lost a process is told without one, too: its lines would all be of this package.
    """
    try:
        yield
    except LostProcessError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    except UnusableEnvironmentError as error:
        text = str(error)
        report = Report(node, error.lacking)
        report.is_here()
        if report.elsewhere:
            text = f"{error.lacking}: see {report.elsewhere}. No dataset was judged"
        raise pytest.fail.Exception(text, pytrace=False) from None


def without_our_frames(error: BaseException) -> BaseException:
    """*error* with a traceback that ends where the user's code called this package."""
    entries = list(_entries(error.__traceback__))
    outer = [number for number, entry in enumerate(entries) if _top_of(entry) in _PYTEST]
    users = list(itertools.takewhile(_is_not_ours, entries[outer[-1] + 1 if outer else 0 :]))
    while users and _top_of(users[-1]) == "torch":  # Of a loop over a loader.
        users.pop()
    made: TracebackType | None = None
    for entry in reversed(users):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return error.with_traceback(made) if made else error


def place_of(error: BaseException) -> str:
    """Where the user's code raised *error* when it was imported, to be put behind its text."""
    others = {*_PYTEST, "importlib", _PACKAGE}
    for entry in reversed(list(_entries(error.__traceback__))):
        if _top_of(entry) not in others:
            return f" at {entry.tb_frame.f_code.co_filename}:{entry.tb_lineno}"
    return ""


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_not_ours(entry: TracebackType) -> bool:
    """By the module: a constructor that a dataclass has made is in no file."""
    return _top_of(entry) != _PACKAGE


def _top_of(entry: TracebackType) -> str:
    """The name of the package that the code of *entry* belongs to."""
    name: str = entry.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def show_as_it_stands(
    report: pytest.TestReport, error: pytest.ExceptionInfo[BaseException]
) -> None:
    """Have *report* show the text of *error* without pytest's marks, and the line that raised it.

    pytest prefixes each line of an error with E, which breaks copying.
    """
    text = error.getrepr(style="value", chain=False)
    if notes := getattr(error.value, "__notes__", ()):  # Hypothesis' falsifying example.
        text.addsection("notes", "\n".join(notes))
    users = [one for one in error.traceback if not one.ishidden(error)]
    if users:
        text.addsection(f"raised at {os.path.relpath(users[-1].path)}:{users[-1].lineno + 1}", "")
    report.longrepr = text


def may_stand_as_it_is(config: pytest.Config) -> bool:
    """Whether the user has not asked for more of a traceback than pytest shows by default."""
    asks_for_more = any(
        config.getoption(name, default=False) for name in ("fulltrace", "showlocals")
    )
    return not asks_for_more and _style(config) not in {"native", "line"}


def is_one_line(config: pytest.Config) -> bool:
    """Whether the user wants one line of each failure."""
    return _style(config) == "line"


def _style(config: pytest.Config) -> str:
    """What ``--tb`` asks for."""
    style: str = config.getoption("tbstyle", default="auto")
    return style


def write_line(reporter: pytest.TerminalReporter, text: str, **markup: bool) -> None:
    """Write a line of this plugin's, which may quote the user's data."""
    reporter.write_line(for_log(text), **markup)


def disarm_commands(report: pytest.TestReport) -> None:
    """Have a log of GitHub read nothing in *report* as a command: what was printed and raised."""
    report.sections[:] = [(name, for_log(text)) for name, text in report.sections]
    for traceback, crash, _ in getattr(report.longrepr, "chain", ()):
        for entry in traceback.reprentries:
            _disarm_entry(entry)
        if crash:
            crash.message = for_log(crash.message)
    if sections := getattr(report.longrepr, "sections", ()):
        sections[:] = [(for_log(name), for_log(text), mark) for name, text, mark in sections]
    if isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        report.longrepr = path, line, for_log(reason)
    if hasattr(report, "wasxfail"):
        report.wasxfail = for_log(report.wasxfail)


def _disarm_entry(entry: Any) -> None:
    """The same for one frame: its lines, its arguments and its local variables."""
    entry.lines[:] = map(for_log, entry.lines)
    if arguments := getattr(entry, "reprfuncargs", None):
        arguments.args[:] = [(name, for_log(text)) for name, text in arguments.args]
    if variables := getattr(entry, "reprlocals", None):
        variables.lines[:] = map(for_log, variables.lines)


def leave_out_evidence(report: pytest.TestReport) -> None:
    """Have pytest show the line of a failed check alone, which it writes below the text."""
    for traceback, *_ in getattr(report.longrepr, "chain", ()):
        traceback.reprentries = []
