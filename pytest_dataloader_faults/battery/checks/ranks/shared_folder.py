"""The race of ranks that prepare files in one folder. Pure.

Each rank runs the same code: ``if not folder.exists(): extract(archive, folder)``. One of them
creates a file, and another finds it before it is whole. Which rank is first varies. So rank 0 waits
once it has created a file, until another rank has a batch or an error. The others start once rank 0
waits. If they have to wait themselves, at a barrier or for a lock, rank 0 continues after a while.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults.outcomes.results import FolderShared
from pytest_dataloader_faults.outcomes.stages import Phase, Stage
from pytest_dataloader_faults.steps import Epoch, Make, OwnStep, Processes, arm_workers

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

CALLS_USER_CODE = True

_TIMEOUT = 5.0


@dataclass(frozen=True)
class HoldWrites(OwnStep):
    """Have rank 0 wait when it prepares files, and the others until it does."""

    def run(self, process: TrialProcess) -> None:
        """Hold what Python code opens in this process until the dataset is made."""
        from pytest_dataloader_faults._trial.journal import Noted

        meetings: Any = process.meetings
        process.journal.write(Noted(FolderShared()))
        for name in ("meet", "leave"):  # It has a batch then, or an error in place of it.
            report = functools.partial(_report, meetings, getattr(meetings, name))
            setattr(meetings, name, report)
        if meetings.number:
            _await(process, "rank 0")
        else:
            for module in (builtins, io, os):
                vars(module)["open"] = _hold(process, vars(module)["open"])


def hold_writes() -> Processes:
    """Two epochs: what the ranks write in the first one, they may read in the second one."""
    ((_, *following),) = arm_workers(Epoch(), Epoch())
    return ((HoldWrites(), Make(Phase(Stage.EPOCH, 1)), *following),)


def _hold(process: TrialProcess, original: Callable[..., Any]) -> Callable[..., Any]:
    """The function *original*, which waits after it has created a file or emptied it."""
    make_dataset, may_wait, pid = process.job.make_dataset, True, os.getpid()
    while hasattr(make_dataset, "source"):  # A factory of one of several loaders.
        make_dataset = make_dataset.source
    folder = os.path.join(os.path.realpath(make_dataset.args[0]), "")

    @functools.wraps(original)
    def open_and_wait(path: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal may_wait
        size = _size_in(folder, path)
        opened = original(path, *args, **kwargs)
        is_new = size != 0 and _size_in(folder, path) == 0
        # User code may fork this process.
        if is_new and may_wait and process.loader is None and os.getpid() == pid:
            _report(process.meetings, str)
            may_wait = _await(process, "others")
        return opened

    return open_and_wait


def _size_in(folder: str, path: Any) -> int | None:
    """The size of the file *path*; None if there is none, or if it is not below *folder*."""
    try:
        return os.path.getsize(path) if os.path.realpath(path).startswith(folder) else None
    except (OSError, TypeError, ValueError):
        return None


def _report(meetings: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Write down for the others that they may continue, and call *function*."""
    meetings.notes.set("others" if meetings.number else "rank 0", b"")
    return function(*args, **kwargs)


def _await(process: Any, note: str) -> bool:
    """Whether another rank writes down *note* in time. That time does not count."""
    from pytest_dataloader_faults._trial.journal import LoaderTime, MeetingTime

    process.journal.write(MeetingTime(time.monotonic()))
    end = time.monotonic() + min(_TIMEOUT, process.job.settings.longest_epoch / 2)
    while not (is_noted := process.meetings.notes.check([note])) and time.monotonic() < end:
        time.sleep(0.005)
    process.journal.write(LoaderTime(time.monotonic()))
    return bool(is_noted)
