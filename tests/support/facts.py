"""Outcomes made by hand, for tests of what is concluded from them."""

from __future__ import annotations

import errno
from dataclasses import replace

from pytest_dataloader_faults import Outcome
from pytest_dataloader_faults.faults import Fault, ReadError, TruncatedFile, WorkerKilled
from pytest_dataloader_faults.outcomes import (
    Delivery,
    FaultFacts,
    Firing,
    FiringKind,
    Pass,
    Raised,
    Reference,
    Resources,
)
from pytest_dataloader_faults.outcomes.stages import DONE, Phase, Stage

EPOCH_1, EPOCH_2 = Phase(Stage.EPOCH, 1), Phase(Stage.EPOCH, 2)
EIO = ReadError("*.rec", errno=errno.EIO)
TRUNCATED = TruncatedFile("*.rec")
KILLED = WorkerKilled()


def delivery(indices: tuple[int, ...] | None, rows: tuple[str, ...]) -> Delivery:
    """A batch of these samples."""
    return Delivery(indices, rows, "+".join(rows))


def map_reference(count: int = 4) -> Reference:
    """Sample *i* has the digest ``d<i>``."""
    return Reference("map", tuple((index, f"d{index}") for index in range(count)))


def stream_reference(digests: str) -> Reference:
    """A stream of the samples named in *digests*."""
    return Reference("iterable", tuple(enumerate(digests.split())))


def stream(*batches: str, error: Raised | None = None) -> Pass:
    """A pass over a stream: each batch names its samples."""
    came = tuple(delivery(None, tuple(batch.split())) for batch in batches)
    return Pass(((),) * len(came), came, error, error is None)


def raised(kind: str, message: str) -> Raised:
    """An exception as it is printed."""
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
    one = Firing(0, 1, 4711, call, path, 1, kind=kind)
    firings = tuple(replace(one, fetch=fetch) for fetch in range(1, times + 1))
    return (FaultFacts(fault, times + 1, times, 1, firings),)


def unfired(fault: Fault) -> tuple[FaultFacts, ...]:
    """*fault*, which was armed and never happened."""
    return (FaultFacts(fault, reached=1),)


def moment(
    stage: Stage,
    descriptors: dict[str, str] | None = None,
    processes: dict[str, str] | None = None,
) -> Resources:
    """What was open and what ran."""
    return Resources(stage, descriptors or {}, processes or {})


def ordinary(one: Pass, faults: tuple[FaultFacts, ...] = ()) -> Outcome:
    """One epoch that went as in *one*, and a right recovery if there were faults."""
    rows = [("d0", "d1"), ("d2", "d3")]
    indices = ((0, 1), (2, 3))
    came = tuple(delivery(each, row) for each, row in zip(indices, rows, strict=True))
    return Outcome(
        tuple(each.fault for each in faults),
        {"num_workers": 2, "batch_size": 2},
        epochs=1,
        seed=0,
        deadline=30.0,
        engine="kernel",
        passes=(one,),
        recovery=Pass(indices, came, complete=True) if faults else None,
        faults=faults,
        resources=(moment(Stage.START), moment(Stage.EPOCH)),
        phase=DONE,
        duration=0.25,
    )
