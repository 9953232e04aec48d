"""What there is where pytest runs: an accelerator, a terminal."""

from __future__ import annotations

import os
import sys

import pytest

from pytest_dataloader_faults.plugin import _asked

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
    if not {"gpu", "dataloader_faults"} <= names or sys.platform != "linux":
        return
    from pytest_dataloader_faults._trial.accelerator import missing_accelerator

    reason = missing_accelerator()
    if reason and item.config.getoption("dataloader_faults_require_gpu"):
        pytest.fail(f"--dataloader-faults-require-gpu: {reason}", pytrace=False)
    if reason:
        item.stash[_asked.NOT_APPLICABLE] = reason
        pytest.skip(reason)


def has_terminal(config: pytest.Config) -> bool:
    """Whether there is a terminal, and no other plugin writes to it while a test runs."""
    option = config.option
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    is_in_ci = any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))
    # Its options are missing with "-p no:logging".
    has_logging = config.pluginmanager.has_plugin("logging")
    is_logging = has_logging and (config.getini("log_cli") or option.log_cli_level is not None)
    is_ours = not config.pluginmanager.has_plugin("sugar")  # It rewrites lines of its own.
    is_captured = option.capture in {"fd", "sys"}
    is_loud = option.verbose >= -1
    return is_terminal and is_captured and is_loud and is_ours and not (is_in_ci or is_logging)
