"""Deaths of workers reach the loop where it waits for a batch, and no other code of the trial."""

import errno
import multiprocessing
import os
import signal

import pytest
from torch.utils.data import Sampler, get_worker_info

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults.faults import TruncatedFile
from support.datasets import Records, RecordStream
from support.judging import judge_trial


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


@pytest.mark.parametrize(("number", "persistent"), [(signal.SIGKILL, False), (signal.SIGBUS, True)])
def test_a_death_raises_where_the_loop_waits(records, tmp_path, number, persistent):
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


class ExitsOnShortData(Records):
    """Leaves with status 0, and says nothing, where a file is too short."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except ValueError:
            os._exit(0)


def test_an_exit_with_status_0_is_a_death_too(records, reference):
    outcome = run_trial(lambda: ExitsOnShortData(records), TruncatedFile("*.rec"))
    judgement = judge_trial(outcome, reference)

    assert {each.exitcode for each in outcome.deaths} == {0}
    assert judgement.verdict == "failed_unclearly"
    assert "exited with status 0" in judgement.sentence


class FailsAtTheEnd(RecordStream):
    """The second worker raises when the first has come to the end of its stream, and has left."""

    def __iter__(self):
        yield from super().__iter__()
        if get_worker_info() and get_worker_info().id == 1:
            raise OSError(errno.EIO, "at the end")


def test_a_worker_at_the_end_of_its_stream_has_not_died(records):
    outcome = run_trial(lambda: FailsAtTheEnd(records), loader={"num_workers": 2, "batch_size": 1})

    assert outcome.exception.type == "OSError"
    assert outcome.deaths == ()
