"""What a dataset does wrong if memory, a thread or a process is refused. Pure.

Some facts about libraries. libgomp prints an error and exits. OpenBLAS, which NumPy and SciPy use,
prints one, sends SIGINT to its own process, and then waits for the missing thread in a loop. Python
sees the signal only after that; if it does, torch's worker exits with status 0, without an error.
Arrow raises an error if the call itself needs a thread, but waits for a file that a thread of its
own should read. C++ code that does not catch std::system_error aborts.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_dataloader_faults.faults import MemoryExhaustion, ThreadExhaustion
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.judge.errors import (
    blame_crashed_library,
    find_explaining_deaths,
)
from pytest_dataloader_faults.outcomes.judge.rules import Judge
from pytest_dataloader_faults.outcomes.records import TrialFacts

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


class ExhaustionJudge(Judge):
    """The usual rules. It knows why a dataset waits for a thread, or a library ends a worker."""

    @classmethod
    def is_for(cls, outcome: TrialFacts) -> bool:
        """Whether an allocation failed, or a thread or a process could not start."""
        return outcome.has_fired(MemoryExhaustion, ThreadExhaustion)

    def judge(self) -> Finding:
        """The usual verdict; with its cause if a thread or a process could not start."""
        finding = blame_crashed_library(super().judge(), self.outcome)
        if not self.outcome.has_fired(ThreadExhaustion):
            return finding
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
