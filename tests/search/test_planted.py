"""Bugs that take two things together are found, and shrunk to just these two."""

from __future__ import annotations

import itertools
import statistics
import sys

import pytest

from pytest_dataloader_faults import explore, faults
from support.datasets import write_records
from support.planted import ALONE, PLANTED, HalfCached, StaleTail

pytestmark = pytest.mark.usefixtures("engine")
SEEDS, EXAMPLES, ENOUGH = 20, 200, 19
NEAR = {
    HalfCached: ([faults.OpenError], {**ALONE, "persistent_workers": True}, 2),
    StaleTail: ([faults.ShortRead], ALONE, 1),
}
"""Where to look for two of them, so that a few examples will do."""


def _search(planted, folder, seed, **options):
    records = folder / "records"
    if not records.exists():
        write_records(records)
    return explore(
        lambda: planted.make(records),
        seed=seed,
        database=None,
        on_fail=None,
        **{"loader": planted.loader, "max_examples": EXAMPLES, **options},
    )


def _is_minimal(planted, found):
    """Whether the shrunk case has the faults and options that the bug takes, and no more."""
    kinds = [type(fault).__name__ for fault in found.outcome.schedule]
    matches = any(
        all(kind in choice.split("|") for kind, choice in zip(order, planted.faults, strict=True))
        for order in itertools.permutations(kinds)
        if len(order) == len(planted.faults)
    )
    loaders = [{"num_workers": 1, "batch_size": 4, **each} for each in planted.options]
    return matches and found.outcome.loader in loaders and found.outcome.epochs == planted.epochs


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("kind", NEAR, ids=lambda kind: kind.__name__)
def test_a_bug_that_takes_two_things_is_found(tmp_path, kind):
    """The search finds the bug, and shrinks it to the least that shows it."""
    (planted,) = (each for each in PLANTED if each.make is kind)
    kinds, loader, epochs = NEAR[kind]
    where = {"kinds": kinds, "loader": loader, "max_epochs": epochs, "max_examples": 40}
    found = _search(planted, tmp_path, 1, **where)
    assert found.verdict is planted.verdict
    (fault,) = found.outcome.schedule
    assert type(fault) in kinds
    assert found.outcome.epochs == planted.epochs


def _row(planted, failed, minimal):
    """Of the table: examples until the failure, trials to shrink it, and what it came to."""
    examples = [found.examples for found in failed]
    shrinking = statistics.median(found.trials - found.examples for found in failed)
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
    """By the least that shows it. Prints a row for docs/how-to/search-with-hypothesis.md."""
    every = [_search(planted, tmp_path, seed) for seed in range(1, SEEDS + 1)]
    failed = [found for found in every if found.verdict is planted.verdict]
    minimal = [found for found in failed if _is_minimal(planted, found)]
    if minimal:
        sys.stdout.write(_row(planted, failed, minimal))
    assert len(failed) >= ENOUGH
    more = [found.outcome for found in failed if found not in minimal]
    assert len(minimal) >= ENOUGH, [(each.schedule, each.loader, each.epochs) for each in more]
