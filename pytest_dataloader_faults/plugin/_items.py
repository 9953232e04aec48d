"""The checks of a test, and what there is where pytest runs: an accelerator, a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_dataloader_faults.plugin import _options

if TYPE_CHECKING:
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
    from pytest_dataloader_faults.plugin._fault_check import FaultCheck

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
