"""Checks of complete epochs: several processes, several epochs, and what these leave. Pure."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults.battery.checks._base import WORKERS_AGREE, Scenario, check
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.outcomes import Outcome, Pass, Reference, Verdict
from pytest_dataloader_faults.outcomes.agreement import Part
from pytest_dataloader_faults.outcomes.chains import error_line
from pytest_dataloader_faults.outcomes.contract import Cause, Finding
from pytest_dataloader_faults.outcomes.judge.rules import USED_UP
from pytest_dataloader_faults.outcomes.judge.sharing import UNPICKLABLE
from pytest_dataloader_faults.outcomes.leaks import (
    FEWEST_EPOCHS,
    TIMES_TO_CONFIRM,
    describe_growth,
    find_growth,
)
from pytest_dataloader_faults.outcomes.reference import ENOUGH_SAMPLES
from pytest_dataloader_faults.outcomes.stages import DONE
from pytest_dataloader_faults.outcomes.text import pluralize
from pytest_dataloader_faults.steps import (
    Action,
    Epoch,
    MeasureEpochs,
    Step,
    arm_workers,
    run_epochs,
)
from pytest_dataloader_faults.wire import Note

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

CALLS_USER_CODE = True

_DESCRIPTORS = 1024
"""The usual soft limit: a dataset that needs more cannot be sent to workers on many machines."""
_LEFTOVERS = Verdict.LEAKED.usual_cause._replace(
    advice="A worker exits without running atexit handlers or the finalizers of its objects. Remove"
    " a temporary file in the sample that created it, or create and remove it in the main process"
)
SAME_AGAIN = Cause(
    "repeats the same random samples in every epoch",
    fix="seed each worker from torch.initial_seed()",
)


SAME_ORDER = Cause(
    "shuffles every epoch identically",
    "Before each epoch, set_epoch() was called on the loader, its samplers and its dataset, if they"
    " have it. Shuffle with a seed and that number, in the same way on all ranks",
    fix="shuffle with the seed plus the epoch of set_epoch()",
)
CUTS_FIRST = Cause(
    "leaves out the same samples in every epoch",
    "The sampler cuts off the last indices, which fill no batch, and shuffles the others. Shuffle"
    " all of them first, so that each epoch leaves out others",
    fix="shuffle all indices before you cut off the rest",
)


@dataclass(frozen=True)
class DrawnEpochs(Note):
    """What a sampler draws in several epochs: one order again and again, or never the last indices.

    Attributes:
        count: How many indices it never draws.
        length: How many samples there are.
        is_same: Whether each epoch has the same order, which a sampler that is made with another
            seed does not have.
    """

    count: int
    length: int
    is_same: bool = False


@dataclass(frozen=True)
class DrawEpochs(Step):
    """Have the sampler alone draw several epochs, without reading a sample."""

    def run(self, process: TrialProcess) -> None:
        """Note what it draws, if it is one of the user's own."""
        with contextlib.suppress(Exception):  # Of the user's sampler, whose epochs have passed.
            self._note_orders(process)

    def _note_orders(self, process: TrialProcess) -> None:
        from pytest_dataloader_faults._engine.fetch_hooks import seed_everything
        from pytest_dataloader_faults._trial.loaders import make_loader
        from pytest_dataloader_faults._trial.samplers import draw_epochs

        orders, length = draw_epochs(process.loader), len(process.loader.dataset)
        drawn = set(itertools.chain.from_iterable(orders))
        count = length - len(drawn)
        is_same = len(orders) == 1 and not is_in_order(min(orders))
        if is_same:
            seed_everything(process.job.settings.seed + 1)
            is_same = draw_epochs(make_loader(process.job)) != orders
        if is_same or (len(orders) > 1 and drawn == set(range(length - count))):
            process.journal.write(DrawnEpochs(count, length, is_same))


def is_in_order(drawn: Sequence[Any]) -> bool:
    """Whether *drawn* is sorted, except that it may start over once to fill up the last batches."""
    try:
        falls = sum(index > next_index for index, next_index in itertools.pairwise(drawn))
    except TypeError:  # A sampler can draw objects of any type.
        falls = sum(
            repr(index) > repr(next_index) for index, next_index in itertools.pairwise(drawn)
        )
    return bool(falls <= 1)


@dataclass(frozen=True)
class EpochMadeThere(Epoch):
    """An epoch whose workers, which are not forked, call make_dataset themselves if they can."""

    def run(self, process: TrialProcess) -> None:
        """Run it only if they can."""
        from pytest_dataloader_faults._trial.loaders import make_in_workers

        if not process.around.own_folders and make_in_workers(process.loader, process.job):
            process.run_epoch(self)


_MOST_MORE_WORKERS = 4


@check(
    WORKERS_AGREE,
    "N workers return the same samples as the main process",
    scenario=Scenario(watch_files=True),
)
def workers_agree(workload: Workload) -> Iterator[Scenario]:
    """As many as the loader has; for a stream also a number that divides none of its counts.

    torch divides indices, but the author of a stream divides the stream. A stream for a single
    worker does not need to be divided, and a stream may refuse any other number of workers.
    """
    worker_count = len({each.worker for each in workload.fault_free.workers})
    stream_count = workload.reference.stream_count
    if stream_count is None or worker_count == 1 or workload.reference.workers > 1:
        yield Scenario()
        return
    counts = {stream_count, *(len(kind.read.paths) or 1 for kind in workload.kinds)}
    candidates = range(worker_count + 1, worker_count + 1 + _MOST_MORE_WORKERS)
    other_count = next(
        (each for each in candidates if all(count % each for count in counts)), candidates[0]
    )
    # drop_last drops the last batch of each worker, which this check does not test.
    changes = {"num_workers": other_count, "drop_last": False}
    title = pluralize(other_count, "worker")
    yield Scenario(title=pluralize(worker_count, "worker"))
    yield Scenario(
        title=title, loader=changes, circumstance=f"with {title}", require_effect=_require_samples
    )


def _require_samples(_: Workload, outcome: Outcome) -> None:
    """Raise NotApplicable if the stream refuses a higher number of workers."""
    if outcome.exception is not None:
        raise NotApplicable(f"it raised {error_line(outcome.exception)}")


def _find_bad_second_epoch(outcome: Outcome, reference: Reference) -> Finding | None:
    """A stream that is exhausted, repeated random samples, or files that workers leave behind."""
    first_pass, second_pass = outcome.epochs
    if reference.second_pass_count is not None:
        count = (
            f"{reference.second_pass_count} of its {pluralize(len(reference.samples), 'sample')}"
        )
        sentence = f"iterated a second time in one process, the stream returned {count}"
        return Finding(Verdict.CORRUPTED, sentence, USED_UP)
    if reference.nondeterministic_count >= ENOUGH_SAMPLES and _repeats_random_samples(
        first_pass, second_pass, reference
    ):
        sentence = (
            "the random samples of epoch 2 are identical to those of epoch 1, although reading a"
            " sample twice returns two different ones"
        )
        return Finding(Verdict.CORRUPTED, sentence, SAME_AGAIN)
    return _find_bad_order(outcome) or _find_leftovers(outcome)


def _find_bad_order(outcome: Outcome) -> Finding | None:
    """An order that never changes, or last samples, too few for a batch, that no epoch has."""
    size = max((len(indices) for indices in outcome.epochs[0].drawn), default=0)
    for note in outcome.of(DrawnEpochs):
        if note.count < size and note.is_same:
            sentence = "the sampler shuffled once, and drew the same order in eight epochs"
            return Finding(Verdict.CORRUPTED, sentence, SAME_ORDER)
        if 0 < note.count < size and (note.length - note.count) % size == 0:
            last = f"the last {note.count} of {pluralize(note.length, 'sample')}"
            sentence = f"the sampler drew {last} in none of eight epochs, although it shuffles"
            return Finding(Verdict.CORRUPTED, sentence, CUTS_FIRST)
    return None


def _repeats_random_samples(first_pass: Pass, second_pass: Pass, reference: Reference) -> bool:
    """Whether all samples are repeated, or a large part that varies in many of them."""
    first_parts, second_parts = _parts_by_sample(first_pass), _parts_by_sample(second_pass)
    common = first_parts.keys() & second_parts.keys()
    if len(common) < ENOUGH_SAMPLES:
        return False
    random = {path for path, count in reference.varying if count >= ENOUGH_SAMPLES}
    parts = [
        (_large_digests(first_parts[key], random), _large_digests(second_parts[key], random))
        for key in common
    ]
    of_parts = (all(a.get(path, 0) == b.get(path, 1) for a, b in parts) for path in random)
    return all(first_parts[key] == second_parts[key] for key in common) or any(of_parts)


def _large_digests(parts: Iterable[Part], paths: Container[str]) -> dict[str, str]:
    """The digests of the parts at *paths* that are too large to be equal by accident."""
    return {part.path: part.digest for part in parts if part.path in paths and part.is_large}


def _parts_by_sample(epoch: Pass) -> dict[Any, Any]:
    """The parts of the samples, by index, or for a stream by position."""
    pairs = (pair for batch in epoch.delivered for pair in batch.pairs)
    parts_of = [(key, sample.parts) for key, sample in pairs if sample.parts]
    if any(each.keys is None for each in epoch.delivered):
        return dict(enumerate(sorted(parts for _, parts in parts_of)))
    return dict(parts_of)


def _require_epochs(_: Workload, outcome: Outcome) -> None:
    """Raise NotApplicable if there was only time for a few epochs, which show nothing."""
    ended_early = outcome.exception is not None and not outcome.fired
    if ended_early or outcome.phase != DONE:
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
        f"only {pluralize(epoch_count, 'epoch')} fit into half of the deadline, and {explanation}",
        remedy="Raise the deadline, or use fewer samples",
    )


REPEATED = Epoch(same_seed=True)
_LEFT = replace(REPEATED, batches=1)
_PERSISTENT = {"persistent_workers": True}
_IN_KEPT_WORKERS = Epoch(keep_workers=True)
FAULTS_IN_EPOCH_1 = Scenario(
    loader=_PERSISTENT, processes=arm_workers(_IN_KEPT_WORKERS, Action.END_FAULTS, _IN_KEPT_WORKERS)
)

FAULTS_IN_EACH_EPOCH = Scenario(
    loader=_PERSISTENT,
    processes=arm_workers(MeasureEpochs((replace(REPEATED, keep_workers=True),))),
    require_effect=_require_epochs,
)


def _find_leftovers(outcome: Outcome) -> Finding | None:
    """Temporary files that most workers leave, also in epoch 2: a cache is created only once."""
    workers = outcome.workers
    first_pids = {each.worker: each.pid for each in reversed(workers)}
    later = [each for each in workers if each.pid != first_pids[each.worker]]
    for group in (workers, later):
        if sum(bool(each.leftover_files) for each in group) * 2 <= len(group):
            return None
    leftovers = [each.leftover_files for each in workers if each.leftover_files]
    count = sum(map(len, leftovers))
    sentence = (
        f"{len(leftovers)} of {pluralize(len(workers), 'worker')} left"
        f" {pluralize(count, 'temporary file')} behind ({leftovers[-1][0]})"
    )
    return Finding(Verdict.LEAKED, sentence, _LEFTOVERS)


@check(
    "read-before-fork",
    "workers still return the same samples after the main process has read one",
    preface=(
        "This check reads one sample in the main process before the workers start, like a script"
        " that looks at dataset[0]"
    ),
    advice=(
        "Forked workers share a handle that was opened for that sample, and spawned workers cannot"
        " receive it. Open the file once per process: store os.getpid() with the handle, and reopen"
        " the file when it has changed. Or exclude 'read-before-fork', if nothing reads the dataset"
        " before the loop over the loader"
    ),
    scenario=Scenario(
        processes=arm_workers(Epoch(), before=(Action.READ_SAMPLE,)), watch_files=True
    ),
    is_about_errors=True,
)
def read_before_fork(workload: Workload) -> Iterator[Scenario]:
    """No fault: what the first sample opens is what forked workers share."""
    if workload.reference.workers:
        raise NotApplicable("only workers can read it: in the main process it raises an error")
    yield Scenario()


@check(
    "two-epochs",
    "epoch 2 is complete, differs if samples are random, and workers leave no temporary files",
    rule=_find_bad_second_epoch,
    advice=(
        "Each epoch starts workers from the dataset as it is in the main process. An iterator, a"
        " sampler or a random generator that the dataset keeps there is used up after one epoch, or"
        " starts from the same state in every worker. Create it in __iter__, or in each worker from"
        " torch.initial_seed(). Do not seed a generator with the worker's number alone, which is"
        " the same in each epoch. The same holds for a sample that the dataset keeps and changes in"
        " place: change a copy of it"
    ),
)
def two_epochs(_: Workload) -> Iterator[Scenario]:
    """Random numbers that repeat only show if a worker makes the same samples again."""
    epochs = arm_workers(Epoch(), Epoch(), DrawEpochs())
    yield Scenario(processes=epochs, keep_randomness=True)


@check(
    "persistent-workers",
    "kept workers deliver complete epochs, also after a break, and use no more with each epoch",
    advice=(
        "With persistent_workers=True, each worker continues with its own copy of the dataset, in"
        " the state that the last epoch left. If the loop left that epoch early, as with break,"
        " code after the last yield of a generator, or at the end of a sampler, was never reached."
        " Open files with a with statement, which closes them however the generator is left, and"
        " start over in each __iter__. What grows with complete epochs is kept by the dataset: do"
        " not append to a list on self, and close what a sample opens"
    ),
)
def persistent_workers(_: Workload) -> Iterator[Scenario]:
    """One trial shows all promises: two epochs, then rounds of one that is left and a complete one.

    Most datasets pass. If one fails, the parts show which promise is broken.
    """
    # They prefetch little, so that a short stream does not end before the loop leaves it.
    of_left = {**_PERSISTENT, "prefetch_factor": 1}
    whole = Scenario(
        loader=of_left,
        processes=arm_workers(REPEATED, REPEATED, MeasureEpochs((_LEFT, REPEATED))),
        require_effect=_require_epochs,
    )
    yield replace(
        whole,
        parts=(
            Scenario(title="two epochs", loader=_PERSISTENT, processes=run_epochs(2)),
            Scenario(
                title="an epoch after one that was left early",
                loader=of_left,
                processes=arm_workers(_LEFT, REPEATED),
            ),
            Scenario(
                title="growth over complete epochs",
                loader=_PERSISTENT,
                processes=arm_workers(MeasureEpochs((REPEATED,))),
                require_effect=_require_epochs,
            ),
            replace(whole, title="growth over epochs of which every other one was left early"),
        ),
    )


@check(
    "pin-memory",
    "pinned batches hold the same samples on the device, and no epoch leaks their memory",
    scenario=Scenario(
        loader={"pin_memory": True},
        processes=arm_workers(MeasureEpochs((REPEATED,)), before=(Action.USE_ACCELERATOR,)),
    ),
    advice=(
        "The main process used the accelerator first, like a training job. One of its threads"
        " pinned each batch, and the process copied the batch to the device. A custom batch class"
        " needs a pin_memory() method that returns the batch. Workers must leave samples on the CPU"
    ),
    is_about_errors=True,
)
def pin_memory(_: Workload) -> Iterator[Scenario]:
    """No fault: pinning itself may change or lose what it does not know."""
    yield Scenario()


@check(
    "pickles",
    "the dataset can be sent to a worker that is not forked from the main process",
    scenario=Scenario(
        loader={"multiprocessing_context": "forkserver", "num_workers": 1},
        descriptors=_DESCRIPTORS,
        processes=arm_workers(Epoch(), EpochMadeThere()),
    ),
    advice=f"{UNPICKLABLE.advice}. Or exclude 'pickles', if all workers are forked",
    is_about_errors=True,
)
def pickles(_: Workload) -> Iterator[Scenario]:
    """One worker: what can be sent to one can be sent to several.

    In epoch 2, it makes the dataset itself: another hash seed may order the samples differently.
    """
    yield Scenario()


EPOCHS = (workers_agree, read_before_fork, pickles, two_epochs, persistent_workers)
