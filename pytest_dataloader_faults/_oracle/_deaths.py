"""Workers that died although no fault was to end them. Pure.

Some facts about the error that a death becomes. A dead worker breaks whatever the loader does with
it first. So the same death reaches the loop as RuntimeError, or as ConnectionResetError, EOFError
or FileNotFoundError from the socket through which a tensor was to come. Which of them is a matter
of microseconds, so none of them is asked: the verdict follows from the death.

Some facts about SIGBUS. A process gets it where it touches a page of a mapping that cannot be
delivered (mmap(2)): a read of the disk failed, or the file ends before that page. For the first
there is no other way to report an error, so SIGBUS is all that a dataset can do. The second could
have been seen: fstat(2) told the size when the file was mapped. torch blames shared memory for
each SIGBUS, which misleads its reader.
"""

from __future__ import annotations

import signal

from pytest_dataloader_faults.faults import Fault, SharedMemoryExhaustion, TruncatedFile
from pytest_dataloader_faults.outcomes import Outcome, WorkerDeath

_ENDS = ("signal ", "exit ")
"""How the call of a firing begins that ended its worker."""
_CUT_OFF = (
    ": it touched a page beyond the end of a truncated file that it had mapped, and torch's error"
    " blames shared memory. Compare the size of the file with what it should be before mapping it"
)
_NOT_OURS = ", which no fault sent: it came from outside, or from the kernel's OOM killer"


def unclear_death(outcome: Outcome) -> str:
    """The first death that hides its cause, as a sentence; empty if there is none."""
    hidden = (each for each in outcome.deaths if not _is_clear(outcome, each))
    return next((f"{each}{_cause(outcome, each)}" for each in hidden), "")


def _is_clear(outcome: Outcome, death: WorkerDeath) -> bool:
    firings = [one for each in outcome.faults for one in each.firings]
    if any(one.pid == death.pid and one.call.startswith(_ENDS) for one in firings):
        return True
    is_mapped = any(one.worker == death.worker and one.call == "mmap" for one in firings)
    return _is_sigbus(death) and (is_mapped or _has_fired(outcome, SharedMemoryExhaustion))


def _cause(outcome: Outcome, death: WorkerDeath) -> str:
    if _is_sigbus(death) and _has_fired(outcome, TruncatedFile):
        return _CUT_OFF
    if death.exitcode == -signal.SIGKILL:
        return _NOT_OURS
    kinds = ", ".join(sorted({type(each.fault).__name__ for each in outcome.faults if each.fired}))
    return f", and the loader's error hides that its cause is {kinds}"


def _is_sigbus(death: WorkerDeath) -> bool:
    return death.exitcode == -signal.SIGBUS


def _has_fired(outcome: Outcome, kind: type[Fault]) -> bool:
    return any(isinstance(each.fault, kind) for each in outcome.faults if each.fired)
