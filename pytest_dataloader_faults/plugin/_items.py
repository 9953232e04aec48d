"""What an item is asked and what it needs: its checks, an accelerator, scopes that are entered."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_dataloader_faults.plugin import _options

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.progress import Line
    from pytest_dataloader_faults.injection import _Call
    from pytest_dataloader_faults.plugin._fault_check import FaultCheck
    from pytest_dataloader_faults.plugin._options import ItemOptions

MARKER = "dataloader_faults"
CHECK = pytest.StashKey["FaultCheck"]()
"""Where an item keeps what it asks."""


def named(options: ItemOptions) -> Iterator[tuple[str, list[pytest.MarkDecorator]]]:
    """Each check that *options* choose, with the marks of its item.

    Where no check can run, and most of their code cannot be imported, there is one item to say so.
    """
    if sys.platform != "linux":
        yield "needs-linux", []
        return
    from pytest_dataloader_faults.battery.checking import select_checks
    from pytest_dataloader_faults.battery.checks import CHECKS

    for name in select_checks(options.only, options.exclude, options.expected_failures):
        yield name, [pytest.mark.gpu] if CHECKS[name].gpu else []


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave those of *items* whose check the command line asks, and those that ask none."""
    asked = _options.checks_to_keep(config)
    if asked is None:
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_kept = not _options.asks_check(item) or _options.check_asked(item) in asked
        (kept if is_kept else left_out).append(item)
    if left_out:
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


def options_of(node: pytest.Item) -> ItemOptions:
    """What holds for an item; skips or fails it where their engine cannot run."""
    from pytest_dataloader_faults._engine import lacking, unavailable

    with _options.bad_values_fail(node):
        options = _options.options_for(node.config, node.iter_markers(MARKER))
    reason = unavailable() if options.engine == "kernel" else lacking()
    if reason is not None and options.engine == "auto":
        pytest.skip(f"no engine can run here: {reason}")
    if reason is not None:
        pytest.fail(f"engine={options.engine!r} cannot run here: {reason}", pytrace=False)
    return options


def check_of(node: pytest.Item, name: str) -> FaultCheck:
    """The check *name*, for the item to ask; skips or fails it where no engine can run."""
    options = options_of(node)
    from pytest_dataloader_faults.battery.checks import CHECKS, WITHOUT_RANKS
    from pytest_dataloader_faults.plugin._fault_check import FaultCheck

    if CHECKS[name].ranks and options.settings["ranks"] is None:
        node.stash[_options.NOT_APPLICABLE] = WITHOUT_RANKS
        pytest.skip(f"{name} does not apply to this dataset: {WITHOUT_RANKS}")
    node.stash[CHECK] = FaultCheck(name, options, node)
    return node.stash[CHECK]


GPU_MARKER = (
    "gpu: the test needs an accelerator. With dataloader_faults beside it, it is skipped"
    " where torch finds none, or fails with --dataloader-faults-require-gpu"
)


def require_accelerator(item: pytest.Item) -> None:
    """Skip or fail *item* if it needs an accelerator and there is none.

    ``gpu`` without ``dataloader_faults`` may be a marker of the suite's own, with another meaning.
    On other systems than Linux our fixtures skip, whatever the machine has.
    """
    names = {mark.name for mark in item.iter_markers()}
    if not {"gpu", MARKER} <= names or sys.platform != "linux":
        return
    from pytest_dataloader_faults._trial.accelerator import missing_accelerator

    reason = missing_accelerator()
    if reason and item.config.getoption("dataloader_faults_require_gpu"):
        pytest.fail(f"--dataloader-faults-require-gpu: {reason}", pytrace=False)
    if reason:
        item.stash[_options.NOT_APPLICABLE] = reason
        pytest.skip(reason)


_PROGRESS = "pytest_dataloader_faults.battery.progress"


class ProgressLine:
    """Shows how far a long call is; it is registered with pytest where there is a terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._capture = config.pluginmanager.getplugin("capturemanager")
        self._line: Line | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Be told how far calls are, if there may be any: what makes them is slow to import."""
        if _PROGRESS in sys.modules or MARKER in getattr(item, "fixturenames", ()):
            from pytest_dataloader_faults.battery import progress

            self._line = self._line or progress.Line(self._capture.global_and_fixture_disabled)
            progress.show = self._line

    def pytest_unconfigure(self) -> None:
        """Be told nothing more."""
        if _PROGRESS in sys.modules:
            sys.modules[_PROGRESS].show = None  # type: ignore[attr-defined]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        """Whatever happened in an item, leave no line behind."""
        try:
            return (yield)
        finally:
            if _PROGRESS in sys.modules:
                sys.modules[_PROGRESS].clear()


def has_terminal(config: pytest.Config) -> bool:
    """Whether there is a terminal, and no other plugin writes to it while a test runs."""
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    is_in_ci = any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))
    has_logging = config.pluginmanager.has_plugin("logging")  # Else, it has no ini key either.
    level = config.getoption("log_cli_level", default=None)
    is_logging = has_logging and (config.getini("log_cli") or level is not None)
    is_ours = not config.pluginmanager.has_plugin("sugar")  # It rewrites lines of its own.
    is_captured = config.getoption("capture", default="no") in {"fd", "sys"}
    is_loud = config.getoption("verbose", default=-2) >= -1
    return is_terminal and is_captured and is_loud and is_ours and not (is_in_ci or is_logging)


_calls = pytest.StashKey[dict["_Call", None]]()
"""Where an item keeps the calls of ``inject`` that it has made, until they are entered."""
_INJECTION = "pytest_dataloader_faults.injection"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Look at what its fixtures call."""
    with _are_entered(item, "setup"):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Look at what the test calls."""
    with _are_entered(item, "call"):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Look at the scopes that fixtures gave, and that were not entered."""
    with _are_entered(item, "teardown"):
        yield


@contextlib.contextmanager
def _are_entered(item: pytest.Item, phase: str) -> Iterator[None]:
    """Fail *item* for a call of ``inject`` whose scope was not entered by the end of its *phase*.

    What a fixture has made in the set-up may be entered until the teardown is over.
    """
    calls = item.stash.setdefault(_calls, {})
    lasting = {"setup": calls, "call": set(calls), "teardown": ()}[phase]
    injection = sys.modules.get(_INJECTION)
    watched = injection._watched(calls) if injection else contextlib.nullcontext()
    try:
        with watched:
            yield
    except BaseException:  # It goes first.
        if told := _never_entered(calls, lasting):
            item.add_report_section(phase, "dataloader-faults", told)
        raise
    if injection is None and _INJECTION in sys.modules:  # The phase itself has imported it.
        calls.update(sys.modules[_INJECTION]._unwatched)
    if told := _never_entered(calls, lasting):
        pytest.fail(told, pytrace=False)


def _never_entered(calls: dict[_Call, None], lasting: Collection[_Call]) -> str:
    """What is wrong with *calls* that will not be entered; *lasting*: those that may be, later."""
    found = [each for each in calls if each.is_gone or each not in lasting]
    for each in found:
        each.settle()
        calls.pop(each, None)
    return "\n".join(f"{os.path.relpath(each.file)}:{each.line}: {each.text}" for each in found)
