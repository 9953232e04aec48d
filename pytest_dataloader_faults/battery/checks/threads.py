"""The check of threads and processes: none can be started, or no second one. Pure.

Some facts about libraries. libgomp prints an error and exits. OpenBLAS, which NumPy and SciPy use,
prints one, sends SIGINT to its own process, and then waits for the missing thread in a loop. Python
sees the signal only after that; if it does, torch's worker exits with status 0, without an error.
Arrow raises an error if the call itself needs a thread, but waits for a file that a thread of its
own should read. C++ code that does not catch std::system_error aborts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.checks._epochs import FAULTS_IN_EPOCH_1
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload, require_real_files
from pytest_dataloader_faults.faults import ThreadExhaustion
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.judge import Judge
from pytest_dataloader_faults.outcomes.judge.errors import (
    blame_crashed_library,
    find_explaining_deaths,
)
from pytest_dataloader_faults.outcomes.records import TrialFacts

_NO_START = "its workers start no thread or process while they make batches"
_NO_SECOND = "its workers start a second thread or process in some passes only"
_REFUSED = (
    "Threads and processes could not be started (EAGAIN), as at the process limit of a user or a"
    " container"
)
_RAISE_ERROR = (
    "Let the error of start(), submit() or subprocess.run() reach the loader. If a pool is kept"
    " for later samples, assign it only after its threads have started"
)
_PRINTED = re.compile(r"libgomp: Thread creation failed|OpenBLAS \w+: pthread_create failed")
_IN_ARROW = "/pyarrow/"
OF_LIBRARY = Cause(
    "uses a library that hangs or exits without its threads",
    "A library could not start its threads, and raised no error: OpenBLAS, which NumPy uses, and"
    " Arrow then wait forever, and OpenMP ends the worker. Workers run in parallel already, so"
    " limit libraries to one thread in each: set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1"
    " before the program starts, call cv2.setNumThreads(0) in worker_init_fn, and pass"
    " use_threads=False and pre_buffer=False to pyarrow.parquet.read_table()",
    overrides=True,
    fix="limit libraries to one thread per worker, for example with OPENBLAS_NUM_THREADS=1",
)
WAITS = Cause(
    "waits for a thread or process that did not start",
    "A thread or a process could not be started, and the code waits for its result. Let the error"
    " of start() or submit() reach the loader, assign a pool or a queue only after its threads have"
    " started, and pass a timeout to result(), join() and get()",
    overrides=True,
    fix="let the error of start() reach the loader, before anything waits for the thread",
)
ENDS_WORKER = Cause(
    "crashes the worker when a thread or process cannot start",
    "A signal killed the worker when a thread or a process could not be started, so the loader's"
    " error does not say why. C++ code aborts if nothing catches std::system_error: limit the"
    " library to one thread per worker. In Python, raise an exception",
    overrides=True,
    fix="limit libraries to one thread per worker, and raise an exception in Python",
)


@check(
    "thread-exhaustion",
    "handles a thread or a process that cannot be started",
    preface=_REFUSED,
    advice=_RAISE_ERROR,
)
def thread_exhaustion(workload: Workload) -> Iterator[Scenario]:
    """Several ways, because code may handle a pool without a thread, but not one that lacks some.

    First in workers that continue after the error, since a queue or a pool may be kept there. The
    error of the first start would hide what a dataset returns in place of one result.
    """
    require_real_files()
    start_count = workload.count_busiest("starts")
    if not start_count:
        raise NotApplicable(_NO_START)
    faults = (ThreadExhaustion(),)
    yield replace(FAULTS_IN_EPOCH_1, faults=faults, title="in the first of two epochs")
    yield Scenario(faults=faults, title="from the first start on")
    if start_count > 1:
        from_second, second = ThreadExhaustion(nth=2), ThreadExhaustion(nth=2, times=1)
        yield _later("from the second start on", from_second)
        yield _later("the second start alone", second)


def _later(title: str, fault: ThreadExhaustion) -> Scenario:
    return Scenario(faults=(fault,), title=title, require_effect=_require_second_start)


def _require_second_start(_: Workload, outcome: Outcome) -> None:
    """How many threads a pool starts may depend on how fast the first one is."""
    if not outcome.fired:
        raise NotApplicable(_NO_SECOND)


class ThreadsJudge(Judge):
    """The usual rules. It knows why a dataset waits, or ends a worker, without a thread."""

    @classmethod
    def is_for(cls, outcome: TrialFacts) -> bool:
        """Whether a thread or a process could not start."""
        fired = (each.fault for each in outcome.faults if each.fired)
        return any(isinstance(fault, ThreadExhaustion) for fault in fired)

    def judge(self) -> Finding:
        """The usual verdict, with its cause."""
        finding = blame_crashed_library(super().judge(), self.outcome)
        return replace(finding, cause=_cause_of(finding, self.outcome))


def _cause_of(finding: Finding, outcome: TrialFacts) -> Cause | None:
    waits = finding.verdict in (Verdict.HUNG, Verdict.LEAKED) and outcome.timed_out
    is_unclear = finding.verdict is Verdict.FAILED_UNCLEARLY
    ended = is_unclear and bool(find_explaining_deaths(outcome))
    if (waits or ended) and (_PRINTED.search(outcome.stderr) or _IN_ARROW in outcome.end.stacks):
        return OF_LIBRARY
    if waits:
        return WAITS
    return ENDS_WORKER if ended and finding.cause is None else finding.cause
