"""Searches whose workers come from a fork server."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults import Verdict, explore, strategies
from pytest_dataloader_faults.faults import OpenError
from support.datasets import Records
from support.planted import Zeros

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
SERVED = {"multiprocessing_context": "forkserver"}
HOW = {"database": None, "on_fail": None}


def test_a_search_finds_a_fault_that_changes_samples(records):
    """In such workers, and the test to paste starts workers that way."""
    found = explore(
        lambda: Zeros(records),
        loader=strategies.loader_options(start_methods=["forkserver"]),
        kinds=[OpenError],
        files="*/05.rec",
        max_faults=1,
        max_epochs=1,
        max_examples=4,
        seed=1,
        **HOW,
    )
    assert found.verdict is Verdict.CORRUPTED
    assert found.outcome.start_method == "forkserver"
    assert "'multiprocessing_context': 'forkserver'" in found.failure


def test_a_search_passes_a_healthy_dataset(records):
    """Faults happen in its trials."""
    found = explore(lambda: Records(records), loader=SERVED, max_examples=4, seed=1, **HOW)
    assert (found.verdict, found.failure) == (Verdict.FAILED_CLEANLY, None)
    assert sum(found.fired.values()) > 0
