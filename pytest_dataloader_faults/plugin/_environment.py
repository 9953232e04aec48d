"""What a machine lacks, told by the first item of a session in full, and by the others in short."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pytest_dataloader_faults.exceptions import UnusableEnvironmentError

_told = pytest.StashKey[dict[str, str]]()


@contextlib.contextmanager
def reported_once(node: pytest.Item) -> Iterator[None]:
    """Fail *node* where the machine lacks something; no traceback would tell more."""
    try:
        yield
    except UnusableEnvironmentError as error:
        raise pytest.fail.Exception(_text(node, str(error)), pytrace=False) from None


def _text(node: pytest.Item, text: str) -> str:
    lacking = text.partition(":")[0]
    first = node.config.stash.setdefault(_told, {}).setdefault(lacking, node.nodeid)
    return text if first == node.nodeid else f"{lacking}: see {first}. No dataset was judged"
