"""Searches, lifecycles and replays whose workers come from a fork server."""

from __future__ import annotations

import re

import pytest

from pytest_dataloader_faults import Verdict, explore, explore_lifecycle, strategies
from pytest_dataloader_faults._trial import run_lifecycle
from pytest_dataloader_faults.exceptions import CheckFailedError
from pytest_dataloader_faults.faults import OpenError, ReadError
from pytest_dataloader_faults.lifecycle import (
    Arm,
    BreakEpoch,
    DeleteLoader,
    Disarm,
    Iterate,
    KillWorker,
    NewLoader,
    PickleDataset,
    StartEpoch,
)
from pytest_dataloader_faults.search import replay
from support.datasets import Records
from support.lifecycles import GivesOnce
from support.planted import Zeros
from support.served import KeepsFile

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
SERVED = {"multiprocessing_context": "forkserver"}
HOW = {"database": None, "on_fail": None}
TAKEN = 2
"""Batches before a worker is killed."""
STEPS = (
    # More batches than are prefetched: a death is noticed, however fast the worker was.
    NewLoader(num_workers=2, batch_size=1, persistent_workers=True),
    Arm(ReadError("*/05.rec", times=1)),
    Iterate(1),
    Iterate(),
    Disarm(),
    StartEpoch(),
    Iterate(TAKEN),
    KillWorker(1),
    Iterate(),
    PickleDataset(),
    Iterate(1),
    BreakEpoch(),
    DeleteLoader(),
    NewLoader(batch_size=1),
    Iterate(),
)


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


@pytest.mark.slow
def test_a_search_of_lifecycles_passes_a_healthy_dataset(records):
    """Faults happen in some of them."""
    near = {"steps": [Iterate, Arm, StartEpoch], "kinds": [OpenError], "files": "*/00.rec"}
    found = explore_lifecycle(
        lambda: Records(records), loader=SERVED, max_examples=6, max_steps=5, seed=1, **near, **HOW
    )
    assert (found.failure, found.steps) == (None, None)
    assert sum(found.fired.values()) > 0


def test_lifecycles_of_what_cannot_be_pickled_are_not_searched(records):
    """One shows it, with the advice. Nothing is said of files, which no worker came to."""
    found = explore_lifecycle(lambda: KeepsFile(records), loader=SERVED, **HOW)
    assert (found.trials, found.left_out) == (0, None)
    assert found.steps == (NewLoader(), Iterate())
    assert "__getstate__" in found.failure


@pytest.mark.slow
def test_a_lifecycle_that_fails_is_found(records):
    """With the fewest steps, and the test to paste starts workers that way."""
    near = {"steps": [NewLoader, Iterate], "max_steps": 3}
    found = explore_lifecycle(lambda: GivesOnce(records), loader=SERVED, seed=1, **near, **HOW)
    assert (found.verdict, found.steps) == (GivesOnce.verdict, GivesOnce.steps)
    assert "'multiprocessing_context': 'forkserver'" in found.failure


@pytest.mark.slow
def test_a_lifecycle_can_be_repeated(records):
    """It fails as before, and not without the cause."""
    with pytest.raises(CheckFailedError, match=re.escape(GivesOnce.text)) as raised:
        replay(lambda: GivesOnce(records), *GivesOnce.steps, loader=SERVED)
    assert "'multiprocessing_context': 'forkserver'" in str(raised.value)
    healed = replay(lambda: GivesOnce(records, healed=True), *GivesOnce.steps, loader=SERVED)
    assert healed is Verdict.SURVIVED


def test_a_lifecycle_is_that_of_forked_workers(records):
    """Faults begin and end, a worker is killed, and the same batches come."""
    served, forked = (_facts(records, method) for method in ("forkserver", "fork"))
    assert served == forked


def _facts(records, method):
    loader = {"multiprocessing_context": method}
    how = {"loader": loader, "deadline": 30.0, "seed": 0, "engine": "auto"}
    found = run_lifecycle(lambda: Records(records), STEPS, **how)
    return [
        (
            [_pass(one) for one in moment.outcome.passes],
            [(each.reached, each.fired, each.surfaced) for each in moment.outcome.faults],
            (moment.armed, moment.iterators_started, moment.running, moment.leftover_files),
        )
        for moment in found.step_outcomes
    ]


def _pass(one):
    """Without what comes after a death: a loader that no signal tells of it takes what is there."""
    text = one.exception.text if one.exception else ""
    died = "exited unexpectedly" in text or "killed by signal" in text
    kind = one.exception and one.exception.type
    return one.delivered[:TAKEN] if died else one.delivered, one.complete, kind, died
