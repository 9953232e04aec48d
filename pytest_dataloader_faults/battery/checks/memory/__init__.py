"""The check of memory: what workers add to that of the main process. Pure.

The step that measures is here. What that does in a trial is in ``measure``, which is imported there
only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.records import Outcome
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import DONE
from pytest_dataloader_faults.outcomes.text import format_size, pluralize
from pytest_dataloader_faults.steps import Epoch, Step, arm_workers
from pytest_dataloader_faults.wire import Note

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

# Some facts about what grows without a defect. A worker that has just started copies pages of the
# interpreter for some hundred samples. A cache with a limit grows until it is full. So the first
# quarter of the samples is ignored, and the rest is cut into three parts: the part in which the
# memory grew least shows the growth of each sample. If memory grows at all, four times as many
# samples are read, so that only a cache that these do not fill looks like one without a limit.
#
# Some facts about how exact that is. Only the worker's own writes count, page by page, whatever
# else runs. What remains is some 20 pages per part, by which the working set of the interpreter
# grows, so less than ``_FEWEST_PAGES`` is no growth. For a long dataset these few pages mean a lot
# of memory: so the number of samples that are read rises with the length, and ``is_enough`` says
# from how many on half the default limit shows.


CALLS_USER_CODE = True
FEWEST_SAMPLES = 1024
"""If an epoch draws fewer, they are not measured."""
BLOCKS = 16
"""How many blocks of samples are read, with a measurement after each."""
TIMES_TO_CONFIRM = 4
_MOST_SAMPLES = 32_768
_SHARE = 32
"""The number of samples to read is that of the dataset, divided by this."""
_FEWEST_ENOUGH, _SHARE_ENOUGH = 256, 128
_PARTS = 3
_FEWEST_BLOCKS = 5
"""The first one, and another measurement at the end of each part."""
_FEWEST_PAGES = 48
_LEAST_TO_NOTE = 16 << 20

_UNKNOWN_DRAWS = (
    "which samples its sampler draws in an epoch is unknown: it raised an error, took too long, or"
    " drew other indices than integers from 0 to the length of the dataset"
)
COPIES = Cause(
    "copies the dataset into every worker",
    "Store the data in few large objects instead of many small ones: a NumPy array, a tensor, a"
    " pyarrow table, or one bytes object with an array of offsets. If this is intentional, declare"
    " the bytes that each worker may add, as in Contract(worker_memory=4 * 2**30)",
    fix="store the data in a NumPy array, a tensor or one bytes object",
)
KEEPS = Cause(
    "keeps every sample that a worker has read",
    "Each worker fills its own cache, and keeps it for the whole epoch. Limit the cache, as in"
    " functools.lru_cache(maxsize=1000), or share it: a file that is mapped, or a tensor after"
    " share_memory_(). If this is intentional, declare the bytes that each worker may add, as in"
    " Contract(worker_memory=4 * 2**30)",
    fix="limit the cache, or share it among the workers",
)


def block_size(length: int) -> int:
    """How many of *length* samples a block has."""
    return min(_MOST_SAMPLES, max(FEWEST_SAMPLES, length // _SHARE)) // BLOCKS


class Growth(NamedTuple):
    """What each sample adds to the memory of a worker, and all samples together, in bytes.

    Attributes:
        copied: By each sample, of what the worker inherited.
        kept: By each sample, in addition to that.
        total: By all samples.
    """

    copied: float
    kept: float
    total: float


@dataclass(frozen=True)
class WorkerMemory(Note):
    """The memory of one worker that read a row of new samples, after each block of them.

    Attributes:
        length: How many different samples an epoch draws; 0 if that is unknown.
        workers: The number of workers of the loader.
        stays: Whether workers are persistent, so that in time each of them reads all samples.
        limit: How many bytes each worker may add, by the contract.
        samples: How many samples the worker had read.
        unshared: Bytes of memory that it shared with no other process.
        allocated: Bytes of memory that it did not inherit, in addition to those of a constant.
        shared: Bytes that it still shared when it was measured first.
        page: Bytes of a page.
        error: What the loader raised, on one line; "" if nothing.
    """

    length: int
    workers: int
    limit: int
    samples: tuple[int, ...] = ()
    unshared: tuple[int, ...] = ()
    allocated: tuple[int, ...] = ()
    shared: int = 0
    stays: bool = False
    page: int = 4096
    error: str = ""


def growth_of(memory: WorkerMemory) -> Growth | None:
    """How *memory* grows with each sample; None if it does not, as far as that shows."""
    growth = _growth_per_sample(memory, memory.unshared)
    if growth is None:
        return None
    kept_bytes = min(growth, _growth_per_sample(memory, memory.allocated) or 0.0)
    copied = growth - kept_bytes
    # Samples of all workers lie on the same pages, but each worker caches only its own samples.
    reads = memory.length if memory.stays else -(-memory.length // max(1, memory.workers))
    return Growth(
        copied, kept_bytes, min(copied * memory.length, memory.shared) + kept_bytes * reads
    )


def _growth_per_sample(memory: WorkerMemory, sizes: tuple[int, ...]) -> float | None:
    """In the part of the blocks in which *sizes* grew least; None if there is no growth in it."""
    start, end = (len(sizes) - 1) // 4, len(sizes) - 1
    cuts = [start + (end - start) * part // _PARTS for part in range(_PARTS + 1)]
    if len(sizes) < _FEWEST_BLOCKS:
        return None
    samples = memory.samples
    parts = [(sizes[b] - sizes[a], samples[b] - samples[a]) for a, b in pairwise(cuts)]
    if min(size for size, _ in parts) < _FEWEST_PAGES * memory.page:
        return None
    return min(size / count for size, count in parts)


def is_enough(memory: WorkerMemory) -> bool:
    """Whether so many samples were read that growth shows if it is too much."""
    if len(memory.samples) < _FEWEST_BLOCKS:
        return False
    return max(memory.samples) >= max(
        _FEWEST_ENOUGH, min(_MOST_SAMPLES, memory.length // _SHARE_ENOUGH)
    )


def require_samples(count: int, subject: str) -> None:
    """Raise NotApplicable if so few samples do not show how memory grows."""
    if count < FEWEST_SAMPLES:
        raise NotApplicable(
            f"{subject} {pluralize(count, 'sample')}, and the memory that each sample adds to a"
            f" worker shows only from {FEWEST_SAMPLES:,} samples on"
        )


def require_measurement(_: Workload, outcome: Outcome) -> None:
    """Raise NotApplicable if no memory was measured, or too few samples were drawn or read."""
    memories = outcome.of(WorkerMemory)
    if outcome.phase == DONE and not memories:
        raise NotApplicable("the memory of its workers was not measured")
    for memory in memories:
        if not memory.length:
            raise NotApplicable(_UNKNOWN_DRAWS)
        require_samples(memory.length, "its sampler draws")
        if memory.error:
            raise NotApplicable(f"reading its samples in a row raised {memory.error}")
        if not is_enough(memory):
            count = pluralize(max(memory.samples, default=0), "sample")
            raise NotApplicable(
                f"only {count} could be read in time, which do not show how the memory of a worker"
                " grows. Raise the deadline",
                "its samples take too long",
            )


def find_growth(outcome: Outcome, _: Reference) -> Finding | None:
    """Memory of a worker that exceeds the limit of the contract by the end of an epoch."""
    for memory in outcome.of(WorkerMemory):
        growth = growth_of(memory)
        if growth is not None and growth.total >= memory.limit:
            limit = f"but the contract allows each worker {format_size(memory.limit)}"
            cause = COPIES if growth.copied > growth.kept else KEEPS
            sentence = f"{_describe_growth(memory, growth)}, {limit}"
            return Finding(Verdict.LEAKED, sentence, cause)
    return None


def describe(outcome: Outcome, finding: Finding) -> str:
    """The sentence of *finding*; if it passes, what the samples added to a worker's memory."""
    memories = outcome.of(WorkerMemory)
    if not (finding.passed and memories):
        return finding.sentence
    growth = growth_of(memories[0])
    if growth is not None:
        return _describe_growth(memories[0], growth)
    count = pluralize(max(memories[0].samples), "sample", ",")
    return f"after {count} in a row, the memory of a worker no longer grew"


def note(outcome: Outcome) -> str:
    """What to know about the memory of a dataset that passes; "" if the memory is small."""
    for memory in outcome.of(WorkerMemory):
        growth = growth_of(memory)
        if growth is not None and growth.total >= _LEAST_TO_NOTE:
            return _describe_growth(memory, growth)
    return ""


def _describe_growth(memory: WorkerMemory, growth: Growth) -> str:
    size = format_size(growth.copied + growth.kept)
    action = f"copies {size} of the dataset's objects"
    if growth.kept >= growth.copied:
        action = f"leaves {size} in the worker that read it"
    count = memory.workers
    place = "the worker" if count == 1 else f"each of {pluralize(count, 'worker')}"
    length = pluralize(memory.length, "sample", ",")
    return f"every sample {action}: {format_size(growth.total)} in {place} for {length}"


_STREAM = "a stream has no length by which the memory of a whole epoch could be computed"
_NOT_FORKED = (
    "its workers are not forked, so each has a separate copy of the dataset from the start"
)
_READS_IN_A_ROW = (
    "A forked worker shares the memory of the main process, page by page, until one of them writes"
    " to a page. Python counts the references to an object in the object itself, so reading an"
    " object writes to its page. The check reads samples in a row in one worker, and counts the"
    " pages that the worker no longer shares"
)


@dataclass(frozen=True)
class MeasureMemory(Step):
    """Read a row of new samples in one worker, and measure its memory in between."""

    def run(self, process: TrialProcess) -> None:
        """Measure it."""
        from pytest_dataloader_faults.battery.checks.memory.measure import measure

        measure(process, process.loader)


@check(
    "copy-on-write",
    "reading samples does not copy the dataset into every worker",
    scenario=Scenario(
        processes=arm_workers(Epoch(), before=(MeasureMemory(),)),
        require_effect=require_measurement,
    ),
    rule=find_growth,
    describe=describe,
    note=note,
    preface=_READS_IN_A_ROW,
)
def copy_on_write(workload: Workload) -> Iterator[Scenario]:
    """Short datasets need no trial: their memory cannot matter.

    Which samples a sampler draws, and whether these have numbers, shows in the trial.
    """
    run = workload.fault_free
    if run.kind != "map":
        raise NotApplicable(_STREAM)
    length = run.epochs[0].length
    if (count := workload.reference.readable if length is None else length) is not None:
        require_samples(count, "it has")
    if run.loader.start_method != "fork":
        raise NotApplicable(_NOT_FORKED)
    yield Scenario()
