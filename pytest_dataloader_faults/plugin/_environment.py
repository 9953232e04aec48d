"""Report what a machine lacks: an accelerator, or some of what every loader needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pytest_dataloader_faults.exceptions import UnusableEnvironmentError

GPU_MARKER_LINE = (
    "gpu: the test needs an accelerator. With dataloader_faults beside it, it is skipped"
    " where torch finds none, or fails with --dataloader-faults-require-gpu"
)
_first_items = pytest.StashKey[dict[str, str]]()
"""What is lacking, and the id of the item that reported it in full."""


def require_accelerator(item: pytest.Item) -> None:
    """Skip or fail *item* if it needs an accelerator and there is none.

    ``gpu`` without ``dataloader_faults`` may be a marker of the suite's own, with another meaning.
    """
    if not {"gpu", "dataloader_faults"} <= {mark.name for mark in item.iter_markers()}:
        return
    from pytest_dataloader_faults._trial.accelerator import missing_accelerator

    reason = missing_accelerator()
    if reason and item.config.getoption("dataloader_faults_require_gpu"):
        pytest.fail(f"--dataloader-faults-require-gpu: {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)


@contextlib.contextmanager
def reported_once(node: pytest.Item) -> Iterator[None]:
    """Fail *node* without a traceback where the machine lacks something: in full once."""
    try:
        yield
    except UnusableEnvironmentError as error:
        text = str(error)
        lacking = text.partition(":")[0]
        first = node.config.stash.setdefault(_first_items, {}).setdefault(lacking, node.nodeid)
        if first != node.nodeid:
            text = f"{lacking}: see {first}. No dataset was judged"
        raise pytest.fail.Exception(text, pytrace=False) from None
