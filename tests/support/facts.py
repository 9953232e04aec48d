"""Outcomes made by hand, for tests of what is concluded from them."""

import errno
from collections.abc import Iterable
from dataclasses import fields, replace

from pytest_dataloader_faults import Outcome
from pytest_dataloader_faults.faults import Fault, ReadError, TruncatedFile, WorkerKilled
from pytest_dataloader_faults.outcomes import (
    Absence,
    Activity,
    AtDeadline,
    Batch,
    FaultFacts,
    FileCounts,
    Firing,
    FiringKind,
    LoadedState,
    LoaderFacts,
    Pass,
    Raised,
    Reference,
    Resources,
    Sample,
    SavedState,
    TrialEnd,
    TrialRequest,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.agreement import Comparison
from pytest_dataloader_faults.outcomes.stages import DONE, RECOVERY, Phase, Stage

EPOCH_1, EPOCH_2 = Phase(Stage.EPOCH, 1), Phase(Stage.EPOCH, 2)
EIO = ReadError("*.rec", errno=errno.EIO)
TRUNCATED = TruncatedFile("*.rec")
KILLED = WorkerKilled()


def batch_of(
    keys: tuple[int, ...] | None, digests: Iterable[str], worker: int | None = None
) -> Batch:
    samples = tuple(map(Sample, digests))
    return Batch(keys, samples, "+".join(digests), worker)


def whole_batch(keys: tuple[int, ...], digest: str) -> Batch:
    return Batch(keys, (Sample(digest),), digest, is_whole=True)


IN_BATCHES = Comparison(in_batches=True)


def batch_reference(**keys_by_digest: tuple[int, ...]) -> Reference:
    """Each batch with these keys has that digest, and is compared as one sample."""
    samples = ((keys, Sample(digest)) for digest, keys in keys_by_digest.items())
    return Reference("map", tuple(samples), comparison=IN_BATCHES)


def map_reference(count: int = 4) -> Reference:
    """Sample *i* has the digest ``d<i>``."""
    return Reference("map", tuple((index, Sample(f"d{index}")) for index in range(count)))


def stream_reference(digests: str) -> Reference:
    """A stream of the samples named in *digests*."""
    return Reference("iterable", tuple(enumerate(map(Sample, digests.split()))))


def stream(*batches: str, error: Raised | None = None) -> Pass:
    """A pass over a stream: each batch names its samples."""
    deliveries = tuple(batch_of(None, batch.split()) for batch in batches)
    return Pass(EPOCH_1, ((),) * len(deliveries), deliveries, error, error is None)


def raised(kind: str, message: str) -> Raised:
    frame = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    read(path)\n'
    return Raised(kind, message, f"{frame}{kind}: {message}\n")


def fired(
    fault: Fault,
    times: int = 1,
    path: str | None = "/data/a.rec",
    call: str = "read",
    kind: FiringKind = FiringKind.CALL,
) -> tuple[FaultFacts, ...]:
    """*fault*, which happened in worker 1."""
    firing = Firing(0, 1, 4711, call, path, 1, kind=kind)
    firings = tuple(replace(firing, fetch=fetch) for fetch in range(1, times + 1))
    return (FaultFacts(fault, times + 1, times, 1, firings),)


def unfired(fault: Fault) -> tuple[FaultFacts, ...]:
    """*fault*, which was armed and never happened."""
    return (FaultFacts(fault, matched=1),)


def moment(
    stage: Stage, descriptors: dict[str, str] | None = None, processes: dict[str, str] | None = None
) -> Resources:
    return Resources(stage, descriptors or {}, processes or {})


def ordinary(epoch: Pass, faults: tuple[FaultFacts, ...] = ()) -> Outcome:
    """One epoch that went as in *epoch*, and a right recovery if there were faults."""
    rows = [("d0", "d1"), ("d2", "d3")]
    indices = ((0, 1), (2, 3))
    deliveries = tuple(batch_of(each, row) for each, row in zip(indices, rows, strict=True))
    recovery = Pass(RECOVERY, indices, deliveries, complete=True)
    return Outcome(
        TrialRequest(
            tuple(each.fault for each in faults),
            {"num_workers": 2, "batch_size": 2},
            epochs=1,
            seed=0,
            deadline=30.0,
        ),
        passes=(epoch, recovery) if faults else (epoch,),
        faults=faults,
        resources=(moment(Stage.START), moment(Stage.EPOCH)),
        phase=DONE,
        duration=0.25,
    )


def drawing(count: int) -> Outcome:
    """An epoch without a fault whose sampler drew so many samples, in one batch as promised."""
    return ordinary(Pass(EPOCH_1, (tuple(range(count)),), complete=True, batches=1))


def by_workers(*batches: Iterable[Batch], files: int) -> Outcome:
    """An epoch of a stream without a fault, of which each worker made these *batches*."""
    delivered = [
        replace(batch, worker=worker) for worker, each in enumerate(batches) for batch in each
    ]
    paths = dict.fromkeys(map(str, range(files)), FileCounts())
    workers = tuple(WorkerFacts(worker, 7 + worker, 1, paths) for worker in range(len(batches)))
    epoch = Pass(EPOCH_1, (), tuple(delivered), complete=True)
    return revised(ordinary(epoch), kind="iterable", processes=workers)


_PARTS = {"request": TrialRequest, "loader": LoaderFacts, "end": TrialEnd}
_STAGES = {
    "epochs": Stage.EPOCH,
    "recovery": Stage.RECOVERY,
    "resumed": Stage.RESUMED,
    "uninterrupted": Stage.UNINTERRUPTED,
}


IN_LOCK = {
    "timed_out": True,
    "stacks": "Process 7 (sleeping, in futex_do_wait):\n"
    "Current thread 0x0007 (most recent call first):\n"
    '  File "/home/me/data.py", line 30 in __getitem__\n'
    '  File "/lib/torch/utils/data/_utils/fetch.py", line 54 in fetch\n',
}
"""Facts of a trial that hung in a lock."""


def revised(outcome: Outcome, **facts) -> Outcome:
    """*outcome* with other *facts*: its own, those of its parts, or the passes of a stage."""
    passes = outcome.passes
    if "timed_out" in facts:
        activity = outcome.end.at_deadline or AtDeadline(Activity.WAITS)
        facts.setdefault("at_deadline", activity if facts.pop("timed_out") else None)
    for name in _STAGES.keys() & facts.keys():
        passes = _with_passes(passes, _STAGES[name], facts.pop(name))
    for name, kind in _PARTS.items():
        names = {field.name for field in fields(kind)} & facts.keys()
        changes = {each: facts.pop(each) for each in names}
        facts.setdefault(name, replace(getattr(outcome, name), **changes))
    return replace(outcome, **{"passes": passes, **facts})


def _with_passes(
    passes: Iterable[Pass], stage: Stage, others: Pass | tuple[Pass, ...] | None
) -> tuple[Pass, ...]:
    """*passes* with *others* in a *stage*: several are numbered, None stands for no pass."""
    if isinstance(others, tuple):
        labeled = [
            replace(each, phase=Phase(stage, number)) for number, each in enumerate(others, start=1)
        ]
    else:
        labeled = [replace(others, phase=Phase(stage))] if others else []
    unchanged = [each for each in passes if each.phase.stage is not stage]
    return tuple(
        sorted([*unchanged, *labeled], key=lambda each: list(Stage).index(each.phase.stage))
    )


def of_map(*batches: tuple[int, ...], **facts) -> Pass:
    deliveries = tuple(batch_of(each, tuple(f"d{index}" for index in each)) for each in batches)
    return replace(Pass(EPOCH_1, batches, deliveries, complete=True), **facts)


def together(*passes: Pass | tuple[Pass, ...], main: int = 0, **facts) -> Outcome:
    """The outcome of ranks with these passes; *facts*: facts of all of them."""
    passes_by_rank = [each if isinstance(each, tuple) else (each,) for each in passes]
    kind = (
        "map"
        if any(batch.keys for each in passes_by_rank for batch in each[0].delivered)
        else "iterable"
    )
    ranks = tuple(
        _as_rank(
            revised(ordinary(rank_passes[0]), epochs=rank_passes, kind=kind, **facts),
            number,
            epochs=len(rank_passes),
        )
        for number, rank_passes in enumerate(passes_by_rank)
    )
    return replace(ranks[main], ranks=ranks)


def _as_rank(outcome: Outcome, number: int, epochs: int) -> Outcome:
    return replace(outcome, request=replace(outcome.request, rank=number, epochs=epochs))


def changed(outcome: Outcome, number: int, **facts) -> Outcome:
    ranks = list(outcome.ranks)
    ranks[number] = revised(ranks[number], **facts)
    return replace(ranks[outcome.request.rank or 0], ranks=tuple(ranks))


def waiting(outcome: Outcome, number: int, absence: Absence) -> Outcome:
    """*outcome*, in which that rank stopped in its last batch."""
    (epoch,) = outcome.ranks[number].epochs
    return changed(outcome, number, notes=(absence,), epochs=(replace(epoch, complete=False),))


def faulty(outcome: Outcome, number: int, **facts) -> Outcome:
    """*outcome*, in which reads failed in that rank."""
    of_fault = ordinary(outcome.ranks[number].epochs[0], fired(EIO))
    copied = {name: getattr(of_fault, name) for name in ("schedule", "faults")}
    return changed(outcome, number, **copied, **facts)


def part(*numbers: int, complete: bool = True) -> Pass:
    """A pass that delivered the samples with these numbers, each as a batch."""
    deliveries = tuple(batch for number in numbers for batch in stream(f"d{number}").delivered)
    return Pass(EPOCH_1, delivered=deliveries, complete=complete)


WHOLE = part(*range(8))


def resumed(*rests: Pass, batches: tuple[int, ...] = (3,), **facts) -> Outcome:
    """An outcome of a complete epoch, with the *rests* from states after so many batches."""
    states = [
        SavedState(number, size=100, at_end=number == 9)
        for number in range(1, 10 if 9 in batches else 9)
    ]
    notes = (*states, *(LoadedState(number - 1) for number in batches))
    outcome = revised(ordinary(WHOLE), kind="iterable", notes=notes, resumed=rests)
    return revised(outcome, **facts)


CLEAR = raised("OSError", "[Errno 5] Input/output error: '/data/a.rec'")
UNCLEAR = raised("RuntimeError", "bad sample")
SWAPPED = batch_of((0, 1), ("d1", "d0"))
STRANGE = batch_of((0, 1), ("d0", "other"))
