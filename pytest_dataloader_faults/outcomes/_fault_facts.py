"""From a supervisor's report to what became of each fault. Pure.

What to say of a fault that was armed and never happened. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_dataloader_faults.faults import Fault, has_files
from pytest_dataloader_faults.outcomes._error_text import tells_any
from pytest_dataloader_faults.outcomes._records import FaultFacts, Firing, WorkerFacts
from pytest_dataloader_faults.outcomes._text import printable


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
    return facts, tuple(WorkerFacts.from_report(each) for each in workers)


def beyond_reach(workers: Iterable[WorkerFacts]) -> str:
    """What the engine has not seen of the files that matter, and how often; empty if nothing."""
    counts = sum((Counter(each.unobserved) for each in workers), Counter[str]())
    return ", ".join(f"{what} ({count})" for what, count in sorted(counts.items()))


def shared_files(workers: Iterable[WorkerFacts]) -> dict[str, int]:
    """The files that workers have read through one offset, and how many workers."""
    return dict(Counter(path for each in workers for path in each.shared_offset_files))


def _facts_of(fault: Fault, parts: list[dict[str, Any]], errors: list[str]) -> FaultFacts:
    firings = tuple(Firing(**each) for part in parts for each in part["firings"])
    met = [(fault, each.path, each.call) for each in firings]
    surfaced = any(tells_any(text, met) for text in errors)
    reached, fired = (sum(part[name] for part in parts) for name in ("reached", "fired"))
    return FaultFacts(fault, reached, fired, int(surfaced), firings)


_PYTHON = "The python engine sees only what Python code opens and reads"


def unfired(
    faults: Sequence[FaultFacts], workers: Sequence[WorkerFacts], engine: str
) -> str | None:
    """What was reached in place of the first of *faults* that did not happen, if there is one."""
    for each in faults:
        if not each.fired:
            text = _instead(each, workers)
            is_blind = engine == "python" and workers and has_files(each.fault)
            return f"{text}. {_PYTHON}" if is_blind else text
    return None


def _instead(fault: FaultFacts, workers: Sequence[WorkerFacts]) -> str:
    """What was reached in place of a fault that never fired."""
    text = f"{fault.fault!r} never fired"
    if not workers:
        return (
            f"{text}: no DataLoader worker was started inside the scope. Iterate the loader inside"
            " it; with persistent_workers=True, make its first iterator there"
        )
    if fault.reached:
        met = f"what it is about was met {fault.reached} times in {len(workers)} worker(s)"
        return f"{text}: {met}, too few for its triggers. Lower nth (or headroom)"
    files = sorted({path for worker in workers for path in worker.files})
    fetches = ", ".join(f"worker {each.worker} made {each.fetches} fetches" for each in workers)
    rest = [f"... and {len(files) - 10} more"] if files[10:] else []
    shown = "\n  ".join([*map(printable, files[:10]), *rest])
    opened = f"the workers opened\n  {shown}" if files else "the workers opened no data file"
    hidden = beyond_reach(workers)
    more = f"; hidden from the engine: {hidden}" if hidden else ""
    return f"{text}: nothing it is about was met. {fetches}; {opened}{more}"
