"""Checks of complete epochs: several processes, several epochs, and what these leave. Pure."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pytest_dataloader_faults.battery.checks._base import (
    REPEATED,
    WORKERS_AGREE,
    Check,
    Planned,
    Scenario,
    Scenarios,
    for_each_kind,
    measure_epochs,
    no_fault,
    on,
)
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import ReadError, TruncatedFile
from pytest_dataloader_faults.outcomes import Outcome, Pass, Reference, Verdict
from pytest_dataloader_faults.outcomes.agreement import Part
from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.contract import Cause, Finding
from pytest_dataloader_faults.outcomes.growth import FEWEST_EPOCHS, TIMES_TO_CONFIRM, find_growth
from pytest_dataloader_faults.outcomes.judge.draws import USED_UP
from pytest_dataloader_faults.outcomes.judge.leaks import describe_growth
from pytest_dataloader_faults.outcomes.judge.starts import UNPICKLABLE
from pytest_dataloader_faults.outcomes.stages import DONE
from pytest_dataloader_faults.outcomes.text import pluralize
from pytest_dataloader_faults.steps import (
    EndFaults,
    Epoch,
    ReadSample,
    arm_workers,
    run_epochs,
)

_READS_ONE = (
    "This check reads one sample in the main process before the workers start, like a script that"
    " looks at dataset[0]"
)
_READ_BEFORE_FORK = (
    "Forked workers share a handle that was opened for that sample, and spawned workers cannot"
    " receive it. Open the file once per process: store os.getpid() with the handle, and reopen the"
    " file when it has changed. Or exclude 'read-before-fork', if nothing reads the dataset before"
    " the loop over the loader"
)
_DESCRIPTORS = 1024
"""The usual soft limit: a dataset that needs more cannot be sent to workers on many machines."""
SAME_AGAIN = Cause(
    "repeats the same random samples in every epoch",
    fix="seed each worker from torch.initial_seed()",
)
_ENOUGH = 8
"""Fewer random samples can be equal by accident."""
_TWO_EPOCHS = (
    "Each epoch starts workers from the dataset as it is in the main process. An iterator, a"
    " sampler or a random generator that the dataset keeps there is used up after one epoch, or"
    " starts from the same state in every worker. Create it in __iter__, or in each worker from"
    " torch.initial_seed(). Do not seed a generator with the worker's number alone, which is the"
    " same in each epoch. The same holds for a sample that the dataset keeps and changes in"
    " place: change a copy of it"
)


_MOST_MORE_WORKERS = 4


def _numbers_of_workers(workload: Workload) -> Planned:
    """As many as the loader has; for a stream also a number that divides none of its counts.

    torch divides indices, but the author of a stream divides the stream. A stream for a single
    worker does not need to be divided, and a stream may refuse any other number of workers.
    """
    worker_count = len({each.worker for each in workload.fault_free.workers})
    if workload.stream_count is None or worker_count == 1 or workload.in_all_workers_only:
        return no_fault(workload)
    counts = {workload.stream_count, *(len(kind.read.paths) or 1 for kind in workload.kinds)}
    candidates = range(worker_count + 1, worker_count + 1 + _MOST_MORE_WORKERS)
    other_count = next(
        (each for each in candidates if all(count % each for count in counts)), candidates[0]
    )
    # drop_last drops the last batch of each worker, which this check does not test.
    changes = {"num_workers": other_count, "drop_last": False}
    title = pluralize(other_count, "worker")
    return (
        Scenario(title=pluralize(worker_count, "worker")),
        Scenario(
            title=title,
            loader=changes,
            circumstance=f"with {title}",
            require_effect=_require_samples,
        ),
    )


def _first_in_main_process(workload: Workload) -> Scenario:
    if workload.in_workers_only:
        raise NotApplicable("only workers can read it: in the main process it raises an error")
    return no_fault(workload)


def _require_samples(_: Workload, outcome: Outcome) -> None:
    """Raise NotApplicable if the stream refuses a higher number of workers."""
    if outcome.exception is not None:
        raise NotApplicable(f"it raised {error_line(outcome.exception)}")


def _is_bad_second_epoch(outcome: Outcome, reference: Reference) -> Finding | None:
    """A stream that is exhausted in the second epoch, or repeated random samples."""
    first_pass, second_pass = outcome.epochs
    if reference.second_pass_count is not None:
        count = (
            f"{reference.second_pass_count} of its {pluralize(len(reference.samples), 'sample')}"
        )
        sentence = f"iterated a second time in one process, the stream returned {count}"
        return Finding(Verdict.CORRUPTED, sentence, USED_UP)
    if reference.nondeterministic_count >= _ENOUGH and _repeats_random_samples(
        first_pass, second_pass, reference
    ):
        sentence = (
            "the random samples of epoch 2 are identical to those of epoch 1, although reading a"
            " sample twice returns two different ones"
        )
        return Finding(Verdict.CORRUPTED, sentence, SAME_AGAIN)
    return None


def _repeats_random_samples(first_pass: Pass, second_pass: Pass, reference: Reference) -> bool:
    """Whether all samples are repeated, or a large part that varies in many of them."""
    first_parts, second_parts = _parts_by_sample(first_pass), _parts_by_sample(second_pass)
    common = first_parts.keys() & second_parts.keys()
    if len(common) < _ENOUGH:
        return False
    random = {path for path, count in reference.varying if count >= _ENOUGH}
    parts = [
        (_large_digests(first_parts[key], random), _large_digests(second_parts[key], random))
        for key in common
    ]
    of_parts = (all(a.get(path, 0) == b.get(path, 1) for a, b in parts) for path in random)
    return all(first_parts[key] == second_parts[key] for key in common) or any(of_parts)


def _large_digests(parts: Iterable[Part], paths: Container[str]) -> dict[str, str]:
    """The digests of the parts at *paths* that are too large to be equal by accident."""
    return {part.path: part.digest for part in parts if part.path in paths and part.is_large}


def _two_epochs(workload: Workload) -> Planned:
    """Repeated random numbers show if a worker makes the same samples again."""
    run = workload.fault_free
    drawn = [index for indices in run.epochs[0].drawn for index in indices]
    is_sorted = all(a < b for a, b in pairwise(drawn) if type(a) is type(b))
    if not run.comparison.allows_for_randomness or run.kind != "map" or is_sorted:
        return no_fault(workload)
    return (
        Scenario(title="as the sampler draws"),
        Scenario(title="epoch 2 in the order of epoch 1", processes=_IN_SAME_ORDER),
    )


def _parts_by_sample(epoch: Pass) -> dict[Any, Any]:
    """The parts of the samples, by index, or for a stream by position."""
    pairs = (pair for batch in epoch.delivered for pair in batch.pairs)
    parts_of = [(key, sample.parts) for key, sample in pairs if sample.parts]
    if any(each.keys is None for each in epoch.delivered):
        return dict(enumerate(sorted(parts for _, parts in parts_of)))
    return dict(parts_of)


@for_each_kind
def _single_error(workload: Workload) -> Planned:
    """Two reads: the first one reads a header if a file is opened for the first sample."""
    header_fault = ReadError(workload.read.path, times=1)
    later = _later_error(workload)
    if not later:
        return header_fault
    return (Scenario(faults=(header_fault,), title="the first read"), *later)


def _later_error(workload: Workload) -> Scenarios:
    if longest := workload.longest_read:
        path, counts = longest
        name, nth = os.path.basename(path), counts.longest
        read = f"{pluralize(counts.longest_bytes, 'byte')} at {counts.longest_offset}"
        fault = ReadError(glob.escape(path), nth=nth, times=1)
        title = f"read {nth} of {name}, which is the longest: {read}"
        return (Scenario(faults=(fault,), title=title),)
    nth = workload.reads // 2
    if nth < 2:  # noqa: PLR2004  # the second read
        return ()
    fault = ReadError(workload.read.path, nth=nth, times=1)
    return (Scenario(faults=(fault,), title=f"read {nth}"),)


def _require_read(_: Workload, outcome: Outcome) -> None:
    if not outcome.fired and any(each.matched for each in outcome.faults):
        raise NotApplicable("its workers make fewer reads than in the fault-free run")
    _require_worker_init(outcome)


def _require_worker_init(outcome: Outcome) -> None:
    """Raise NotApplicable if workers lack what ``worker_init_fn`` makes, because it failed.

    torch calls it once for each worker, raises its error with the first batch, and has the worker
    continue.
    """
    firings = [firing for each in outcome.faults for firing in each.firings]
    is_start = all(firing.worker is not None and firing.fetch == 0 for firing in firings)
    errors = {epoch.exception.type for epoch in outcome.epochs if epoch.exception}
    is_another = len(errors) > 1
    if outcome.kind == "map" and outcome.fired and is_start and is_another:
        raise NotApplicable(
            "worker_init_fn fails, and torch calls it only once for each worker, so these workers"
            " cannot recover"
        )


def _is_error_again(outcome: Outcome, _reference: Reference) -> Finding | None:
    """An error in the second epoch, although only reads of the first epoch failed."""
    raised = outcome.exception
    epochs = {firing.epoch for each in outcome.faults for firing in each.firings}
    if raised is None or len(outcome.epochs) < 2 or epochs != {1}:  # noqa: PLR2004  # two epochs
        return None
    sentence = f"no read failed in epoch 2, but the same workers raised {error_line(raised)}"
    return Finding(Verdict.POISONED, sentence)


_INTACT_AGAIN = (
    "The files are truncated in epoch 1 and intact in epoch 2, which the same workers run. Do not"
    " keep anything from a file before you have checked its length"
)


def _require_same_samples(_: Workload, outcome: Outcome) -> None:
    """Raise NotApplicable if truncated files result in other samples without an error."""
    if not outcome.fired or not outcome.epochs or not outcome.epochs[0].complete:
        _require_worker_init(outcome)
    elif _samples_of(outcome.epochs[0]) != _samples_of(outcome.epochs[-1]):
        raise NotApplicable(
            "it returns other samples, and no error, while files are truncated; truncated-half"
            " shows whether that is correct"
        )


def _samples_of(epoch: Pass) -> Counter[str]:
    return Counter(digest for each in epoch.delivered for digest in each.digests)


_ABANDONED = (
    "The loop left an epoch after its first batch, as with break, and the same workers then ran a"
    " complete one. Code after the last yield of a generator, or at the end of a sampler, was never"
    " reached. Open files with a with statement, which closes them however the generator is left,"
    " and start over in each __iter__"
)


def _require_epochs(_: Workload, outcome: Outcome) -> None:
    """Raise NotApplicable if there was only time for a few epochs, which show nothing."""
    if outcome.exception is not None or outcome.phase != DONE:
        return
    epoch_count, needed = max((each.epoch for each in outcome.footprints), default=0), FEWEST_EPOCHS
    explanation = f"growth shows after {pluralize(needed, 'epoch')} or more"
    if epoch_count >= needed:
        growth, needed = find_growth(outcome.footprints), TIMES_TO_CONFIRM * FEWEST_EPOCHS
        if growth is None or epoch_count >= needed:
            return
        count = pluralize(needed, "epoch")
        explanation = f"{describe_growth(growth)}, which may end: only {count} can show it"
    raise NotApplicable(
        f"only {pluralize(epoch_count, 'epoch')} fit into half of the deadline, and {explanation}."
        " Raise the deadline, or use fewer samples"
    )


_PERSISTENT = {"persistent_workers": True}
_IN_KEPT_WORKERS = Epoch(keep_workers=True)
FAULTS_IN_EPOCH_1 = Scenario(
    loader=_PERSISTENT, processes=arm_workers(_IN_KEPT_WORKERS, EndFaults(), _IN_KEPT_WORKERS)
)
_IN_SAME_ORDER = arm_workers(*[Epoch(same_order=True)] * 2)


EPOCHS = (
    Check(
        WORKERS_AGREE,
        "N workers return the same samples as the main process",
        _numbers_of_workers,
        scenario=Scenario(watch_files=True),
    ),
    Check(
        "read-before-fork",
        "workers still return the same samples after the main process has read one",
        _first_in_main_process,
        scenario=Scenario(processes=arm_workers(Epoch(), before=(ReadSample(),)), watch_files=True),
        preface=_READS_ONE,
        advice=_READ_BEFORE_FORK,
        is_about_errors=True,
    ),
    Check(
        "pickles",
        "the dataset can be sent to a worker that is not forked from the main process",
        no_fault,
        scenario=Scenario(
            loader={"multiprocessing_context": "forkserver", "num_workers": 1},
            descriptors=_DESCRIPTORS,
        ),
        advice=f"{UNPICKLABLE.advice}. Or exclude 'pickles', if all workers are forked",
        is_about_errors=True,
    ),
    Check(
        "two-epochs",
        "the second epoch is complete, and differs from the first if samples are random",
        _two_epochs,
        scenario=Scenario(processes=run_epochs(2), keep_randomness=True),
        rule=_is_bad_second_epoch,
        advice=_TWO_EPOCHS,
    ),
    Check(
        "persistent-workers",
        "persistent workers deliver a complete second epoch",
        no_fault,
        scenario=Scenario(loader=_PERSISTENT, processes=run_epochs(2)),
        advice=(
            "With persistent_workers=True, each worker continues with its own copy of the dataset,"
            " in the state that the first epoch left"
        ),
    ),
    Check(
        "recovers-after-read-error",
        "a persistent worker recovers after one read error",
        _single_error,
        scenario=replace(FAULTS_IN_EPOCH_1, require_effect=_require_read),
        rule=_is_error_again,
    ),
    Check(
        "recovers-after-truncation",
        "a persistent worker recovers after files were truncated",
        on("cut", TruncatedFile, keep=0.5),
        scenario=replace(FAULTS_IN_EPOCH_1, require_effect=_require_same_samples),
        preface=_INTACT_AGAIN,
    ),
    Check(
        "resource-growth",
        "descriptors, threads and memory do not grow from epoch to epoch",
        no_fault,
        scenario=Scenario(
            loader=_PERSISTENT,
            processes=arm_workers(measure_epochs(REPEATED)),
            require_effect=_require_epochs,
        ),
    ),
    Check(
        "abandoned-epoch",
        "leaving an epoch early leaves nothing behind, and the next epoch is complete",
        no_fault,
        # Persistent workers, because other workers close their files when they exit. They prefetch
        # little, so that a short stream does not end.
        scenario=Scenario(
            loader={**_PERSISTENT, "prefetch_factor": 1},
            processes=arm_workers(measure_epochs(replace(REPEATED, batches=1), REPEATED)),
            require_effect=_require_epochs,
        ),
        advice=_ABANDONED,
    ),
)
