"""What workers share: files and connections opened before the fork, and new files. Pure."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from pytest_dataloader_faults.faults.base import FiringKind
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.fault_facts import shared_offset_files
from pytest_dataloader_faults.outcomes.judge.starts import is_not_forked
from pytest_dataloader_faults.outcomes.libraries import HANDLES, Handle
from pytest_dataloader_faults.outcomes.records import TrialFacts
from pytest_dataloader_faults.outcomes.stages import RECOVERY, SharedConnection
from pytest_dataloader_faults.wire import WorkerFacts

_HANDLE = "uses a file that was opened before the fork"
_SHARED_OFFSET = (
    "The workers therefore share its file offset: open it in the worker, on first access"
)
_OPENS_EARLY = Cause(
    "reads a file while another worker still writes it",
    "One worker created {}, and another opened it before the first had written anything: the file"
    " exists before it is complete. Write to a temporary name in the same folder, and rename the"
    " file with os.replace() once it is complete, or hold a lock while you check and write",
    overrides=True,
    fix="write to a temporary name, and rename the file with os.replace()",
)
_SHARES_TEMPORARY = Cause(
    "writes the same temporary file in several workers",
    "Two workers used the name {0}: one renamed the file, and the other no longer found it. Add the"
    " process to the name, as in f'{0}.{{os.getpid()}}', or call tempfile.mkstemp(dir=folder). Then"
    " each os.replace() installs a complete file",
    overrides=True,
    fix="add os.getpid() to the temporary name, or call tempfile.mkstemp(dir=folder)",
)
STALE_LOCK = Cause(
    "leaves a lock file behind when a worker dies",
    "A worker created the lock file and died before it removed the file, so all others wait for it."
    " Use a lock that the kernel releases when its process dies, such as fcntl.flock() or"
    " filelock.FileLock, or ignore a lock file whose process no longer exists",
    overrides=True,
    fix="use a lock that the kernel releases, such as fcntl.flock() or filelock.FileLock",
)
_CONNECTION = "uses a connection that was opened before the fork"
_SHARED_CONNECTION = (
    "The dataset opened {} before the workers started, and they all used it, so that one may get"
    " the answer for another: open it in the worker, on first access"
)
_SEVERAL = 2
_LOCK = re.compile(r"lo?ck[^/]*$", re.IGNORECASE)
_NOT_RENAMED = re.compile(r"FileNotFoundError: \[Errno 2\] [^'\n]*'([^'\n]+)' -> '([^'\n]+)'")
_WITHOUT_FAULT = (Verdict.CORRUPTED, Verdict.FAILS_WITHOUT_FAULT, Verdict.POISONED)


def file_cause(outcome: TrialFacts, verdict: Verdict, fault_free: TrialFacts) -> Cause | None:
    """The cause, if it is a file that was opened before the fork."""
    path = next(_open_before_fork(outcome, verdict, fault_free), None)
    if path is None:
        return None
    handle = _handle_of(path)
    opened = f"{os.path.basename(path)} was opened before the workers started."
    how_to_open = handle.how_to_open if handle else _SHARED_OFFSET
    return Cause(
        _HANDLE,
        f"{opened} {how_to_open}",
        overrides=handle is not None and bool(handle.errors),
        fix="open the file in the worker, on first access",
    )


def early_read_cause(outcome: TrialFacts, verdict: Verdict) -> Cause | None:
    """The cause, if a worker opened a file that another one had created, and not written yet."""
    files = sorted(path for worker in outcome.workers for path in worker.unwritten_files)
    if not files or outcome.fired or verdict not in _WITHOUT_FAULT:
        return None
    return _OPENS_EARLY._replace(advice=_OPENS_EARLY.advice.format(os.path.basename(files[0])))


def temporary_name_cause(outcome: TrialFacts) -> Cause | None:
    """The cause, if a worker could not rename a file that another worker had written as well."""
    error = outcome.exception
    match = _NOT_RENAMED.search(error.text) if error and not outcome.fired else None
    # What is written once the other one has renamed the file counts for the new name.
    if match is None or len(_find_changers(outcome, match.groups())) < _SEVERAL:
        return None
    advice = _SHARES_TEMPORARY.advice.format(os.path.basename(match[1]))
    return _SHARES_TEMPORARY._replace(advice=advice)


def _find_changers(outcome: TrialFacts, paths: Iterable[str]) -> list[WorkerFacts]:
    """The workers that changed one of the files *paths*."""
    return [each for each in outcome.workers if not {*paths}.isdisjoint(each.changed_files)]


def find_stale_lock(outcome: TrialFacts) -> str | None:
    """The lock file that a dead worker left, and for which others wait; None if there is none.

    Temporary files are created in the same way. But a lock file has a name that says so, or several
    workers wanted to create it.
    """
    is_hung = outcome.timed_out and outcome.phase == RECOVERY
    if not (is_hung and any(epoch.deaths for epoch in outcome.epochs)):
        return None
    counts = Counter(path for worker in outcome.workers for path in worker.remaining_locks)
    return next((path for path in counts if counts[path] > 1 or _LOCK.search(path)), None)


def _open_before_fork(
    outcome: TrialFacts, verdict: Verdict, fault_free: TrialFacts
) -> Iterator[str]:
    """The files that workers use through handles from before the fork, if that is the cause.

    Wrong content is not caused by the handle, unless workers read the file at a shared offset:
    pread(2) and mappings do not use one.
    """
    shared = shared_offset_files((*fault_free.workers, *outcome.workers))
    if verdict is Verdict.POISONED:  # Its workers read on from where the last ones stopped.
        yield from _inherited_files(outcome, fault_free, by_calls=True)
    if not outcome.fired:
        yield from shared
        text = outcome.exception.text if outcome.exception else ""
        for handle in HANDLES:
            if handle.errors and re.search(handle.errors, text):
                yield f"data{handle.suffixes[0]}"
        yield from filter(_handle_of, _inherited_files(outcome, fault_free))
    replaced = (firing.path for firing in outcome.firings if firing.kind is FiringKind.REPLACED)
    yield from (path for path in replaced if path in shared)


def _inherited_files(
    outcome: TrialFacts, fault_free: TrialFacts, *, by_calls: bool = False
) -> list[str]:
    """The files that workers read but did not open; *by_calls*: and did not map."""
    files = [
        item for worker in (*fault_free.workers, *outcome.workers) for item in worker.files.items()
    ]
    return [
        path
        for path, counts in files
        if counts.reads and not counts.opens and (counts.bytes or not by_calls)
    ]


def _handle_of(path: str) -> Handle | None:
    """The kind of handle that a file like *path* has, if it does not survive a fork."""
    return next((each for each in HANDLES if os.path.splitext(path)[1] in each.suffixes), None)


def find_shared_connection(outcome: TrialFacts) -> Finding | None:
    """A connection on which nothing kept the requests of two workers apart."""
    shared = next((each for each in outcome.of(SharedConnection) if each.is_shared), None)
    if shared is None:
        return None
    sentence = (
        f"two workers sent requests on {shared.name} without a lock, so one may get the answer for"
        " the other; the trial then shut the connection down"
    )
    return Finding(Verdict.FAILS_WITHOUT_FAULT, sentence, _cause_of(shared))


def connection_cause(outcome: TrialFacts, verdict: Verdict) -> Cause | None:
    """The cause, if no fault fired and no worker died, but workers shared a connection."""
    connections = outcome.of(SharedConnection)
    is_other = outcome.fired or outcome.deaths or is_not_forked(outcome)
    if not connections or is_other or verdict not in _WITHOUT_FAULT:
        return None
    return _cause_of(connections[0])


def _cause_of(connection: SharedConnection) -> Cause:
    advice = _SHARED_CONNECTION.format(connection.name)
    return Cause(_CONNECTION, advice, fix="open the connection in the worker, on first access")
