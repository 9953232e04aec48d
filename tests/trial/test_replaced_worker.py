"""A worker that becomes another program by exec(2), which does not end as torch asks."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine.system.proc import is_dead
from support.troublemakers import Replaced
from support.waiting import until

BATCH = 4
SHORT = 3.0
METHODS = ["fork", "spawn", "forkserver"]
MORE_METHODS = [METHODS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in METHODS[1:])]


def _outcome(records, method, deadline, *, fails):
    loader = {"num_workers": 2, "batch_size": BATCH, "multiprocessing_context": method}
    return run_trial(
        lambda: Replaced(records, BATCH, fails=fails), loader=loader, deadline=deadline
    )


def _is_gone(records):
    pid = int((records.parent / "replaced").read_text())
    return until(lambda: is_dead(pid))


@pytest.mark.parametrize("method", METHODS)
def test_an_error_of_another_worker_is_judged(records, reference, method):
    """The error of the dataset is the finding; nobody waits for the program to end by itself."""
    outcome = _outcome(records, method, 30.0, fails=True)
    assert outcome.passes[0].exception.type == "ValueError"
    judgement = outcome.judge(reference)
    assert judgement.verdict == "broken"
    assert "sample 0 is damaged" in judgement.sentence
    assert _is_gone(records)


@pytest.mark.parametrize("method", MORE_METHODS)
def test_its_batches_never_come(records, reference, method):
    """The loader waits for ever, and that is the verdict."""
    outcome = _outcome(records, method, SHORT, fails=False)
    assert outcome.judge(reference).verdict == "hung"
    assert _is_gone(records)
