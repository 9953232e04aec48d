"""Which items ask checks: by the fixture, for the command line, or in a ``DatasetTestCase``."""

from __future__ import annotations

from typing import Any, NamedTuple

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
SEVERAL = pytest.StashKey[bool]()
"""An item has it once a ``DatasetTestCase`` has asked checks in it."""


def asks_check(node: pytest.Item) -> bool:
    """Whether *node* asks one check, in a test or of a dataset that the command line names."""
    return "fault_check" in getattr(node, "fixturenames", ()) or NAMED in node.stash


def check_asked(node: pytest.Item) -> str:
    """The name of the check that *node* asks, or of the method that asks several."""
    if NAMED in node.stash:
        return node.stash[NAMED].check
    given = getattr(getattr(node, "callspec", None), "params", {})
    return str(given.get("fault_check", "check_dataset"))


def results_of_test_case(node: pytest.Item) -> Any:
    """What ``check_dataset`` of a ``DatasetTestCase`` found in *node*; None if it is no such."""
    return getattr(getattr(node, "instance", None), "_dataset_results", None)
