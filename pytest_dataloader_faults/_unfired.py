"""What to say of a fault that was armed and never happened. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_dataloader_faults._facts import beyond_reach
from pytest_dataloader_faults._texts import printable
from pytest_dataloader_faults.faults import has_files
from pytest_dataloader_faults.outcomes import FaultFacts, WorkerFacts

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
