"""Report what a machine lacks: in full in the first item of a session, in short in the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pytest_dataloader_faults.exceptions import UnusableEnvironmentError

_first_items = pytest.StashKey[dict[str, str]]()
"""What is lacking, and the id of the item that reported it in full."""


@contextlib.contextmanager
def reported_once(node: pytest.Item) -> Iterator[None]:
    """Fail *node*, without a traceback, where the machine lacks something."""
    try:
        yield
    except UnusableEnvironmentError as error:
        raise pytest.fail.Exception(_text(node, str(error)), pytrace=False) from None


def _text(node: pytest.Item, text: str) -> str:
    lacking = text.partition(":")[0]
    first = node.config.stash.setdefault(_first_items, {}).setdefault(lacking, node.nodeid)
    return text if first == node.nodeid else f"{lacking}: see {first}. No dataset was judged"
