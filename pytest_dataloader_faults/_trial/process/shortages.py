"""Whether a trial failed because this machine has too little of something [runs in pytest].

Some facts about the cause of such errors. "No space left on device" or "Too many open files" can be
a fault that was armed, a dataset that takes too much, or a machine that has too little. So an error
of that kind is the machine's only if no fault asked for it, and if the machine still lacks the
thing now that all of the trial's processes, files and shared memory are gone.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._trial.job import ReferenceJob, TrialJob
from pytest_dataloader_faults._trial.process.environment import shortage
from pytest_dataloader_faults.exceptions import UnusableEnvironmentError

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.job import Job


_WORDS = {
    errno.EMFILE: r"received 0 items of ancdata",
    errno.ENOSPC: r"insufficient shared memory|Disk quota exceeded",
    errno.EAGAIN: r"can't start new thread|pthread_create failed",
    errno.ENOMEM: r"Cannot allocate memory|DefaultCPUAllocator: can't allocate",
}
"""What errors say of each, besides its number and its text."""
_MOST = 200


def require_environment(job: Job, events: list[dict[str, Any]], printed: str) -> None:
    """Raise if *events* or what *job* *printed* report a failure that this machine caused."""
    errors = list(_errors(events))
    if not errors:
        return
    expected = _armed_errnos(job)
    for number in _WORDS.keys() - expected:
        line = _line_about(number, "\n".join([*errors, printed]))
        if line and (message := shortage(number, line)):
            raise UnusableEnvironmentError(message)


def _errors(events: list[dict[str, Any]]) -> Iterator[str]:
    """The texts of what went wrong; that of a hang or a death is empty."""
    for event in events:
        if event.get("timed_out") or event.get("died"):
            yield ""
        yield from (event[name] for name in ("why", "broken") if name in event)
        if "pass" in event and event["pass"].get("exception"):
            yield event["pass"]["exception"]["text"]


def _armed_errnos(job: Job) -> set[int]:
    """The errnos that the faults of *job* cause."""
    if isinstance(job, ReferenceJob):
        return set()
    is_limited = isinstance(job, TrialJob) and job.options.descriptors is not None
    return {each.errno for each in job.faults} | ({errno.EMFILE} if is_limited else set())


def _line_about(number: int, text: str) -> str | None:
    """The first line of *text* that reports *number*."""
    words = rf"{re.escape(os.strerror(number))}|\bErrno {number}\b|{_WORDS[number]}"
    for line in text.splitlines():
        if re.search(words, line):
            return line.strip()[:_MOST]
    return None
