"""Each fault of the vocabulary, and its result with correct datasets of 16 records."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pytest_dataloader_faults import Contract, Verdict
from pytest_dataloader_faults.faults import (
    KINDS,
    ClosedDescriptor,
    CorruptedFile,
    DescriptorExhaustion,
    Fault,
    HungRead,
    ListingError,
    ListingOrder,
    LockError,
    MemoryExhaustion,
    OpenError,
    ReadError,
    SharedMemoryExhaustion,
    ShortRead,
    ShortWrite,
    SlowRead,
    StrayEntry,
    ThreadExhaustion,
    TruncatedFile,
    WorkerExited,
    WorkerHung,
    WorkerKilled,
    WriteError,
    has_connections,
)
from pytest_dataloader_faults.outcomes import Outcome, Reference
from support.judging import judge_trial
from support.waiting import allowed

NOTHING: Mapping[str, Any] = MappingProxyType({})
IMPATIENT: Mapping[str, Any] = MappingProxyType({"timeout": allowed(2)})


class Row(NamedTuple):
    """A fault and its expected result.

    *later* is the same fault, due in an epoch after the first: what persistent workers are given.
    *writes*: it takes a dataset that writes. *loader*: options that it needs.
    """

    fault: Fault
    verdict: Verdict = Verdict.FAILED_CLEANLY
    later: Fault | None = None
    writes: bool = False
    loader: Mapping[str, Any] = NOTHING


FAULTS = (
    Row(OpenError("*/05.rec"), later=OpenError("*/05.rec", nth=2)),
    Row(ReadError("*/05.rec"), later=ReadError("*/05.rec", nth=3)),
    Row(ShortRead("*/05.rec", max_bytes=9), Verdict.SURVIVED),
    Row(TruncatedFile("*/05.rec")),
    Row(CorruptedFile("*/05.rec"), Verdict.CORRUPTED),
    Row(ClosedDescriptor("*/05.rec"), later=ClosedDescriptor("*/05.rec", nth=2)),
    Row(SlowRead("*/05.rec", seconds=0.01), Verdict.SURVIVED),
    Row(HungRead("*/05.rec"), later=HungRead("*/05.rec", nth=3), loader=IMPATIENT),
    Row(WriteError("*/05.copy"), later=WriteError("*/05.copy", nth=2), writes=True),
    Row(ShortWrite("*/05.copy", max_bytes=9), Verdict.SURVIVED, writes=True),
    Row(DescriptorExhaustion()),
    Row(SharedMemoryExhaustion()),
    Row(WorkerKilled(at=2), later=WorkerKilled(at=6)),
    Row(WorkerExited(3, at=2), later=WorkerExited(3, at=6)),
    Row(WorkerHung(at=2), later=WorkerHung(at=6), loader=IMPATIENT),
)
OTHER_KINDS = {
    *(ListingError, ListingOrder, StrayEntry, LockError, ThreadExhaustion, MemoryExhaustion),
    *(kind for kind in KINDS.values() if has_connections(kind())),
}
"""Those that have test files of their own, and no row."""


def require_result(row: Row, outcome: Outcome, reference: Reference, count: int) -> None:
    """The fault of *row* fired, its verdict came, and the recovery pass delivered *count*."""
    finding = judge_trial(outcome, reference, Contract(detects_corruption=True))
    assert row.verdict == finding.verdict, (finding.sentence, outcome.exception, outcome.stderr)
    assert outcome.fired
    assert outcome.recovery is not None
    assert sum(len(each.samples) for each in outcome.recovery.delivered) == count
