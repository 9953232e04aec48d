"""Deaths of workers reach the loop where it waits for a batch, and no other code of the trial."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest
from torch.utils.data import Sampler

from pytest_dataloader_faults import run_trial
from support.datasets import Records


class KillsAWorker(Sampler):
    """Has a worker die while the loader asks for the next indices, and notes what that raises."""

    def __init__(self, notes, number):
        self.notes = notes
        self.number = number

    def __len__(self):
        return 16

    def __iter__(self):
        for index in range(16):
            if index == 8:
                self._kill()
            yield index

    def _kill(self):
        if os.path.exists(self.notes):  # This is the recovery.
            return
        (worker, *_) = sorted(multiprocessing.active_children(), key=lambda each: each.pid)
        caught = "nothing"
        try:
            os.kill(worker.pid, self.number)
            os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
            sum(range(1000))  # Bytecode at which a signal handler may run.
        except RuntimeError as error:
            caught = str(error)
        with open(self.notes, "w", encoding="utf-8") as file:
            file.write(caught)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_death_raises_where_the_loop_waits(records, tmp_path, number, persistent):
    """A sampler's own ``except RuntimeError`` does not swallow a death; the loop gets the error."""
    notes = tmp_path / "notes"
    loader = {
        "sampler": KillsAWorker(notes, number),
        "num_workers": 2,
        "batch_size": 2,
        "persistent_workers": persistent,
    }
    outcome = run_trial(lambda: Records(records), loader=loader)

    assert notes.read_text() == "nothing"
    assert "is killed by signal" in outcome.exception.text
    assert [each.exitcode for each in outcome.deaths] == [-number]


def test_deaths_are_facts_of_the_epoch_that_they_ended(records):
    """An epoch that comes to its end has none, though its workers have ended, too."""
    outcome = run_trial(lambda: Records(records))

    assert outcome.passes[-1].complete
    assert outcome.deaths == ()
