"""Checks of a loader's state: a job that was stopped begins again from a checkpoint. Pure."""

from __future__ import annotations

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._settings.jobs import Resume
from pytest_dataloader_faults.battery._workload import NotApplicable, Workload
from pytest_dataloader_faults.battery.checks._base import Check, Plan, Variant
from pytest_dataloader_faults.outcomes.stages import StateOf

_WITHOUT_STATE = {
    StateOf.NOBODY: NotApplicable(
        "its loader has no state_dict() and load_state_dict(), so a job that is stopped begins its"
        " epoch anew. torchdata's StatefulDataLoader has both",
        "its loader has no state",
    ),
    StateOf.UNASKED: NotApplicable(
        "its dataset has state_dict(), which torch's DataLoader never calls, and torchdata, whose"
        " StatefulDataLoader does, is not installed: pip install torchdata",
        "torchdata is not installed",
    ),
}
_NO_END = NotApplicable(
    "the stream has no end, or a late one, so there is no rest of an epoch to compare",
    "its stream has no end, or a late one",
)
_RANDOM = NotApplicable(
    "its samples are random and each worker has its own, so it is not known which are left",
    "its samples are random",
)
_ONE_BATCH = NotApplicable("an epoch of it has one batch only, which leaves no rest")
_FEW_TO_DIE = 6
"""Batches of an epoch, so that the loop has had one before a worker begins its third."""
_DIES_AT = 3
_OF_PROCESS, _OF_WORKER = "the process was killed", "a worker was killed"
_AGAIN = (
    "The state was taken by state_dict() between two batches and went through pickle. A new process"
    " called make_dataset, and load_state_dict() of the new loader. It iterated with other random"
    " seeds"
)


def _state_is_asked(workload: Workload) -> int | NotApplicable:
    """How many batches an epoch has; or why no state can be asked for."""
    run = workload.fault_free
    if refusal := _WITHOUT_STATE.get(run.state_of):
        return refusal
    if run.comparison.limit is not None:
        return _RANDOM if run.comparison.own else _NO_END
    count = len(run.passes[0].delivered)
    return count if count > 1 else _ONE_BATCH


def _stops(workload: Workload) -> Plan:
    count = _state_is_asked(workload)
    if isinstance(count, NotApplicable):
        return count
    return (Variant(resume=Resume(tuple(sorted({1, count // 2, count})), at_end=True)),)


def _dies(workload: Workload) -> Plan:
    """In the middle of an epoch, the batch after the one whose state was kept."""
    count = _state_is_asked(workload)
    if isinstance(count, NotApplicable):
        return count
    half = count // 2
    killed = Resume((half,), of_last=True, killed_after=half + 1)
    of_process = Variant((), _OF_PROCESS, resume=killed)
    if count < _FEW_TO_DIE:
        return (of_process,)
    states = Resume(tuple(range(1, count + 1)), of_last=True)
    fault = faults.WorkerKilled(at=_DIES_AT)
    return (of_process, Variant((fault,), _OF_WORKER, {"prefetch_factor": 1}, resume=states))


RESUME = (
    Check(
        "resumes",
        "a loader that begins again from its saved state gives the rest of the epoch, once",
        _stops,
        preface=_AGAIN,
    ),
    Check(
        "resumes-after-death",
        "the same from the last state before the process, or a worker of it, was killed",
        _dies,
        preface=_AGAIN,
    ),
)
