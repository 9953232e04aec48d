"""Searches whose workers come from a fork server."""

import pytest

from pytest_dataloader_faults import Verdict, explore, strategies
from pytest_dataloader_faults.faults import OpenError
from support.datasets import Records
from support.planted import Zeros

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
SERVED = {"multiprocessing_context": "forkserver"}
HOW = {"database": None, "on_fail": None}


def test_a_search_finds_a_fault_that_changes_samples(records):
    result = explore(
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
    assert result.verdict is Verdict.CORRUPTED
    assert result.outcome.loader.start_method == "forkserver"
    assert "'multiprocessing_context': 'forkserver'" in result.failure


def test_a_search_passes_a_healthy_dataset(records):
    result = explore(lambda: Records(records), loader=SERVED, max_examples=4, seed=1, **HOW)
    assert (result.verdict, result.failure) == (Verdict.FAILED_CLEANLY, None)
    assert sum(result.fired.values()) > 0
