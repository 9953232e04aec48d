"""Bugs that take two things together are found, and shrunk to just these two."""

import itertools
import statistics
import sys

import pytest

from planted import PLANTED
from pytest_dataloader_faults import explore
from support.datasets import write_records

pytestmark = pytest.mark.usefixtures("engine")
SEEDS, EXAMPLES, ENOUGH = 20, 200, 19


def _search(planted, folder, seed):
    records = folder / "records"
    if not records.exists():
        write_records(records)
    return explore(
        lambda: planted.make(records),
        seed=seed,
        database=None,
        on_fail=None,
        loader=planted.loader,
        max_examples=EXAMPLES,
    )


def _is_minimal(planted, result):
    """Whether the shrunk case has the faults and options that the bug takes, and no more."""
    kinds = [type(fault).__name__ for fault in result.outcome.schedule]
    matches = any(
        all(kind in choice.split("|") for kind, choice in zip(order, planted.faults, strict=True))
        for order in itertools.permutations(kinds)
        if len(order) == len(planted.faults)
    )
    loaders = [{"num_workers": 1, "batch_size": 4, **each} for each in planted.options]
    request = result.outcome.request
    return matches and request.loader in loaders and request.epochs == planted.epochs


def _row(planted, failed, minimal):
    """Of the table: examples until the failure, trials to shrink it, and what it came to."""
    examples = [result.examples for result in failed]
    shrinking = statistics.median(result.trials - result.examples for result in failed)
    cells = [
        f"`{planted.name}`",
        f"{len(failed)} of {SEEDS}",
        f"{statistics.median(examples):g} ({max(examples)})",
        f"{shrinking:g}",
        f"{len(minimal)}",
        f"`{', '.join(map(repr, minimal[0].outcome.schedule))}`",
    ]
    return f"| {' | '.join(cells)} |\n"


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_every_bug_is_found_by_nearly_every_seed(tmp_path, planted):
    results = [_search(planted, tmp_path, seed) for seed in range(1, SEEDS + 1)]
    failed = [result for result in results if result.verdict is planted.verdict]
    minimal = [result for result in failed if _is_minimal(planted, result)]
    if minimal:
        sys.stdout.write(_row(planted, failed, minimal))
    assert len(failed) >= ENOUGH
    longer = [result.outcome for result in failed if result not in minimal]
    assert len(minimal) >= ENOUGH, [each.request for each in longer]
