"""How often each fault fired, and why one did not, from a supervisor's report. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults.faults import Fault, has_connections
from pytest_dataloader_faults.faults.files import ShortCall
from pytest_dataloader_faults.faults.globs import GlobMatcher, is_absolute
from pytest_dataloader_faults.outcomes.error_text import Occurrence, explains_fault
from pytest_dataloader_faults.outcomes.text import pluralize, printable, shown_fault
from pytest_dataloader_faults.wire import FaultFacts, WorkerFacts

_MAX_FILES = 10
_BRACES = re.compile(r"\{.*\}")


def note_mentions(faults: Iterable[FaultFacts], errors: Sequence[str]) -> tuple[FaultFacts, ...]:
    """*faults*, with those noted that one of *errors*, the loader's tracebacks, mentions."""

    def is_mentioned(facts: FaultFacts) -> bool:
        hits = occurrences([facts])
        return any(explains_fault(text, hits) for text in errors)

    return tuple(replace(facts, mentioned=int(is_mentioned(facts))) for facts in faults)


def occurrences(faults: Iterable[FaultFacts]) -> list[Occurrence]:
    """Each occurrence of one of the *faults*."""
    return [
        Occurrence(facts.fault, firing.path, firing.call)
        for facts in faults
        for firing in facts.firings
    ]


def unobserved_operations(workers: Iterable[WorkerFacts]) -> str:
    """What hid reads and writes from the engine, and how often; empty if nothing did."""
    counts = sum((Counter(each.unobserved) for each in workers), Counter[str]())
    return ", ".join(f"{operation} ({count})" for operation, count in sorted(counts.items()))


def shared_offset_files(workers: Iterable[WorkerFacts]) -> dict[str, int]:
    """The files that workers have read through a shared offset, with the number of workers."""
    return dict(Counter(path for each in workers for path in each.shared_offset_files))


def explain_unfired(
    faults: Sequence[FaultFacts], workers: Sequence[WorkerFacts], not_made: str | None = None
) -> str | None:
    """Why the first of *faults* that did not fire did not; None if all of them fired.

    *not_made*: the error of a loader that could not create its latest iterator.
    """
    for facts in faults:
        if not facts.fired:
            raised = [f"iter(loader) raised {printable(not_made)}"] if not_made else []
            reasons = [] if raised and not workers else _reasons(facts, workers)
            return f"{shown_fault(facts.fault)} never fired: {'. '.join([*raised, *reasons])}"
    return None


def _reasons(facts: FaultFacts, workers: Sequence[WorkerFacts]) -> Iterator[str]:
    if not workers:
        yield (
            "no DataLoader worker was started while it was armed. Arm faults before iter(loader),"
            " inside the scope of inject(), and, with persistent_workers=True, before the loader's"
            " first iterator"
        )
        return
    if facts.matched:
        yield _explain_none_due(facts, len(workers))
        return
    hints = _hints(facts.fault, workers)
    yield ": ".join(filter(None, ["no operation matched it", next(filter(None, hints), "")]))
    counts = [(each.worker, each.fetches) for each in workers if each.worker is not None]
    if counts:
        fetched = ", ".join(f"worker {number}: {count}" for number, count in counts)
        yield f"Batches fetched: {fetched}"
    if hidden := unobserved_operations(workers):
        yield f"Not visible to the engine: {hidden}"
    if has_connections(facts.fault):
        yield _list_connections(workers)
    elif facts.fault.globs:
        yield _list_files(workers)


def _explain_none_due(facts: FaultFacts, workers: int) -> str:
    matched = (
        f"{pluralize(facts.matched, 'operation')} matched it in {pluralize(workers, 'worker')}, but"
    )
    if isinstance(facts.fault, (vocabulary.TruncatedFile, vocabulary.CorruptedFile)):
        return f"{matched} none of the files was changed: each is empty, or no larger than keep"
    if isinstance(facts.fault, vocabulary.DescriptorExhaustion):
        return f"{matched} there were always free descriptors. Pass a smaller value for headroom"
    triggers = "(nth, every, probability)"
    return f"{matched} none satisfied its triggers {triggers}. Pass a smaller value for nth"


def _hints(fault: Fault, workers: Sequence[WorkerFacts]) -> Iterator[str]:
    """Possible reasons why no operation matched *fault*, the most certain first."""
    is_for_workers = fault.needs_worker or getattr(fault, "workers", None) is not None
    main_files = (path for each in workers if each.worker is None for path in each.files)
    if is_for_workers and any(map(GlobMatcher(fault.globs), main_files)):
        yield "it fires in workers only, but the main process used the file"
    ids = {each.worker for each in workers if each.worker is not None}
    targets = getattr(fault, "workers", None) or (getattr(fault, "worker", None),)
    if None not in targets and not ids & {*targets}:
        yield f"it targets workers {sorted(targets)}, but the loader's workers are {sorted(ids)}"
    yield _hint_later_fetches(fault, workers)
    yield _hint_globs(fault, [path for each in workers for path in (*each.files, *each.addresses)])
    yield _hint_of_kind(fault, workers)


def _hint_later_fetches(fault: Fault, workers: Sequence[WorkerFacts]) -> str:
    at, target = getattr(fault, "at", 1), getattr(fault, "worker", None)
    of_workers = [each for each in workers if each.worker is not None]
    fetches = {each.worker: each.fetches for each in of_workers if target in (None, each.worker)}
    if at <= max(fetches.values(), default=at):
        return ""
    if not any(fetches.values()):
        return "its workers ended before they fetched a batch"
    counts = ", ".join(
        f"worker {id_} fetched only {pluralize(count, 'batch')}" for id_, count in fetches.items()
    )
    return f"it is due at a worker's fetch {at}, but {counts}. Pass a smaller value for at"


def _hint_globs(fault: Fault, paths: Collection[str]) -> str:
    """What is wrong with globs that match none of the *paths* that workers used."""
    if any(map(GlobMatcher(fault.globs).means, paths)):
        return ""
    if braces := next((each for each in fault.globs if _BRACES.search(each)), None):
        return f"braces, as in {braces!r}, are not wildcards: pass a tuple of globs"
    relative = next((each for each in fault.globs if not is_absolute(each)), None)
    if relative is None:
        return ""
    absolute = f"*/{relative.removeprefix('./')}"
    file = "" if any(map(GlobMatcher((absolute,)).means, paths)) else " such a file"
    return f"globs match absolute paths: {absolute!r} would match{file}"


def _hint_of_kind(fault: Fault, workers: Sequence[WorkerFacts]) -> str:
    is_of_writes = isinstance(fault, vocabulary.WorkerKilled) and fault.writing
    counts = _sum_counts(workers, "writes" if is_of_writes else fault.operation)
    hint = ""
    match fault:
        case ShortCall(max_bytes=limit):
            most = f"max_bytes={limit}" if isinstance(limit, int) else "one byte"
            hint = f"it needs a {fault.call} of more than {most}"
        case vocabulary.StrayEntry():
            hint = _explain_no_entry(fault, counts)
        case vocabulary.ThreadExhaustion():
            hint = "no targeted worker started a thread or a process while it made a batch"
        case vocabulary.MemoryExhaustion(sample=sample, min_bytes=size):
            whose = "a sample" if sample is None else f"sample {sample}"
            hint = f"no allocation of a worker for {whose} reached min_bytes={size}"
        case vocabulary.LockError() if not counts:
            hint = "no worker locked a file"
        case _ if not counts and (is_of_writes or isinstance(fault, vocabulary.WriteError)):
            hint = "no worker wrote to a data file"
    return hint


def _explain_no_entry(fault: vocabulary.StrayEntry, listings: Iterable[str]) -> str:
    """Why no folder could get another entry."""
    folders = [*filter(GlobMatcher(fault.globs), listings)]
    if not folders:
        return "no worker listed a matching folder"
    text = f"{printable(min(folders))} already contains such an entry"
    return f"{text}, or no file to copy" if fault.is_copy else text


def _sum_counts(workers: Sequence[WorkerFacts], operation: str) -> Counter[str]:
    """How often *workers* did *operation*, by path."""
    return sum((Counter(each.counts_of(operation)) for each in workers), Counter[str]())


def _list_connections(workers: Sequence[WorkerFacts]) -> str:
    counts = sorted(_sum_counts(workers, "connections").items())
    text = ", ".join(f"{path} ({count})" for path, count in counts[:_MAX_FILES])
    if text:
        return f"Connections opened: {text}"
    return (
        "No worker opened a TCP connection. Connections from before the workers started are not"
        " visible"
    )


def _list_files(workers: Sequence[WorkerFacts]) -> str:
    files = sorted({path for worker in workers for path in worker.files})
    omitted = len(files) - _MAX_FILES
    remainder = [f"... and {omitted} more"] if omitted > 0 else []
    text = "\n  ".join([*map(printable, files[:_MAX_FILES]), *remainder])
    return f"Files opened:\n  {text}" if files else "The engine saw no data file opened"
