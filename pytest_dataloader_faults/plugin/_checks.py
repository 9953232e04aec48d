"""The checks of a test: which ones there are, and the one that an item asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_dataloader_faults.plugin import _options

if TYPE_CHECKING:
    from pytest_dataloader_faults.plugin._fault_check import FaultCheck
    from pytest_dataloader_faults.plugin._options import Settings

MARKER = "dataloader_faults"
CHECK = pytest.StashKey["FaultCheck"]()
"""Where an item keeps what it asks."""


def named(settings: Settings) -> Iterator[tuple[str, list[pytest.MarkDecorator]]]:
    """Each check that *settings* choose, with the marks of its item.

    Where no check can run, and most of their code cannot be imported, there is one item to say so.
    """
    if sys.platform != "linux":
        yield "needs-linux", []
        return
    from pytest_dataloader_faults.battery._check_dataset import select_checks
    from pytest_dataloader_faults.battery.checks import CHECKS

    for name in select_checks(settings.only, settings.exclude, settings.expected_failures):
        yield name, [pytest.mark.gpu] if CHECKS[name].gpu else []


def settings_of(node: pytest.Item) -> Settings:
    """The settings of an item; skips or fails it where their engine cannot run."""
    from pytest_dataloader_faults._engine import lacking, unavailable

    with _options.bad_values_fail(node):
        settings = _options.settings_for(node.config, node.iter_markers(MARKER))
    reason = unavailable() if settings.engine == "kernel" else lacking()
    if reason is not None and settings.engine == "auto":
        pytest.skip(f"no engine can run here: {reason}")
    if reason is not None:
        pytest.fail(f"engine={settings.engine!r} cannot run here: {reason}", pytrace=False)
    return settings


def check_of(node: pytest.Item, name: str) -> FaultCheck:
    """The check *name*, for the item to ask; skips or fails it where no engine can run."""
    settings = settings_of(node)
    from pytest_dataloader_faults.plugin._fault_check import FaultCheck

    node.stash[CHECK] = FaultCheck(name, settings, node)
    return node.stash[CHECK]
