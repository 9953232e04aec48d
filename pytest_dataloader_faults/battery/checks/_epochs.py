"""Checks of whole epochs: several processes, several epochs, and what each of them leaves. Pure."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Container
from itertools import pairwise
from typing import Any

from pytest_dataloader_faults._settings import DEADLINE
from pytest_dataloader_faults._settings.jobs import TrialOptions
from pytest_dataloader_faults.battery._workload import NotApplicable, Workload
from pytest_dataloader_faults.battery.checks._base import (
    Check,
    Plan,
    Variant,
    for_each_kind,
    no_fault,
    on,
    once,
)
from pytest_dataloader_faults.faults import ReadError, TruncatedFile
from pytest_dataloader_faults.outcomes import Outcome, Pass, Reference, Verdict
from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.contract import Finding, Wrong
from pytest_dataloader_faults.outcomes.growth import FEWEST_EPOCHS, TIMES_TO_CONFIRM, find_growth
from pytest_dataloader_faults.outcomes.judge.leaks import sentence_of
from pytest_dataloader_faults.outcomes.judge.samples import is_large
from pytest_dataloader_faults.outcomes.judge.starts import UNPICKLABLE
from pytest_dataloader_faults.outcomes.records import Leaves
from pytest_dataloader_faults.outcomes.stages import DONE
from pytest_dataloader_faults.outcomes.text import counted

_READS_ONE = (
    "This check reads one sample in the main process before the workers start, as a script does"
    " that looks at dataset[0]"
)
_USED_BEFORE = (
    "Forked workers share a handle that was opened for that sample, and spawned workers cannot"
    " receive it. Open the file once per process: keep os.getpid() beside the handle, and open the"
    " file again where it differs. Or exclude 'used-before', if nothing reads the dataset before"
    " the loop over the loader"
)
_DESCRIPTORS = 1024
"""The usual soft limit: a dataset that needs more cannot be sent to workers on many machines."""
_ENOUGH = 8
"""Random samples that have to be equal before that is no accident."""
_TWO_EPOCHS = (
    "Each epoch starts workers from the dataset as it is in the main process. There, an iterator, a"
    " sampler or a random generator that the dataset keeps is used up after one epoch, or it starts"
    " from the same state in every worker. Create it in __iter__, or in each worker from"
    " torch.initial_seed(). A sample that the dataset keeps and changes in place starts from the"
    " same state, too: change a copy of it"
)


_MOST_MORE_WORKERS = 4


def _numbers_of_workers(workload: Workload) -> Plan:
    """As many as the loader has; of a stream also a number by which nothing can be divided.

    Indices are divided by torch, and the parts of a stream by its author. One that is made for one
    worker need not be divided.
    """
    asked = len({each.worker for each in workload.fault_free.workers})
    if workload.stream_count is None or asked == 1:
        return no_fault(workload)
    counts = {workload.stream_count, *(len(kind.read.paths) or 1 for kind in workload.kinds)}
    tried = range(asked + 1, asked + 1 + _MOST_MORE_WORKERS)
    more = next((each for each in tried if all(count % each for count in counts)), tried[0])
    # A loader drops the last batch of each worker if it is told to, and is not in question here.
    changes = {"num_workers": more, "drop_last": False}
    many = counted(more, "worker")
    told = f"with {many}"
    other = Variant((), many, changes, circumstance=told, skip_reason=_refuses_the_number)
    return (Variant(title=counted(asked, "worker")), other)


def _first_in_main_process(workload: Workload) -> Plan:
    if workload.in_workers_only:
        return NotApplicable("only workers can read it: elsewhere it raises an error")
    return no_fault(workload)


def _refuses_the_number(outcome: Outcome) -> NotApplicable | None:
    """A stream that has too few shards for so many workers may say so."""
    if outcome.exception is None:
        return None
    return NotApplicable(f"it raised {error_line(outcome.exception)}")


def _is_bad_second_epoch(outcome: Outcome, reference: Reference) -> Finding | None:
    """A second epoch of a stream that is used up, or one that repeats random samples."""
    first, second = outcome.passes
    if reference.second_pass_count is not None:
        count = f"{reference.second_pass_count} of its {counted(len(reference.samples), 'sample')}"
        sentence = f"iterated once more in one process, the stream gave {count}"
        return Finding(Verdict.CORRUPTED, sentence, Wrong.USED_UP)
    if reference.nondeterministic_count >= _ENOUGH and _repeats(first, second, reference):
        repeated = "the random samples of epoch 2 are, bit by bit, those of epoch 1"
        sentence = f"{repeated}, although reading one twice gives two"
        return Finding(Verdict.CORRUPTED, sentence, Wrong.SAME_AGAIN)
    return None


def _repeats(first: Pass, second: Pass, reference: Reference) -> bool:
    """Whether all samples are the same again, or a large part that varies in many of them."""
    one, other = _parts(first), _parts(second)
    common = one.keys() & other.keys()
    if len(common) < _ENOUGH:
        return False
    random = {part.path for part in reference.varying if part.samples >= _ENOUGH}
    parts = [(_large(one[key], random), _large(other[key], random)) for key in common]
    of_parts = (all(a.get(path, 0) == b.get(path, 1) for a, b in parts) for path in random)
    return all(one[key] == other[key] for key in common) or any(of_parts)


def _large(leaves: Leaves, paths: Container[str]) -> dict[str, str]:
    """The digests of those at *paths* that do not become the same by accident."""
    return {
        path: digest for path, form, digest in leaves if path in paths and is_large(form, digest)
    }


def _two_epochs(workload: Workload) -> Plan:
    """Random numbers that a worker draws again are seen if it makes the same samples again."""
    run = workload.fault_free
    drawn = [index for indices in run.passes[0].drawn for index in indices]
    is_sorted = all(a < b for a, b in pairwise(drawn) if type(a) is type(b))
    if not run.comparison.allows_for_randomness or run.kind != "map" or is_sorted:
        return no_fault(workload)
    return (
        Variant(title="as the sampler draws"),
        Variant(title="epoch 2 in the order of epoch 1", same_draws=True),
    )


def _parts(one: Pass) -> dict[Any, Any]:
    """The parts of the samples, by index; those of a stream by their place in the epoch."""
    parts_of = [
        (index, parts)
        for each in one.delivered
        for index, parts in zip(each.indices or each.rows or (), each.leaves, strict=False)
    ]
    if any(each.indices is None for each in one.delivered):
        return dict(enumerate(sorted(parts for _, parts in parts_of)))
    return dict(parts_of)


@for_each_kind
def _one_error(workload: Workload) -> Plan:
    """Two reads: the first is of a header, where a file is opened for the first sample."""
    if not workload.read.paths:
        return workload.no_target("read")
    later = _one_error_later(workload)
    first = ReadError(workload.read.path, times=1)
    return (Variant((first,), "the first read"), *later) if later else once(first)


def _one_error_later(workload: Workload) -> tuple[Variant, ...]:
    if found := workload.longest_read:
        path, counts = found
        name, nth = os.path.basename(path), counts.longest
        read = f"{counted(counts.longest_bytes, 'byte')} at {counts.longest_offset}"
        fault = ReadError(glob.escape(path), nth=nth, times=1)
        return (Variant((fault,), f"read {nth} of {name}, which is the longest: {read}"),)
    nth = workload.reads // 2
    if nth < 2:  # noqa: PLR2004  # the second read
        return ()
    return (Variant((ReadError(workload.read.path, nth=nth, times=1),), f"read {nth}"),)


def _makes_fewer_reads(_: Workload, outcome: Outcome) -> NotApplicable | None:
    if outcome.fired or not any(each.reached for each in outcome.faults):
        return None
    return NotApplicable("its workers make fewer reads than in the run without a fault")


def _is_error_again(outcome: Outcome, _reference: Reference) -> Finding | None:
    """An error of the second epoch, in which no read failed."""
    raised = outcome.exception
    epochs = {one.epoch for each in outcome.faults for one in each.firings}
    if raised is None or len(outcome.passes) < 2 or epochs != {1}:  # noqa: PLR2004  # two epochs
        return None
    after = "although no read failed in epoch 2, the same workers raised"
    return Finding(Verdict.POISONED, f"{after} {error_line(raised)}")


_WHOLE_AGAIN = (
    "The files are cut off in epoch 1 and whole in epoch 2, which the same workers make. Keep"
    " nothing of a file before its length was checked"
)


def _takes_cut_files(_: Workload, outcome: Outcome) -> NotApplicable | None:
    """Whether it already gives other samples, and no error, while the files are cut off."""
    if not outcome.fired or not outcome.passes or not outcome.passes[0].complete:
        return None
    if _samples_of(outcome.passes[0]) == _samples_of(outcome.passes[-1]):
        return None
    return NotApplicable(
        "it gives other samples, and no error, while files are cut off; truncated-half tells"
        " whether that is right"
    )


def _samples_of(one: Pass) -> Counter[str]:
    return Counter(row for each in one.delivered for row in each.rows or (each.digest,))


_MOST_EPOCHS = 160
_MOST_SECONDS = DEADLINE / 2
"""A trial that looks for growth stops as soon as it has seen enough."""
_EPOCHS_OF_NEW_WORKERS = 3
_ABANDONED = (
    "The loop left an epoch after its first batch, as by break, and the same workers made a whole"
    " one after it. What follows the last yield of a generator, or the end of a sampler, was not"
    " reached. Open files by with, which closes them wherever the generator is left, and begin each"
    " __iter__ anew"
)


_LEFTOVERS = (
    "A worker exits without atexit handlers and without the finalizers of its objects. Remove a"
    " temporary file in the sample that created it, or create and remove it in the main process"
)


def _too_slow(_: Workload, outcome: Outcome) -> NotApplicable | None:
    """A few epochs show nothing, if there was no time for more."""
    if outcome.exception is not None or outcome.phase != DONE:
        return None
    came, needed = max((each.epoch for each in outcome.footprints), default=0), FEWEST_EPOCHS
    seen = f"growth shows after {needed} at least"
    if came >= needed:
        found, needed = find_growth(outcome.footprints), TIMES_TO_CONFIRM * FEWEST_EPOCHS
        if found is None or came >= needed:
            return None
        seen = f"{sentence_of(found)}, which may end: it takes {counted(needed, 'epoch')} to tell"
    return NotApplicable(
        f"only {counted(came, 'epoch')} fit into half of the deadline, and {seen}."
        " Raise the deadline or use fewer samples"
    )


def _left_files(outcome: Outcome, _: Reference) -> Finding | None:
    """A cache is made in the first epoch; files that most workers make again are no cache."""
    left = [each.leftover_files for each in outcome.workers if each.leftover_files]
    if len(left) * 2 <= len(outcome.workers):
        return None
    count, every = sum(map(len, left)), len(outcome.workers)
    who = f"{len(left)} of {counted(every, 'worker')}"
    sentence = f"{who} left {counted(count, 'temporary file')} ({left[-1][0]})"
    return Finding(Verdict.LEAKED, sentence)


def _needs_kernel_engine(workload: Workload) -> Plan:
    if workload.is_python_engine:
        reason = "the python engine does not see which files are made; the kernel's does"
        return NotApplicable(reason)
    return no_fault(workload)


EPOCHS = (
    Check(
        "workers-agree",
        "N workers give the same samples as the main process",
        _numbers_of_workers,
        options=TrialOptions(watch_files=True),
    ),
    Check(
        "used-before",
        "the same, after the main process has read a sample",
        _first_in_main_process,
        options=TrialOptions(touch=True, watch_files=True),
        preface=_READS_ONE,
        advice=_USED_BEFORE,
        is_about_errors=True,
    ),
    Check(
        "pickles",
        "the dataset can be sent to a worker that is not forked from the loader's process",
        changes={"multiprocessing_context": "forkserver", "num_workers": 1},
        options=TrialOptions(descriptors=_DESCRIPTORS),
        advice=f"{UNPICKLABLE.advice}. Or exclude 'pickles', if all workers are forked",
        is_about_errors=True,
    ),
    Check(
        "two-epochs",
        "the second epoch is complete, and differs from the first where samples are random",
        _two_epochs,
        options=TrialOptions(epochs=2),
        extra_rule=_is_bad_second_epoch,
        advice=_TWO_EPOCHS,
        keep_randomness=True,
    ),
    Check(
        "persistent-workers",
        "persistent workers give a complete second epoch",
        changes={"persistent_workers": True},
        options=TrialOptions(epochs=2),
        advice=(
            "With persistent_workers=True each worker goes on with its copy of the dataset, in the"
            " state that the first epoch left"
        ),
    ),
    Check(
        "read-error-next-epoch",
        "a persistent worker recovers after one read error",
        _one_error,
        changes={"persistent_workers": True},
        options=TrialOptions(epochs=2, faulty_epochs=1, keep_workers=True),
        extra_rule=_is_error_again,
        skip_reason=_makes_fewer_reads,
    ),
    Check(
        "truncated-next-epoch",
        "a persistent worker recovers after files were cut off",
        on("cut", TruncatedFile, keep=0.5),
        changes={"persistent_workers": True},
        options=TrialOptions(epochs=2, faulty_epochs=1, keep_workers=True),
        preface=_WHOLE_AGAIN,
        skip_reason=_takes_cut_files,
    ),
    Check(
        "growth",
        "descriptors, threads and memory do not grow with each epoch",
        changes={"persistent_workers": True},
        options=TrialOptions(epochs=_MOST_EPOCHS, footprints=_MOST_SECONDS, same_order=True),
        skip_reason=_too_slow,
    ),
    Check(
        "abandoned-epoch",
        "an epoch that the loop leaves early leaves nothing behind, and the next one is complete",
        # What workers have open ends with them, so they stay. They make few batches ahead, or a
        # short stream would come to its end.
        changes={"persistent_workers": True, "prefetch_factor": 1},
        options=TrialOptions(
            epochs=_MOST_EPOCHS, leave_early=True, footprints=_MOST_SECONDS, same_order=True
        ),
        advice=_ABANDONED,
        skip_reason=_too_slow,
    ),
    Check(
        "leftovers",
        "workers that exit leave no temporary file and no shared memory",
        _needs_kernel_engine,
        changes={"persistent_workers": False},
        options=TrialOptions(epochs=_EPOCHS_OF_NEW_WORKERS, same_order=True),
        extra_rule=_left_files,
        advice=_LEFTOVERS,
    ),
)

_PINNED = (
    "The loader's process used the accelerator first, as a training job does. A thread of it pinned"
    " each batch, and the process copied the batch to the device. A batch class of your own needs a"
    " pin_memory() that returns the batch. Workers must leave samples on the CPU"
)

PINNING = (
    Check(
        "pinned",
        "pinned batches have the same samples on the device, and no epoch keeps its memory",
        changes={"pin_memory": True},
        options=TrialOptions(
            accelerator=True, epochs=_MOST_EPOCHS, footprints=_MOST_SECONDS, same_order=True
        ),
        advice=_PINNED,
        is_about_errors=True,
        gpu=True,
    ),
)
