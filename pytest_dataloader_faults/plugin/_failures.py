"""How failures are reported: in full once, without frames of this package, and ready to copy.

If a dataset cannot be tested, one item reports the reason in full, and the others refer to it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Hashable, Iterator
from types import TracebackType

import pytest

from pytest_dataloader_faults.exceptions import (
    DataLoaderFaultsError,
    LostProcessError,
    UnusableEnvironmentError,
)
from pytest_dataloader_faults.exceptions import _shorten as shorten
from pytest_dataloader_faults.plugin import _options

_PACKAGE = __name__.partition(".")[0]
_PYTEST = ("_pytest", "pluggy")
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_OUR_ERRORS = f"{DataLoaderFaultsError.__module__}."
_first_items = pytest.StashKey[dict[Hashable, str]]()
"""The id of the item that reports a mistake in full, by what the mistake is about."""
CALLED = pytest.StashKey[bool]()
"""Set for an item once its check was called."""
NOT_RUN = pytest.StashKey[str]()
"""Why an item was skipped, and its check did not run."""
_BEFORE_ITS_CHECK = "not run, because the test failed before its check"


def test_key(node: pytest.Item, *mistake: Hashable) -> Hashable:
    """What is equal for all items of the test of *node*, or those with the same *mistake*."""
    parameters = getattr(getattr(node, "callspec", None), "params", {})
    # All items of a test share its parameters, which live as long as the items do.
    parameter_ids = frozenset(
        (name, id(value)) for name, value in parameters.items() if name != "fault_check"
    )
    parent = node.parent.nodeid if node.parent else ""
    return parent, getattr(node, "originalname", node.name), parameter_ids, *mistake


def reported_elsewhere(node: pytest.Item, about: Hashable, *, reports: bool) -> str | None:
    """The id of another item that has reported in full that something cannot be tested.

    *reports*: whether *node* reports it if no other item has. If not, an earlier report of this
    item is forgotten, because the item has passed when it ran again.
    """
    first_items = node.config.stash.setdefault(_first_items, {})
    if reports:
        first_items.setdefault(about, node.nodeid)
    elif first_items.get(about) == node.nodeid:
        del first_items[about]
    nodeid = first_items.get(about)
    return None if nodeid == node.nodeid else nodeid


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """If a fixture fails, let one item of its test explain the reason."""
    with _report_mistake_once(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """If a test fails before its check, let one of its items explain the reason."""
    with _report_mistake_once(item):
        yield


@contextlib.contextmanager
def _report_mistake_once(node: pytest.Item) -> Iterator[None]:
    """Skip *node* if it fails before its check for the same reason as another item of its test."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        if not _options.runs_check(node) or CALLED in node.stash:
            raise
        *_, entry = _entries(error.__traceback__)
        place = entry.tb_frame.f_code.co_filename, entry.tb_lineno
        about = test_key(node, type(error).__name__, place)
        elsewhere = reported_elsewhere(node, about, reports=True)
        if elsewhere is None:
            raise
        node.stash[NOT_RUN] = text = f"{_BEFORE_ITS_CHECK}: see {elsewhere}"
        skipped = pytest.skip.Exception(text)
        skipped._use_item_location = True  # Otherwise, this line is reported.
        raise skipped from None


@contextlib.contextmanager
def report_shortage_once(node: pytest.Item) -> Iterator[None]:
    """Fail *node* without a traceback if the machine lacks something, in full only once.

    An error about a lost process has no traceback either, because its frames are all ours.
    """
    try:
        yield
    except LostProcessError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    except UnusableEnvironmentError as error:
        text = str(error)
        if elsewhere := reported_elsewhere(node, error.lacking, reports=True):
            text = f"{error.lacking}: see {elsewhere}. No dataset was judged"
        raise pytest.fail.Exception(text, pytrace=False) from None


def strip_own_frames(error: BaseException) -> BaseException:
    """*error* with a traceback that ends where the user's code called this package."""
    entries = list(_entries(error.__traceback__))
    outer = [number for number, entry in enumerate(entries) if _top_package(entry) in _PYTEST]
    users = list(itertools.takewhile(_is_foreign, entries[outer[-1] + 1 if outer else 0 :]))
    while users and _top_package(users[-1]) == "torch":  # The frames of a loop over a loader.
        users.pop()
    traceback: TracebackType | None = None
    for entry in reversed(users):
        traceback = TracebackType(traceback, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return error.with_traceback(traceback) if traceback else error


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_foreign(entry: TracebackType) -> bool:
    """Compare modules, because the constructor of a dataclass is not in a file."""
    return _top_package(entry) != _PACKAGE


def _top_package(entry: TracebackType) -> str:
    """The name of the package that the code of *entry* belongs to."""
    name: str = entry.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def show_unprefixed(report: pytest.TestReport, error: pytest.ExceptionInfo[BaseException]) -> None:
    """Make *report* show *error* without pytest's marks, and the line that raised it.

    pytest prefixes each line of an error with E, which breaks copying.
    """
    text = error.getrepr(style="value", chain=False)
    if notes := getattr(error.value, "__notes__", ()):  # Hypothesis' falsifying example.
        text.addsection("notes", "\n".join(notes))
    users = [entry for entry in error.traceback if not entry.ishidden(error)]
    if users:
        text.addsection(f"raised at {os.path.relpath(users[-1].path)}:{users[-1].lineno + 1}", "")
    report.longrepr = text


def wants_unprefixed(config: pytest.Config) -> bool:
    """Whether the user wants a traceback as pytest shows it by default, or less."""
    asks_for_more = any(
        config.getoption(name, default=False) for name in ("fulltrace", "showlocals")
    )
    style = config.getoption("tbstyle", default="auto")
    return not asks_for_more and style not in {"native", "line"}


def shorten_crash_message(report: pytest.TestReport) -> None:
    """Shorten *report* in pytest's short summary to the line that explains the failure.

    In CI and with -vv, pytest repeats the whole message there. It stands above, and in JUnit files.
    """
    if crash := getattr(report.longrepr, "reprcrash", None):
        crash.message = shorten(first_line(crash.message))


def first_line(message: str) -> str:
    """The first line of the *message* of an error, without a class that explains nothing."""
    from pytest_dataloader_faults.outcomes.text import headline

    line = headline(message.strip())
    return line.removeprefix(_OUR_ERRORS).removeprefix("Failed: ")


def is_own_error(error: BaseException) -> bool:
    """Whether *error* was raised by this package, including by ``pytest.fail``."""
    if isinstance(error, DataLoaderFaultsError):
        return True
    packages = map(_top_package, _entries(error.__traceback__))
    *_, package = ["", *(package for package in packages if package not in _PYTEST)]
    return package == _PACKAGE


def point_to_dataset(item: pytest.Item, report: pytest.TestReport) -> None:
    """Make the line of a failure name the dataset of *item* instead of a line of this package."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash and crash.path.startswith(_FOLDER):
        path, line, _ = item.reportinfo()
        crash.path, crash.lineno = os.fspath(path), (line or 0) + 1
