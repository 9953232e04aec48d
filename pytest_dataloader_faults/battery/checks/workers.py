"""Checks of workers that die, or that get no thread, no process or no memory. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.checks._epochs import FAULTS_IN_EPOCH_1
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import MemoryExhaustion, ThreadExhaustion, WorkerKilled
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.text import format_size


@check("worker-killed", "handles a worker that dies")
def worker_killed(workload: Workload) -> Iterator[Scenario]:
    """Between two operations, inside a read, and inside a write.

    Where in the epoch it dies makes no difference to the dataset. Whether it holds a lock, or has
    written half a file, does.
    """
    yield Scenario(faults=(WorkerKilled(),), title="in its first batch")
    if workload.readers:
        # In its first batch: a reader may hold the GIL, and then the worker could not send the
        # batches that it made before.
        fault = WorkerKilled(reading=workload.read.path, worker=min(workload.readers))
        yield Scenario(faults=(fault,), title="while it reads")
    if workload.writers:
        fault = WorkerKilled(writing=workload.written.path, worker=min(workload.writers))
        yield Scenario(faults=(fault,), title="while it writes")


@check("worker-killed-sending", "handles a worker that dies while it sends a batch")
def worker_killed_sending(workload: Workload) -> Iterator[Scenario]:
    """Apart from the others, because its failures are usually those of a wrapper around torch."""
    if workload.fault_free.loader.start_method == "forkserver":
        raise NotApplicable(
            "its workers come from a fork server. If one of them dies within a message, torch waits"
            " for the rest of it forever, whatever the dataset does: the worker is not a child of"
            " the main process, so no signal interrupts read(2)"
        )
    yield Scenario(faults=(WorkerKilled(sending=True),))


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


_NO_NUMBERS = "its indices are not integers, so no sample can be chosen"
_SIZE = format_size(MemoryExhaustion().min_bytes)
_FEW = 4
_SMALL = f"for two of its samples, the workers allocate less than {_SIZE} at once"
_ABORTS = Cause(
    "crashes when an allocation fails",
    "Code in C or C++ ended the worker: it does not check the result of malloc(3), or does not"
    " catch std::bad_alloc. If the worker printed a stack, it shows which library was called. Read"
    " less at once (a tile, a part of a file), or use another library",
    fix="read less at once, or use another library",
)


def _middle_and_last_sample(workload: Workload) -> list[int]:
    """Two samples of different batches: their indices, or their numbers in each worker.

    One if there is only one batch: the error of the second would hide the placeholder of the first.
    """
    run = workload.fault_free
    batches = [batch.keys for batch in run.delivered if batch.keys]
    if run.kind != "map":
        worker = next((each.worker for each in run.delivered), None)
        sizes = [len(each.samples) for each in run.delivered if each.worker == worker]
        ends = [*itertools.accumulate(sizes)] or [1]
        batches = [(end - 1,) for end in ends]
    samples = [batch[len(batch) // 2] for batch in batches]
    chosen = [samples[len(samples) // 2 - 1], samples[-1]] if samples[1:] else samples
    if not chosen or not all(type(each) is int for each in chosen):
        raise NotApplicable(_NO_NUMBERS)
    return chosen


def _require_allocation(_: Workload, outcome: Outcome) -> None:
    if not any(each.matched for each in outcome.faults):
        raise NotApplicable(_SMALL)


def _find_crash(outcome: Outcome, _: Reference) -> Finding | None:
    """A worker that was killed by a signal instead of raising an error."""
    crashes = [each for each in outcome.deaths if each.exitcode < 0]
    if not (outcome.fired and crashes):
        return None
    sentence = f"{crashes[0]} when an allocation failed, but an error was expected"
    return Finding(Verdict.FAILED_UNCLEARLY, sentence, _ABORTS)


@check(
    "memory-exhaustion",
    "handles an allocation that fails",
    rule=_find_crash,
    preface=f"An allocation of {_SIZE} or more failed for one sample, and all of them for another",
    advice=(
        "Let MemoryError reach the loader, or free memory, try again a limited number of times and"
        " then raise it. Catch the exceptions that you expect instead of Exception, and get the"
        " results of threads, as future.result() does, which raises their errors"
    ),
)
def memory_exhaustion(workload: Workload) -> Iterator[Scenario]:
    """An allocation fails once, which a second attempt survives, and leaves room for zeros.

    For a sample of a later batch every allocation fails, which a dataset may try again forever.
    One that raises the first error does not get there, and need not. A stream that leaves out the
    sample goes on with the next one, which then has the same number.
    """
    once, *always = _middle_and_last_sample(workload)
    times = None if workload.fault_free.kind == "map" else _FEW
    yield Scenario(
        faults=(
            MemoryExhaustion(times=1, sample=once),
            *(MemoryExhaustion(times=times, sample=sample) for sample in always),
        ),
        require_effect=_require_allocation,
    )


DEATHS = (worker_killed, worker_killed_sending)
