"""From a supervisor's report to what became of each fault. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pytest_dataloader_faults._clarity import tells_any
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import FaultFacts, Firing, WorkerFacts


def facts_from(
    report: dict[str, Any], faults: Iterable[Fault], errors: Iterable[str]
) -> tuple[tuple[FaultFacts, ...], tuple[WorkerFacts, ...]]:
    """The counters of each of *faults* over all workers, and the workers.

    *errors* are the texts of exceptions of the loader: a fault that one of them tells of surfaced.
    """
    workers = sorted(report["workers"], key=lambda worker: (worker["worker"], worker["pid"]))
    told = [dict(enumerate(worker["faults"])) for worker in workers] + [report.get("loader", {})]
    facts = tuple(
        _facts_of(fault, [each[index] for each in told if index in each], list(errors))
        for index, fault in enumerate(faults)
    )
    return facts, tuple(WorkerFacts.from_report(each) for each in workers)


def beyond_reach(workers: Iterable[WorkerFacts]) -> str:
    """What the engine has not seen of the files that matter, and how often; empty if nothing."""
    unreached = sum((Counter(each.unreached) for each in workers), Counter[str]())
    return ", ".join(f"{what} ({count})" for what, count in sorted(unreached.items()))


def shared_files(workers: Iterable[WorkerFacts]) -> dict[str, int]:
    """The files that workers have read through one offset, and how many workers."""
    return dict(Counter(path for each in workers for path in each.shared))


def _facts_of(fault: Fault, parts: list[dict[str, Any]], errors: list[str]) -> FaultFacts:
    firings = tuple(Firing(**each) for part in parts for each in part["firings"])
    met = [(fault, each.path, each.call) for each in firings]
    surfaced = any(tells_any(text, met) for text in errors)
    reached, fired = (sum(part[name] for part in parts) for name in ("reached", "fired"))
    return FaultFacts(fault, reached, fired, int(surfaced), firings)
