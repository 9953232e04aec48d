"""The check of threads: which libraries it covers, and what it shows without its fault."""

from __future__ import annotations

import functools
import signal
from typing import Any

import numpy as np
import pytest
import threadpoolctl
import torch

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine import explain_missing_engine
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks.threads.rules import ENDS_WORKER, OF_LIBRARY, WAITS
from pytest_dataloader_faults.faults import ThreadExhaustion
from pytest_dataloader_faults.outcomes import Pass, WorkerDeath
from pytest_dataloader_faults.outcomes.stages import DONE, START
from support.corpus.threads import (
    KeepsThread,
    ReadsInPool,
)
from support.datasets import Records
from support.facts import EPOCH_1, fired, map_reference, ordinary, raised, revised
from support.judging import judge_trial
from support.results import failure_of, result_of
from support.rows import rows, slow

pytestmark = pytest.mark.skipif(
    bool(explain_missing_engine()), reason=str(explain_missing_engine())
)
NAME = "thread-exhaustion"
NO_START = "its workers start no thread or process while they make batches"


class UsesOpenMp(Records):
    """Gives torch several threads in each worker."""

    threads = 2

    def __getitem__(self, index: int) -> Any:
        torch.set_num_threads(self.threads)
        value = float(self.paths[index].read_bytes()[0])
        return torch.full((1 << 20,), value).sqrt_().sum()


class UsesOneThread(UsesOpenMp):
    """Leaves torch the one that it has in workers."""

    threads = 1


class Multiplies(Records):
    """Multiplies matrices that are so large that OpenBLAS starts threads."""

    size = 600

    def __getitem__(self, index: int) -> Any:
        matrix = np.full((self.size, self.size), float(self.paths[index].read_bytes()[0]))
        return torch.tensor((matrix @ matrix)[0, 0])


def _make_alone(folder):
    """The same in one thread: workers keep a limit from before they started."""
    threadpoolctl.threadpool_limits(1)
    return Multiplies(folder)


def _uses_openblas():
    return any(each["internal_api"] == "openblas" for each in threadpoolctl.threadpool_info())


def test_a_library_that_ends_the_worker(records):
    loader = {"num_workers": 1, "batch_size": 4}
    result = failure_of(functools.partial(UsesOpenMp, records), NAME, loader=loader)

    assert result.verdict == "failed_unclearly"
    assert result.cause == OF_LIBRARY.phrase
    assert "OMP_NUM_THREADS=1" in result.explanation
    assert "libgomp: Thread creation failed" in result.explanation


@pytest.mark.slow
@pytest.mark.skipif(not _uses_openblas(), reason="this NumPy does not use OpenBLAS")
def test_a_library_that_waits_for_its_threads(records):
    make = functools.partial(Multiplies, records)
    outcome = run_trial(make, ThreadExhaustion(), deadline=3)
    finding = judge_trial(outcome, take_reference(make))

    assert finding.verdict == "hung", finding.sentence
    assert finding.cause == OF_LIBRARY


@pytest.mark.parametrize("make", [UsesOneThread, slow(_make_alone)])
def test_a_dataset_without_threads_is_left_out(records, make):
    result = result_of(functools.partial(make, records), NAME)

    assert not result.applies
    assert NO_START in result.explanation


def test_each_worker_starts_several(records):
    battery = Battery(functools.partial(ReadsInPool, records), Settings(samples=16))
    scenarios = CHECKS[NAME].plan_scenarios(battery.workload)

    assert [each.faults for each in scenarios] == [
        (ThreadExhaustion(),),
        (ThreadExhaustion(),),
        (ThreadExhaustion(nth=2),),
        (ThreadExhaustion(nth=2, times=1),),
    ]


def test_a_single_start_lacks_a_scenario(records):
    battery = Battery(functools.partial(KeepsThread, records), Settings(samples=16))

    assert len(CHECKS[NAME].plan_scenarios(battery.workload)) == 2


GONE = raised("RuntimeError", "DataLoader worker (pid(s) 4711) exited unexpectedly")
PRINTED = "OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource"
ARROW = """Process 7 (sleeping, in futex_do_wait):
  File "x.py", line 9 in __getitem__
  File "/site-packages/pyarrow/parquet/core.py", line 1606 in read
"""


def _dead(exitcode):
    return Pass(EPOCH_1, exception=GONE, deaths=(WorkerDeath(1, 4711, exitcode),))


@rows(
    ("epoch", "facts", "verdict", "cause"),
    [
        (Pass(EPOCH_1), {"phase": START, "timed_out": True}, "hung", WAITS),
        (Pass(EPOCH_1), {"phase": START, "timed_out": True, "stderr": PRINTED}, "hung", OF_LIBRARY),
        (Pass(EPOCH_1), {"phase": START, "timed_out": True, "stacks": ARROW}, "hung", OF_LIBRARY),
        (_dead(0), {"stderr": f"x\n{PRINTED}\n"}, "failed_unclearly", OF_LIBRARY),
        (_dead(-signal.SIGABRT), {}, "failed_unclearly", ENDS_WORKER),
        (
            Pass(EPOCH_1, exception=raised("ValueError", "no sample")),
            {"stderr": PRINTED},
            "failed_unclearly",
            None,
        ),
        (
            Pass(EPOCH_1, exception=raised("RuntimeError", "can't start new thread")),
            {"stderr": PRINTED},
            "failed_cleanly",
            None,
        ),
    ],
)
def test_the_cause_follows_from_the_facts(epoch, facts, verdict, cause):
    fault = fired(ThreadExhaustion(), path=None, call="clone3")
    outcome = revised(ordinary(epoch, fault), **{"phase": DONE, "epochs": (epoch,), **facts})
    finding = judge_trial(outcome, map_reference())

    assert (finding.verdict, finding.cause) == (verdict, cause)
