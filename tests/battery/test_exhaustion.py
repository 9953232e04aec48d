"""The checks of threads that do not start and of allocations that fail."""

import functools
import signal

import pytest

from pytest_dataloader_faults._engine import explain_missing_engine
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.faults import ThreadExhaustion
from pytest_dataloader_faults.outcomes import Pass, Verdict, WorkerDeath
from pytest_dataloader_faults.outcomes.judge.causes import (
    ENDS_WORKER,
    OF_LIBRARY,
    WAITS,
    likely_cause,
)
from pytest_dataloader_faults.outcomes.stages import DONE, START
from support.corpus.threads import (
    KeepsThread,
    ReadsInPool,
)
from support.datasets import Records
from support.facts import EPOCH_1, fired, map_reference, ordinary, raised, revised
from support.judging import judge_trial
from support.results import result_of
from support.rows import rows

pytestmark = pytest.mark.skipif(
    bool(explain_missing_engine()), reason=str(explain_missing_engine())
)
NAME = "thread-exhaustion"


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


FAULT_FREE = ordinary(Pass(EPOCH_1, complete=True))


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
            Verdict.FAILED_UNCLEARLY.usual_cause,
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

    assert finding.verdict == verdict
    assert likely_cause(outcome, finding, FAULT_FREE) == cause


MEMORY = "memory-exhaustion"


def test_it_applies_to_datasets_that_allocate_much(records):
    result = result_of(lambda: Records(records), MEMORY)
    assert not result.applies
    assert "the workers allocate less than 64 KiB at once" in result.explanation
