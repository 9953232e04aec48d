"""How often each fault happened, and why one did not, from a supervisor's report. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import Fault, has_connections, has_files
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.globs import NETWORK, GlobMatcher
from pytest_dataloader_faults.outcomes.error_text import Occurrence, explains_fault
from pytest_dataloader_faults.outcomes.plain import from_json
from pytest_dataloader_faults.outcomes.records import FaultFacts, Firing, WorkerFacts
from pytest_dataloader_faults.outcomes.text import counted, printable, shown_fault

_MAX_FILES = 10
_BRACES = re.compile(r"\{.*\}")
_ABSOLUTE = re.compile(rf"[*?\[/]|{NETWORK}")


def facts_from(
    workers: Iterable[Mapping[str, Any]],
    loader: Mapping[int, Any],
    faults: Iterable[Fault],
    errors: Iterable[str],
) -> tuple[tuple[FaultFacts, ...], tuple[WorkerFacts, ...]]:
    """The counters of each of *faults* over all *workers*, and these.

    One of *workers* is the loader's own process, and the first one, if it was armed from the start.
    *loader*: other counters of that process, by fault. *errors* are the texts of exceptions of the
    loader: a fault that one of them explains has surfaced.
    """
    workers = sorted(workers, key=_order_of)
    counters = [*(dict(enumerate(worker["faults"])) for worker in workers), loader]
    facts = tuple(
        _facts_of(fault, [each[index] for each in counters if index in each], list(errors))
        for index, fault in enumerate(faults)
    )
    names = [field.name for field in fields(WorkerFacts)]
    reports = [{name: each[name] for name in names if name in each} for each in workers]
    return facts, tuple(from_json(WorkerFacts, each) for each in reports)


def _order_of(worker: Mapping[str, Any]) -> tuple[int, int]:
    return (-1 if worker["worker"] is None else worker["worker"], worker["pid"])


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
    firings = tuple(from_json(Firing, each) for part in parts for each in part["firings"])
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
            return f"{shown_fault(each.fault)} never fired: {'. '.join([*raised, *reasons])}"
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
        yield _why_nothing_matched(fault.fault, workers)
        counts = [(each.worker, each.fetches) for each in workers if each.worker is not None]
        if counts:
            fetched = ", ".join(f"worker {number}: {count}" for number, count in counts)
            yield f"Batches fetched: {fetched}"
        if hidden := unobserved_operations(workers):
            yield f"Hidden from the engine: {hidden}"
    if engine == "python" and has_files(fault.fault):
        yield "The python engine sees only what Python code opens, reads and writes"
    if not fault.reached and has_connections(fault.fault):
        yield _connections_made(workers)
    elif not fault.reached and (has_files(fault.fault) or fault.fault.globs):
        yield _files_opened(workers)


def _why_none_was_due(facts: FaultFacts, workers: int) -> str:
    matched = (
        f"{counted(facts.reached, 'operation')} matched it in {counted(workers, 'worker')}, but"
    )
    if isinstance(facts.fault, (vocabulary.TruncatedFile, vocabulary.CorruptedFile)):
        return f"{matched} it changes none of the files: each is empty, or no larger than keep"
    if isinstance(facts.fault, vocabulary.DescriptorExhaustion):
        return f"{matched} descriptors were left each time. Lower headroom"
    return f"{matched} none satisfied its triggers (nth, every, probability). Lower nth"


def _why_nothing_matched(fault: Fault, workers: Sequence[WorkerFacts]) -> str:
    hints = (hint(fault, workers) for hint in _HINTS)
    return ": ".join(filter(None, ["no operation matched it", next(filter(None, hints), "")]))


def _of_other_workers(fault: Fault, workers: Sequence[WorkerFacts]) -> str:
    ids = {each.worker for each in workers if each.worker is not None}
    wanted = getattr(fault, "workers", None) or (getattr(fault, "worker", None),)
    if None in wanted or ids & {*wanted}:
        return ""
    return f"it is for workers {sorted(wanted)}, and the loader's are {sorted(ids)}"


def _of_later_fetches(fault: Fault, workers: Sequence[WorkerFacts]) -> str:
    at, wanted = getattr(fault, "at", 1), getattr(fault, "worker", None)
    of_workers = [each for each in workers if each.worker is not None]
    made = {each.worker: each.fetches for each in of_workers if wanted in (None, each.worker)}
    is_reached = at <= max(made.values(), default=at)
    if isinstance(fault, vocabulary.PinMemoryThreadDeath) or is_reached:
        return ""
    told = ", ".join(f"worker {id_} made {count}" for id_, count in made.items())
    return f"it is due at fetch {at} of a worker, and {told}. Lower at"


def _of_no_pinning(fault: Fault, _: Sequence[WorkerFacts]) -> str:
    if not isinstance(fault, vocabulary.PinMemoryThreadDeath):
        return ""
    return "no thread pinned so many batches, which takes pin_memory=True and an accelerator"


def _of_globs(fault: Fault, workers: Sequence[WorkerFacts]) -> str:
    """What is wrong with globs that mean none of the files that workers used."""
    paths = {path for each in workers for path in (*each.files, *each.connections)}
    return wrong_globs(fault, paths)


def wrong_globs(fault: Fault, paths: Iterable[str]) -> str:
    """What is wrong with globs that mean none of *paths*; "" if nothing is known to be."""
    paths = tuple(paths)
    if any(map(GlobMatcher(fault.globs).means, paths)):
        return ""
    if braces := next((each for each in fault.globs if _BRACES.search(each)), None):
        return f"braces are no wildcards, as in {braces!r}: give a tuple of globs"
    relative = next((each for each in fault.globs if not _ABSOLUTE.match(each)), None)
    if relative is None:
        return ""
    absolute = f"*/{relative.removeprefix('./')}"
    would = any(map(GlobMatcher((absolute,)).means, paths))
    return f"globs match absolute paths: {absolute!r} would match" + (
        "" if would else " such a file"
    )


def _of_nothing_written(fault: Fault, workers: Sequence[WorkerFacts]) -> str:
    is_about_it = Place.WRITE in fault.places
    if not is_about_it or any(file.writes for each in workers for file in each.files.values()):
        return ""
    return "no worker wrote to a data file"


def _of_small_operations(fault: Fault, _: Sequence[WorkerFacts]) -> str:
    if not isinstance(fault, (vocabulary.ShortRead, vocabulary.ShortWrite)):
        return ""
    call = "read" if isinstance(fault, vocabulary.ShortRead) else "write"
    most = f"max_bytes={fault.max_bytes}" if isinstance(fault.max_bytes, int) else "one byte"
    return f"it takes a {call} of more than {most}"


def _of_constructor(fault: Fault, workers: Sequence[WorkerFacts]) -> str:
    is_for_workers = fault.needs_worker or getattr(fault, "workers", None) is not None
    main = next((each for each in workers if each.worker is None), None)
    if main is None or not is_for_workers or not any(map(GlobMatcher(fault.globs), main.files)):
        return ""
    return "it happens in workers only, and the loader's own process used the file"


_HINTS: tuple[Callable[[Fault, Sequence[WorkerFacts]], str], ...] = (
    _of_constructor,
    _of_other_workers,
    _of_later_fetches,
    _of_no_pinning,
    _of_globs,
    _of_small_operations,
    _of_nothing_written,
)
"""What may be why no operation matched a fault, the surest first."""


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
