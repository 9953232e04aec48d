"""Rank checks: a training job has a loader in each of its processes. Pure.

The steps are here. How workers record their generators in a trial is in ``generator_states``, which
is imported there only.
"""

from __future__ import annotations

import builtins
import functools
import io
import itertools
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults.battery.checks._base import Scenario, check, for_each_kind
from pytest_dataloader_faults.battery.checks._epochs import SAME_ORDER, is_in_order
from pytest_dataloader_faults.battery.workload import Workload
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from pytest_dataloader_faults.outcomes import Finding, Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.stages import FolderShared, Phase, Stage
from pytest_dataloader_faults.steps import (
    Epoch,
    Make,
    Process,
    Processes,
    Step,
    arm_workers,
    run_epochs,
)
from pytest_dataloader_faults.wire import Note

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

# Some facts about ranks that prepare files in one folder. Each rank runs the same code: ``if not
# folder.exists(): extract(archive, folder)``. One of them creates a file, and another finds it
# before it is whole. Which rank is first varies. So rank 0 waits once it has created a file, until
# another rank has a batch or an error. The others start once rank 0 waits. If they have to wait
# themselves, at a barrier or for a lock, rank 0 continues after a while.


CALLS_USER_CODE = True

SAME_NUMBERS = Cause(
    "draws the same random numbers in several workers",
    advice=(
        "torch seeds the generators of each worker differently in each epoch and on each rank. A"
        " seed in worker_init_fn replaces that: remove it, or derive it from torch.initial_seed()."
        " A generator that is passed to the DataLoader needs another seed on each rank"
    ),
    fix="remove the seed from worker_init_fn, or derive it from torch.initial_seed()",
)


@dataclass(frozen=True)
class UsedGenerator(Note):
    """A global generator from which a worker drew random numbers for its first batch.

    Attributes:
        worker: The number of the worker.
        library: Whose generator it is: ``"torch"``, ``"NumPy"`` or ``"Python"``.
        state: A digest of its state before the first batch.
    """

    worker: int
    library: str
    state: str


@dataclass(frozen=True)
class RecordGenerators(Step):
    """Have each worker record its generators, in workers that start within one second.

    A seed that is taken from the clock is the same in all of them then.
    """

    def run(self, process: TrialProcess) -> None:
        """Record them from now on, if samples are random."""
        from pytest_dataloader_faults.battery.checks.ranks.generator_states import record

        if process.job.comparison.allows_for_randomness:
            record(process, process.loader, UsedGenerator)


def _two_epochs(*before: Step, after: Process = ()) -> Processes:
    """Two epochs of a dataset whose constructor may fail in one rank, because of the others."""
    ((_, *following),) = arm_workers(Epoch(), Epoch(), before=after)
    return ((*before, Make(Phase(Stage.EPOCH, 1)), *following),)


def find_same_numbers(outcome: Outcome) -> Finding | None:
    """Workers whose generators had the same state in the first epoch: of two ranks, or of one."""
    places = defaultdict(list)
    for number, facts in enumerate(outcome.ranks):
        # The workers of later epochs have the same numbers as those of the first one.
        states = {(each.library, each.worker): each.state for each in facts.of(UsedGenerator)[::-1]}
        for (library, worker), state in sorted(states.items()):
            places[library, state].append((number, worker))
    pairs = [
        (rank == other_rank, (rank, worker), (other_rank, other_worker), library)
        for (library, _), same_state in places.items()
        for (rank, worker), (other_rank, other_worker) in itertools.combinations(same_state, 2)
    ]
    if not pairs:
        return None
    is_one_rank, (rank, worker), (other_rank, other_worker), library = min(pairs)
    workers = f"worker {worker} of rank {rank} and worker {other_worker} of rank {other_rank}"
    if is_one_rank:
        workers = f"workers {worker} and {other_worker} of rank {rank}"
    sentence = f"{workers} drew the same random numbers from {library}"
    return Finding(Verdict.CORRUPTED, sentence, SAME_NUMBERS)


_TIMEOUT = 2.0
"""Seconds. Shorter than the time for which a rank waits for files of rank 0, by its own limit."""


@dataclass(frozen=True)
class HoldWrites(Step):
    """Have rank 0 wait when it prepares files, and the others until it does."""

    def run(self, process: TrialProcess) -> None:
        """Hold what Python code opens in this process until the dataset is made."""
        meetings: Any = process.meetings
        process.journal.write(FolderShared())
        for name in ("meet", "leave"):  # It has a batch then, or an error in place of it.
            report = functools.partial(_report, meetings, getattr(meetings, name))
            setattr(meetings, name, report)
        if meetings.number:
            _await(process, "rank 0")
        else:
            for module in (builtins, io, os):
                vars(module)["open"] = _hold(process, vars(module)["open"])


def _hold(process: TrialProcess, original: Callable[..., Any]) -> Callable[..., Any]:
    """The function *original*, which waits after it has created a file or emptied it."""
    make_dataset, may_wait, pid = process.job.make_dataset, True, os.getpid()
    while hasattr(make_dataset, "source"):  # A factory of one of several loaders.
        make_dataset = make_dataset.source
    folder = os.path.join(os.path.realpath(make_dataset.args[0]), "")

    @functools.wraps(original)
    def open_and_wait(path: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal may_wait
        size = _size_in(folder, path)
        opened = original(path, *args, **kwargs)
        is_new = size != 0 and _size_in(folder, path) == 0
        # User code may fork this process.
        if is_new and may_wait and process.loader is None and os.getpid() == pid:
            _report(process.meetings, str)
            may_wait = _await(process, "others")
        return opened

    return open_and_wait


def _size_in(folder: str, path: Any) -> int | None:
    """The size of the file *path*; None if there is none, or if it is not below *folder*."""
    try:
        return os.path.getsize(path) if os.path.realpath(path).startswith(folder) else None
    except (OSError, TypeError, ValueError):
        return None


def _report(meetings: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Write down for the others that they may continue, and call *function*."""
    meetings.notes.set("others" if meetings.number else "rank 0", b"")
    return function(*args, **kwargs)


def _await(process: Any, note: str) -> bool:
    """Whether another rank writes down *note* in time. That time does not count."""
    from pytest_dataloader_faults._trial.journal import LOADER, OTHERS

    process.journal.write_turn(OTHERS)
    end = time.monotonic() + min(_TIMEOUT, process.job.settings.longest_epoch / 2)
    while not (is_noted := process.meetings.notes.check([note])) and time.monotonic() < end:
        time.sleep(0.005)
    process.journal.write_turn(LOADER)
    return bool(is_noted)


RANKS_AGREE = "ranks-agree"
WITHOUT_RANKS = (
    "it applies to training with several processes: pass ranks=2, or --dataloader-faults-ranks=2"
)
_HALVES = 2


def _find_violation(outcome: Outcome, _: Reference) -> Finding | None:
    """The same random numbers on two ranks, or the same order in both epochs."""
    return find_same_numbers(outcome) or _find_same_order(outcome)


@check(
    RANKS_AGREE,
    "together, the ranks of a training job deliver each sample exactly once, in the same number of"
    " batches each, draw different random numbers, and shuffle each epoch in another order",
    scenario=Scenario(
        ranks=True, watch_files=True, processes=_two_epochs(after=(RecordGenerators(),))
    ),
    rule=_find_violation,
    advice="Split the samples by rank and by worker: torch.distributed.get_rank() and"
    " get_world_size(), or RANK and WORLD_SIZE, and get_worker_info(). For indices use"
    " DistributedSampler; for streams, webdataset's split_by_node or datasets'"
    " split_dataset_by_node. Every rank needs the same number of batches: drop the remainder, or"
    " repeat samples. If a trainer adds its own sampler to the loader, or make_dataset divides a"
    " map-style dataset, pass the loader that the trainer uses",
)
def ranks_agree(workload: Workload) -> Iterator[Scenario]:
    """Two epochs without a fault, and then in one folder, if make_dataset takes one.

    In the first trial each rank has its own folder, so that a race does not hide other failures.
    """
    yield Scenario()
    if workload.own_folders.paths:
        yield Scenario(
            title="in one folder",
            # What the ranks write in the first epoch, they may read in the second one.
            processes=_two_epochs(HoldWrites()),
            shares_folder=True,
            circumstance="when the ranks shared a folder, and rank 0 waited after it had created a"
            " file",
        )


@check(
    "rank-stops",
    "if the disk of one rank fails, or one of its workers dies, all ranks stop in time or stay in"
    " step",
    scenario=Scenario(ranks=True),
    preface="The fault was injected into one rank, as if one of several machines had a failing"
    " disk",
    advice="Raise the error, so that the job stops and can be restarted. If a rank may skip"
    " samples, have the ranks agree on a number of batches, or substitute other samples for the"
    " skipped ones",
)
def rank_stops(workload: Workload) -> Iterator[Scenario]:
    """A death, which the dataset cannot see, and read errors, which it may catch.

    Halfway, so that each rank has had batches, and is waited for; and in the constructor of rank 0,
    which may prepare files that the others wait for.
    """
    yield Scenario(faults=(WorkerKilled(),), title="a worker dies")
    if workload.read:
        yield from _fail_halfway(workload)
    if workload.monitored and (files := workload.monitored.read_by_main_process):
        yield Scenario(
            faults=(ReadError(files.path),),
            title="rank 0 cannot read in its constructor",
            on_rank=0,
            processes=run_epochs(before_init=True)[:1],
        )


@for_each_kind
def _fail_halfway(workload: Workload) -> Iterator[Scenario]:
    # A worker that the loader keeps has made all epochs.
    epoch = workload.reads // len(workload.fault_free.epochs)
    fault = ReadError(workload.read.path, nth=max(1, epoch // _HALVES))
    yield Scenario(faults=(fault,), title="a read fails")


def _find_same_order(outcome: Outcome) -> Finding | None:
    """A shuffled order that does not change with the epoch."""
    for number, rank in enumerate(outcome.ranks):
        orders = [[index for batch in epoch.drawn for index in batch] for epoch in rank.epochs]
        is_same = len(orders) > 1 and orders[0] == orders[1]
        if is_same and len(orders[0]) > 1 and not is_in_order(orders[0]):
            sentence = (
                f"rank {number} drew its samples in the same order in both epochs, although they"
                " are shuffled"
            )
            return Finding(Verdict.CORRUPTED, sentence, SAME_ORDER)
    return None


RANKS = (ranks_agree, rank_stops)
