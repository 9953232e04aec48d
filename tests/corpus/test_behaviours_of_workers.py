"""What torch does with errors, deaths, hangs and streams, and how the harness takes it."""

import ctypes
import random
import signal
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Contract, check_dataset, inject, run_trial
from pytest_dataloader_faults.faults import OpenError, ReadError, WorkerHung, WorkerKilled
from pytest_dataloader_faults.outcomes.stages import DONE
from support.corpus.endless import FirstOfEach, RandomPerWorker
from support.corpus.streams import WrongLength
from support.datasets import COUNT, Records
from support.epochs import alone, epoch
from support.waiting import allowed, until

TWO = {"num_workers": 2, "batch_size": 4}


class RecordError(Exception):
    def __init__(self, path, reason):
        super().__init__(f"{path}: {reason}")


class MissingRecord(KeyError):  # noqa: N818  # named as users name it
    """A KeyError of the user's own."""


class RaisesRecordError(Records):
    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except OSError as error:
            raise RecordError(self.paths[index], error.strerror) from None


class RaisesKeyError(Records):
    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except ValueError:
            raise MissingRecord(self._message_for(index)) from None

    def _message_for(self, index):
        return str(self.paths[index])


class RaisesEmptyKeyError(RaisesKeyError):
    """Says nothing, in a line of code that speaks of something truncated."""

    def _message_for(self, index):
        return {"truncated": "no record"}["truncated"]


def _check(make, check):
    (result,) = check_dataset(make, only=check, on_fail=None)
    return result


def test_an_exception_with_two_arguments_is_clear(records):
    result = _check(lambda: RaisesRecordError(records), "read-error")

    assert (result.verdict, result.passed) == ("failed_cleanly", True), result.explanation
    assert result.outcome.exception.type == "RuntimeError"
    assert "RecordError: " in result.outcome.exception.text


def test_errno_is_lost_and_the_text_is_not(records):
    with inject(OpenError("*.rec")) as injection:
        error = epoch(alone(Records(records))).error

    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (None, None)
    assert injection.mentioned == 1


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [(RaisesKeyError, "failed_cleanly"), (RaisesEmptyKeyError, "failed_unclearly")],
)
def test_an_escaped_text_is_judged_by_its_messages(records, kind, verdict):
    result = _check(lambda: kind(records), "truncated-file")

    assert verdict == result.verdict, result.explanation
    assert "\\nOriginal Traceback" in result.outcome.exception.text


def _fail(_worker):
    message = "no licence for this worker"
    raise RuntimeError(message)


def test_an_error_of_worker_init_fn_is_the_one_reported(records):
    loader = {**TWO, "worker_init_fn": _fail}
    (result,) = check_dataset(
        lambda: Records(records), loader=loader, only="workers-agree", on_fail=None
    )

    assert (result.verdict, result.failed) == ("fails_without_fault", True)
    assert "no licence for this worker" in result.explanation.splitlines()[0]
    assert "UnboundLocalError" not in result.outcome.exception.text


def test_deaths_after_the_first_disturb_no_process(records):
    loader = {"num_workers": 3, "batch_size": 2}
    outcome = run_trial(lambda: Records(records), WorkerKilled(worker=None), loader=loader)

    assert outcome.fired == 3
    assert (outcome.phase, outcome.died, outcome.recovery.exception) == (DONE, None, None)


def test_hung_workers_do_not_hold_up_the_end(records):
    loader = {**TWO, "timeout": allowed(1)}
    outcome = run_trial(lambda: Records(records), WorkerHung(worker=None), loader=loader)

    assert "timed out" in outcome.exception.text
    assert outcome.recovery.complete
    assert outcome.duration < allowed(9)


class KeepsTheLock(Records):
    """From the second batch on it waits in C code that does not give up the interpreter lock."""

    def __getitem__(self, index):
        if index == 4:
            ctypes.PyDLL(None).sleep(600)
        return super().__getitem__(index)


@pytest.mark.slow
def test_a_hang_that_no_timeout_ends_is_located(records):
    """Whether torch's timeout comes or not, no thread of that worker goes on, and none can end it.

    The stack of the code that holds the lock is told all the same.
    """
    loader = {"num_workers": 1, "batch_size": 4, "timeout": allowed(1)}
    outcome = run_trial(lambda: KeepsTheLock(records), loader=loader, deadline=4)

    assert outcome.timed_out
    assert "test_behaviours_of_workers.py" in outcome.end.stacks.rpartition("_worker_loop")[0]


class Large(Records):
    def __getitem__(self, index):
        return bytes(1 << 20), super().__getitem__(index)[0]


def test_an_error_with_full_queues_ends_in_time(records):
    loader = {"num_workers": 2, "batch_size": 2, "prefetch_factor": 8, "collate_fn": list}
    fault = ReadError("*/00.rec")
    outcome = run_trial(lambda: Large(records), fault, loader=loader)

    assert "Input/output error" in outcome.exception.text
    assert outcome.recovery.complete
    assert outcome.duration < allowed(9)


@pytest.mark.slow
def test_a_death_is_seen_by_a_loop_in_a_thread(records):
    epochs = []
    with inject(WorkerKilled()) as injection:
        loader = alone(Records(records))
        thread = threading.Thread(target=lambda: epochs.append(epoch(loader)))
        thread.start()
        thread.join(60)

    (read,) = epochs
    assert ([], 1) == (read.batches, injection.mentioned)
    assert {signal.SIGKILL} == read.signals


@pytest.mark.slow
def test_an_idle_worker_that_dies_ends_the_next_epoch(records):
    """Torch tells at once in whatever code runs, and again when the next epoch begins."""
    loader = DataLoader(Records(records), num_workers=1, batch_size=4, persistent_workers=True)
    with inject(ReadError("*.none"), require_fired=False) as injection:
        assert len(list(loader)) == 4
        (worker,) = loader._iterator._workers
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            _kill_and_wait(worker)
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            list(loader)
        loader._iterator._shutdown_workers()
    assert len(injection.errors) <= 1
    assert worker.exitcode == -signal.SIGKILL


def _kill_and_wait(worker):
    worker.kill()
    until(lambda: False, 5)


SKIPS = Contract(may_skip=True)


@pytest.fixture(name="check_once")
def _check_once(ask_once):
    """The result of a check, of which the dataset has had other checks before."""

    def check_once(dataset, check, contract=None, *, fails=False):
        return ask_once(dataset, check, fails=fails, contract=contract)

    return check_once


ENDLESS = "samples were compared by shapes, the first 64 of each worker"
RANDOM = "samples were compared by shapes, 16 different samples per worker"


@pytest.mark.parametrize(
    ("dataset", "check", "note", "most"),
    [
        (RandomPerWorker, "workers-agree", ENDLESS, 16),
        (RandomPerWorker, "worker-killed", ENDLESS, 16),
        (FirstOfEach, "workers-agree", RANDOM, 4),
        (FirstOfEach, "two-epochs", RANDOM, 4),
    ],
)
def test_stream_of_random_samples_or_without_an_end(dataset, check, note, most, check_once):
    result = check_once(dataset, check)

    assert result.passed, result.explanation
    assert note in result.explanation
    passes = result.outcome.epochs
    assert {len(each.delivered) for each in passes if each.complete} <= {most, 2 * most}


NEVER = OpenError("*.rec", nth=10**6)
"""Has the opens of these files counted."""


def test_wrong_length_loses_nothing(records):
    (result,) = check_dataset(lambda: WrongLength(records), only="workers-agree")

    assert result.verdict == "survived"
    assert sum(len(each.samples) for each in result.outcome.delivered) == COUNT


class Draws(Records):
    def __init__(self, folder: Any, draw: Any) -> None:
        super().__init__(folder)
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        return float(self.draw())


@pytest.mark.parametrize(
    "draw", [np.random.normal, random.random, lambda: torch.rand(())], ids=["numpy", "py", "torch"]
)
def test_global_generators_repeat_nothing(draw, records):
    outcome = run_trial(lambda: Draws(records, draw), epochs=2)

    drawn = Counter(row for each in outcome.delivered for row in each.digests)
    assert len(drawn) == 2 * COUNT


class Cached(Records):
    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]


@pytest.mark.parametrize(("persistent", "opens"), [(False, 2 * COUNT), (True, COUNT)])
def test_cache_of_a_worker_ends_with_it(persistent, opens, records):
    loader = {"num_workers": 2, "batch_size": 4, "persistent_workers": persistent}
    outcome = run_trial(lambda: Cached(records), NEVER, loader=loader, epochs=2)

    counts = [each for worker in outcome.workers for each in worker.files.values()]
    assert opens == sum(each.opens for each in counts)
    assert len(outcome.delivered) == 2 * COUNT / 4
