"""How often each fault happened, and why one did not, from a supervisor's report. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import Fault, has_connections, has_files
from pytest_dataloader_faults.outcomes._error_text import Occurrence, explains_fault
from pytest_dataloader_faults.outcomes._records import FaultFacts, Firing, WorkerFacts, from_json
from pytest_dataloader_faults.outcomes._text import printable

_MAX_FILES = 10


def facts_from(
    workers: Iterable[Mapping[str, Any]],
    loader: Mapping[int, Any],
    faults: Iterable[Fault],
    errors: Iterable[str],
) -> tuple[tuple[FaultFacts, ...], tuple[WorkerFacts, ...]]:
    """The counters of each of *faults* over all workers, and the workers.

    *loader*: those of the loader's own process, by fault. *errors* are the texts of exceptions of
    the loader: a fault that one of them explains has surfaced.
    """
    workers = sorted(workers, key=lambda worker: (worker["worker"], worker["pid"]))
    counters = [*(dict(enumerate(worker["faults"])) for worker in workers), loader]
    facts = tuple(
        _facts_of(fault, [each[index] for each in counters if index in each], list(errors))
        for index, fault in enumerate(faults)
    )
    names = [field.name for field in fields(WorkerFacts)]
    reports = [{name: each[name] for name in names if name in each} for each in workers]
    return facts, tuple(from_json(WorkerFacts, each) for each in reports)


def occurrences(faults: Iterable[FaultFacts]) -> list[Occurrence]:
    """Each time that one of *faults* happened."""
    return [Occurrence(each.fault, one.path, one.call) for each in faults for one in each.firings]


def unobserved_operations(workers: Iterable[WorkerFacts]) -> str:
    """What hid reads and writes of files from the engine, and how often; empty if nothing did."""
    counts = sum((Counter(each.unobserved) for each in workers), Counter[str]())
    return ", ".join(f"{what} ({count})" for what, count in sorted(counts.items()))


def shared_offset_files(workers: Iterable[WorkerFacts]) -> dict[str, int]:
    """The files that workers have read through one offset, and how many workers."""
    return dict(Counter(path for each in workers for path in each.shared_offset_files))


def _facts_of(fault: Fault, parts: list[dict[str, Any]], errors: list[str]) -> FaultFacts:
    firings = tuple(Firing(**each) for part in parts for each in part["firings"])
    reached, fired = (sum(part[name] for part in parts) for name in ("reached", "fired"))
    facts = FaultFacts(fault, reached, fired, firings=firings)
    surfaced = any(explains_fault(text, occurrences([facts])) for text in errors)
    return replace(facts, surfaced=int(surfaced))


def unfired(
    faults: Sequence[FaultFacts],
    workers: Sequence[WorkerFacts],
    engine: str,
    not_made: str | None = None,
) -> str | None:
    """Why the first of *faults* that did not happen did not; None if all of them happened.

    *not_made*: the error of a loader that could not make its latest iterator.
    """
    for each in faults:
        if not each.fired:
            raised = [f"iter(loader) raised {printable(not_made)}"] if not_made else []
            reasons = [] if raised and not workers else _reasons(each, workers, engine)
            return f"{each.fault!r} never fired: {'. '.join([*raised, *reasons])}"
    return None


def _reasons(fault: FaultFacts, workers: Sequence[WorkerFacts], engine: str) -> Iterator[str]:
    if not workers:
        yield (
            "no DataLoader worker was started after it was armed. Arm faults before iter(loader),"
            " and in the scope of inject(); with persistent_workers=True, before its first iterator"
        )
        return
    if fault.reached:
        yield _why_none_was_due(fault, len(workers))
    else:
        yield _why_nothing_matched(fault.fault, {each.worker for each in workers})
        fetches = (f"worker {each.worker}: {each.fetches}" for each in workers)
        yield f"Batches fetched: {', '.join(fetches)}"
        if hidden := unobserved_operations(workers):
            yield f"Hidden from the engine: {hidden}"
    if engine == "python" and has_files(fault.fault):
        yield "The python engine sees only what Python code opens, reads and writes"
    if not fault.reached and has_connections(fault.fault):
        yield _connections_made(workers)
    elif not fault.reached:
        yield _files_opened(workers)


def _why_none_was_due(facts: FaultFacts, workers: int) -> str:
    matched = f"{facts.reached} operations matched it in {workers} worker(s), but"
    if isinstance(facts.fault, (vocabulary.TruncatedFile, vocabulary.CorruptedFile)):
        return f"{matched} it changes none of the files: each is empty, or no larger than keep"
    if isinstance(facts.fault, vocabulary.DescriptorExhaustion):
        return f"{matched} descriptors were left each time. Lower headroom"
    return f"{matched} none satisfied its triggers (nth, every, probability). Lower nth"


def _why_nothing_matched(fault: Fault, ids: set[int]) -> str:
    nothing = "no operation matched it"
    wanted = getattr(fault, "workers", None) or (getattr(fault, "worker", None),)
    if None not in wanted and not ids & {*wanted}:
        return f"{nothing}: it is for workers {sorted(wanted)}, and the loader's are {sorted(ids)}"
    if isinstance(fault, (vocabulary.ShortRead, vocabulary.ShortWrite)):
        call = "read" if isinstance(fault, vocabulary.ShortRead) else "write"
        most = f"max_bytes={fault.max_bytes}" if isinstance(fault.max_bytes, int) else "one byte"
        return f"{nothing}, which takes a {call} of more than {most}"
    return nothing


def _connections_made(workers: Sequence[WorkerFacts]) -> str:
    made = sum((Counter(each.connections) for each in workers), Counter[str]())
    shown = ", ".join(f"{path} ({count})" for path, count in sorted(made.items())[:_MAX_FILES])
    if shown:
        return f"Connections made: {shown}"
    return "No worker made a TCP connection. One from before the workers started is not seen"


def _files_opened(workers: Sequence[WorkerFacts]) -> str:
    files = sorted({path for worker in workers for path in worker.files})
    more = len(files) - _MAX_FILES
    rest = [f"... and {more} more"] if more > 0 else []
    shown = "\n  ".join([*map(printable, files[:_MAX_FILES]), *rest])
    return f"Files opened:\n  {shown}" if files else "The engine saw no data file opened"
