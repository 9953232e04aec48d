"""What an item runs and needs: its checks, and an accelerator."""

from __future__ import annotations

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
"""Where an item keeps its check."""


def checks_with_marks(options: ItemOptions) -> Iterator[tuple[str, list[pytest.MarkDecorator]]]:
    """Yield each check that *options* select, with the marks of its item.

    If no check can run, and most of their code cannot be imported, one item says so.
    """
    if sys.platform != "linux":
        yield "needs-linux", []
        return
    from pytest_dataloader_faults.battery.checking import select_checks
    from pytest_dataloader_faults.battery.checks import CHECKS

    for name in select_checks(options.only, options.exclude, options.expected_failures):
        yield name, [pytest.mark.gpu] if CHECKS[name].scenario.uses_accelerator else []


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep those of *items* whose check the command line selects, and those without a check."""
    checks = _options.checks_to_keep(config)
    if checks is None:
        return
    selected: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_kept = not _options.runs_check(item) or _options.check_name_of(item) in checks
        (selected if is_kept else left_out).append(item)
    if left_out:
        items[:] = selected
        config.hook.pytest_deselected(items=left_out)
        config.stash[_are_all_left_out] = not any(map(_options.runs_check, selected))


_are_all_left_out = pytest.StashKey[bool]()


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say that the command line selects no check; pytest itself only says "deselected"."""
    if not config.stash.get(_are_all_left_out, False):
        return None
    options = " ".join(_options.choice_of_checks(config))
    return f"dataloader-faults: no test runs a check selected by {options}"


def options_of(node: pytest.Item) -> ItemOptions:
    """Return the options of an item; skips the item if the engine cannot run."""
    from pytest_dataloader_faults._engine import explain_missing_engine

    with _options.fail_on_bad_values(node):
        options = _options.options_for(node.config, node.iter_markers(MARKER))
    if (reason := explain_missing_engine()) is not None:
        pytest.skip(f"no engine can run here: {reason}")
    return options


def check_of(node: pytest.Item, name: str) -> FaultCheck:
    """The check *name* for the item; skips the item if the engine cannot run."""
    options = options_of(node)
    from pytest_dataloader_faults._settings import Settings
    from pytest_dataloader_faults.battery.checks import CHECKS, missing_requirement
    from pytest_dataloader_faults.plugin._fault_check import FaultCheck

    settings = Settings(**options.settings)
    if requirement := missing_requirement(CHECKS[name], settings):
        node.stash[_options.NOT_APPLICABLE] = requirement
        pytest.skip(f"{name} does not apply to this dataset: {requirement}")
    node.stash[CHECK] = FaultCheck(name, options, node)
    return node.stash[CHECK]


GPU_MARKER = (
    "gpu: the test needs an accelerator. Together with dataloader_faults, the test is skipped"
    " if torch finds none, or fails with --dataloader-faults-require-gpu"
)


def require_accelerator(item: pytest.Item) -> None:
    """Skip or fail *item* if it needs an accelerator and there is none.

    ``gpu`` without ``dataloader_faults`` may be a marker of the suite's own, with another meaning.
    If the engine cannot run, as on other systems than Linux, our fixtures say so.
    """
    if not {"gpu", MARKER} <= {mark.name for mark in item.iter_markers()}:
        return
    from pytest_dataloader_faults._engine import explain_missing_engine

    if explain_missing_engine():
        return
    from pytest_dataloader_faults._trial.accelerator import missing_accelerator

    reason = missing_accelerator()
    if reason and item.config.getoption("dataloader_faults_require_gpu"):
        pytest.fail(f"--dataloader-faults-require-gpu: {reason}", pytrace=False)
    if reason:
        item.stash[_options.NOT_APPLICABLE] = reason
        pytest.skip(reason)
