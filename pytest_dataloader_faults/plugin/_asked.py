"""Which items ask checks: by the fixture, or for the command line."""

from __future__ import annotations

from typing import NamedTuple

import pytest


class OfNamedDataset(NamedTuple):
    """What an item asks of a dataset that the command line names."""

    check: str
    arguments: str
    """What has pytest run this item alone."""


NAMED = pytest.StashKey[OfNamedDataset]()
CALLED = pytest.StashKey[bool]()
"""An item has it once its check was called."""
NOT_ASKED = pytest.StashKey[str]()
"""Why an item was skipped, and its check was not asked."""
NOT_APPLICABLE = pytest.StashKey[str]()
"""Why an item was skipped before its check, which cannot be asked on this machine."""


def asks_check(node: pytest.Item) -> bool:
    """Whether *node* asks one check, in a test or of a dataset that the command line names."""
    return "fault_check" in getattr(node, "fixturenames", ()) or NAMED in node.stash


def check_asked(node: pytest.Item) -> str:
    """The name of the check that *node* asks; of the fixture, where it cannot be parametrized."""
    if NAMED in node.stash:
        return node.stash[NAMED].check
    given = getattr(getattr(node, "callspec", None), "params", {})
    return str(given.get("fault_check", "fault_check"))
