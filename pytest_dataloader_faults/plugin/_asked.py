"""Which items ask checks: by the fixture, for the command line, or in a ``DatasetTestCase``."""

from __future__ import annotations

from typing import Any

import pytest

SEVERAL = pytest.StashKey[bool]()
"""An item has it once a ``DatasetTestCase`` has asked checks in it."""


def asks_check(node: pytest.Item) -> bool:
    """Whether *node* asks one check, in a test or of a dataset that the command line names."""
    return "fault_check" in getattr(node, "fixturenames", ()) or hasattr(node, "arguments")


def check_asked(node: pytest.Item) -> str:
    """The name of the check that *node* asks, or of the method that asks several."""
    given = getattr(getattr(node, "callspec", None), "params", {})
    alone = node.name if hasattr(node, "arguments") else "check_dataset"
    return str(given.get("fault_check", alone))


def results_of_test_case(node: pytest.Item) -> Any:
    """What ``check_dataset`` of a ``DatasetTestCase`` found in *node*; None if it is no such."""
    return getattr(getattr(node, "instance", None), "_dataset_results", None)
