"""Items that need an accelerator: skipped, with the reason, where torch finds none.

Some facts about asking torch for an accelerator. ``torch.accelerator`` is new in torch 2.6; before
it there is ``torch.cuda``. A build for CUDA asks the driver, and a process that has done so cannot
fork any more one that uses CUDA (torch/cuda/__init__.py, ``is_available``). Trials are forked. So a
child that is thrown away asks, when the first item needs to know.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_dataloader_faults._engine import fork

if TYPE_CHECKING:
    from collections.abc import Iterable

MARKER = "gpu"
_THERE_IS_ONE = 42
MARKER_LINE = (
    f"{MARKER}: the test needs an accelerator. With dataloader_faults beside it, it is skipped"
    " where torch finds none, or fails with --dataloader-faults-require-gpu"
)


@cache
def missing() -> str | None:
    """Why there is no accelerator that torch could use; None if there is one."""
    import torch

    child = fork()
    if not child:
        _answer()
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == _THERE_IS_ONE:
        return None
    return f"torch {torch.__version__} finds no accelerator on this machine"


def _answer() -> NoReturn:
    """End this process with a status that tells."""
    import torch

    status = 1
    try:
        namespace = getattr(torch, "accelerator", torch.cuda)
        status = _THERE_IS_ONE if namespace.is_available() else 0
    finally:
        os._exit(status)


def needs_one(marks: Iterable[str]) -> bool:
    """Whether markers of these names say so; ``gpu`` alone may be a suite's own and mean else."""
    return {MARKER, "dataloader_faults"} <= set(marks)


def require(item: pytest.Item) -> None:
    """Skip or fail *item* if it needs an accelerator and there is none."""
    if not needs_one(mark.name for mark in item.iter_markers()):
        return
    reason = missing()
    if reason and item.config.getoption("dataloader_faults_require_gpu"):
        pytest.fail(f"--dataloader-faults-require-gpu: {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)
