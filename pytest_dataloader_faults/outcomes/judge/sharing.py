"""What the main process and its workers share, and what they cannot send each other. Pure."""

# Some facts about where torch pickles. A worker that is not forked unpickles the dataset in
# ``multiprocessing.spawn._main``. An error there ends the worker, and the loader only learns its
# exit status: the traceback is in the worker's output. On the way back, a thread of the worker's
# queue pickles samples and errors. It prints pickling errors and drops the batch, for which the
# loader waits forever.

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator

from pytest_dataloader_faults.faults.base import FiringKind
from pytest_dataloader_faults.outcomes import chains
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.fault_facts import shared_offset_files
from pytest_dataloader_faults.outcomes.judge.errors import dropped_batch_cause
from pytest_dataloader_faults.outcomes.libraries import HANDLES, Handle
from pytest_dataloader_faults.outcomes.records import Outcome
from pytest_dataloader_faults.outcomes.stages import RECOVERY, SharedConnection

_SHARED_OFFSET = (
    "The workers therefore share its file offset: open it in the worker, on first access"
)
STALE_LOCK = Cause(
    "leaves a lock file behind when a worker dies",
    "A worker created the lock file and died before it removed the file, so all others wait for it."
    " Use a lock that the kernel releases when its process dies, such as fcntl.flock() or"
    " filelock.FileLock, or ignore a lock file whose process no longer exists",
    fix="use a lock that the kernel releases, such as fcntl.flock() or filelock.FileLock",
)
_LOCK = re.compile(r"lo?ck[^/]*$", re.IGNORECASE)
_NOT_RENAMED = re.compile(r"FileNotFoundError: \[Errno 2\] [^'\n]*'([^'\n]+)' -> '([^'\n]+)'")
_WITHOUT_FAULT = (Verdict.CORRUPTED, Verdict.FAILS_WITHOUT_FAULT, Verdict.POISONED)
UNPICKLABLE = Cause(
    "cannot be pickled",
    "Workers started with spawn or forkserver receive the dataset, its transforms and the loader's"
    " functions through pickle. That is the default on macOS and Windows, and on Linux from Python"
    " 3.14 on. Exclude open handles from pickling (__getstate__) and open them in the worker; use"
    " module-level classes and functions instead of local ones and lambdas; merge many small"
    " tensors into one",
    fix="leave handles out of __getstate__, and avoid lambdas and local classes",
    is_general=True,
)
_UNPICKLED = UNPICKLABLE._replace(
    advice=f"{UNPICKLABLE.advice}. Or, if your own loader forks its workers, let this one fork them"
    " as well: loader={'multiprocessing_context': 'fork'}"
)
_PICKLE = re.compile(r"[Pp]ickl")
_SENDING = "ForkingPickler(file, protocol).dump(obj)"
"""A line of the traceback if multiprocessing cannot pickle what it sends to a new process."""
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NOT_IN_MAIN = re.compile(r"AttributeError: .*(module|attribute).*'__mp_main__'")
_DEFINED_BELOW_GUARD = Cause(
    "is defined where workers cannot import it",
    "A worker that is not forked imports the script without the part below"
    " if __name__ == '__main__': define the dataset and everything it needs above that line",
    fix="define the dataset in a module",
)
_NO_GUARD = "has imported the main module"
"""In the message of a trial that a worker refuses to run."""
_UNGUARDED = Cause(
    "runs a trial when its main module is imported",
    "Move the script's code below: if __name__ == '__main__':",
    fix="move the script's code below if __name__ == '__main__':",
)
_LOADING = re.compile(r'spawn\.py", line \d+, in _main\n.*pickle\.load\(')
_DELEGATES = Cause(
    "cannot be unpickled",
    "pickle looks up __setstate__ on a new object before it has any attributes, and this"
    " __getattr__ reads one: make it raise AttributeError for names that start with '__'",
    fix="make pickle.loads(pickle.dumps(dataset)) work in a new process",
)
_SETS_STATE = _DELEGATES._replace(
    advice="Its __setstate__ raises in the worker. Restore only what __getstate__ returned, and"
    " open files on first access"
)
_LOADED = _DELEGATES._replace(
    advice="pickle.dumps accepts the dataset, but pickle.loads raises in the worker: try both in a"
    " fresh process"
)
_BY_PICKLE = (
    "numbers, strings, or instances of module-level classes. Lambdas, local classes, generators and"
    " open files cannot be sent"
)
_SAMPLES = Cause(
    "returns samples that cannot be pickled",
    f"Workers send samples through pickle: return tensors, arrays, {_BY_PICKLE}",
    fix="return tensors, arrays or plain data",
)
_ANSWERS = Cause(
    "sends an error or a sample that cannot be pickled",
    "Workers send both through pickle. Raise an error whose class is defined at module level, such"
    f" as OSError, and return tensors, arrays, {_BY_PICKLE}",
    fix="raise an error whose class is defined at module level",
)


def _has_no_fault(outcome: Outcome, verdict: Verdict) -> bool:
    """Whether what workers share may be the cause of what went wrong."""
    return not outcome.fired and verdict in _WITHOUT_FAULT


def file_cause(outcome: Outcome, verdict: Verdict, fault_free: Outcome) -> Cause | None:
    """The cause, if it is a file that was opened before the fork."""
    path = next(_open_before_fork(outcome, verdict, fault_free), None)
    if path is None:
        return None
    handle = _handle_of(path)
    how_to_open = handle.how_to_open if handle else _SHARED_OFFSET
    return Cause(
        "uses a file that was opened before the fork",
        f"{os.path.basename(path)} was opened before the workers started. {how_to_open}",
        is_general=handle is None or not handle.errors,
        fix="open the file in the worker, on first access",
    )


def _open_before_fork(outcome: Outcome, verdict: Verdict, fault_free: Outcome) -> Iterator[str]:
    """The files that workers use through handles from before the fork, if that is the cause.

    Wrong content is not caused by the handle, unless workers read the file at a shared offset:
    pread(2) and mappings do not use one.
    """
    workers = (*fault_free.workers, *outcome.workers)
    files = (item for worker in workers for item in worker.files.items())
    inherited = [(path, each) for path, each in files if each.reads and not each.opens]
    shared = shared_offset_files(workers)
    if verdict is Verdict.POISONED:  # Its workers read on from where the last ones stopped.
        yield from (path for path, counts in inherited if counts.bytes)
    if not outcome.fired:
        yield from shared
        text = outcome.exception.text if outcome.exception else ""
        lost = (each for each in HANDLES if each.errors and re.search(each.errors, text))
        yield from (f"data{each.suffixes[0]}" for each in lost)
        yield from (path for path, _ in inherited if _handle_of(path))
    replaced = (firing.path for firing in outcome.firings if firing.kind is FiringKind.REPLACED)
    yield from (path for path in replaced if path in shared)


def _handle_of(path: str) -> Handle | None:
    """The kind of handle that a file like *path* has, if it does not survive a fork."""
    return next((each for each in HANDLES if os.path.splitext(path)[1] in each.suffixes), None)


def early_read_cause(outcome: Outcome, verdict: Verdict) -> Cause | None:
    """The cause, if a worker opened a file that another one had created, and not written yet."""
    files = sorted(path for worker in outcome.workers for path in worker.unwritten_files)
    if not files or not _has_no_fault(outcome, verdict):
        return None
    return Cause(
        "reads a file while another worker still writes it",
        f"One worker created {os.path.basename(files[0])}, and another opened it before the first"
        " had written anything: the file exists before it is complete. Write to a temporary name in"
        " the same folder, and rename the file with os.replace() once it is complete, or hold a"
        " lock while you check and write",
        fix="write to a temporary name, and rename the file with os.replace()",
    )


def temporary_name_cause(outcome: Outcome) -> Cause | None:
    """The cause, if a worker could not rename a file that another worker had written as well."""
    error = outcome.exception
    match = _NOT_RENAMED.search(error.text) if error and not outcome.fired else None
    # What is written once the other one has renamed the file counts for the new name.
    names = match.groups() if match else ()
    changers = [each for each in outcome.workers if not {*names}.isdisjoint(each.changed_files)]
    is_shared = len(changers) > 1
    if match is None or not is_shared:
        return None
    name = os.path.basename(match[1])
    return Cause(
        "writes the same temporary file in several workers",
        f"Two workers used the name {name}: one renamed the file, and the other no longer found it."
        f" Add the process to the name, as in f'{name}.{{os.getpid()}}', or call"
        " tempfile.mkstemp(dir=folder). Then each os.replace() installs a complete file",
        fix="add os.getpid() to the temporary name, or call tempfile.mkstemp(dir=folder)",
    )


def find_stale_lock(outcome: Outcome) -> str | None:
    """The lock file that a dead worker left, and for which others wait; None if there is none.

    Temporary files are created in the same way. But a lock file has a name that says so, or several
    workers wanted to create it.
    """
    is_hung = outcome.timed_out and outcome.phase == RECOVERY
    if not (is_hung and any(epoch.deaths for epoch in outcome.epochs)):
        return None
    counts = Counter(path for worker in outcome.workers for path in worker.remaining_locks)
    return next((path for path in counts if counts[path] > 1 or _LOCK.search(path)), None)


def find_shared_connection(outcome: Outcome) -> Finding | None:
    """A connection on which nothing kept the requests of two workers apart."""
    shared = next((each for each in outcome.of(SharedConnection) if each.is_shared), None)
    if shared is None:
        return None
    sentence = (
        f"two workers sent requests on {shared.name} without a lock, so one may get the answer for"
        " the other; the trial then shut the connection down"
    )
    return Finding(Verdict.FAILS_WITHOUT_FAULT, sentence, _cause_of(shared))


def connection_cause(outcome: Outcome, verdict: Verdict) -> Cause | None:
    """The cause, if no fault fired and no worker died, but workers shared a connection."""
    connections = outcome.of(SharedConnection)
    is_other = outcome.deaths or not outcome.loader.is_forked
    is_cause = connections and not is_other and _has_no_fault(outcome, verdict)
    return _cause_of(connections[0]) if is_cause else None


def _cause_of(connection: SharedConnection) -> Cause:
    return Cause(
        "uses a connection that was opened before the fork",
        f"The dataset opened {connection.name} before the workers started, and they all used it, so"
        " that one may get the answer for another: open it in the worker, on first access",
        fix="open the connection in the worker, on first access",
        is_general=True,
    )


def start_cause(outcome: Outcome) -> Cause | None:
    """Why the dataset did not reach its workers, if they are not forked."""
    if outcome.exception is None or outcome.fired or outcome.loader.is_forked:
        return None
    text = f"{outcome.exception.text}\n{outcome.stderr}"
    if _NO_GUARD in text:
        return _UNGUARDED
    if _NOT_IN_MAIN.search(text):
        return _DEFINED_BELOW_GUARD
    if missing := _NO_MODULE.search(text):
        return _DEFINED_BELOW_GUARD._replace(
            advice=f"A worker that is not forked cannot import {missing[1]}, which defines the"
            " dataset or something that it needs. Define it in a module that Python can find, or"
            " set pythonpath in pytest's configuration: with --import-mode=importlib, workers"
            " cannot import test files"
        )
    if outcome.deaths:
        return _unpickling_cause(outcome)
    lines = chains.exception_lines(outcome.exception.text)
    return _UNPICKLED if _SENDING in outcome.exception.text or _PICKLE.search(lines) else None


def _unpickling_cause(outcome: Outcome) -> Cause | None:
    """The cause if a worker could not unpickle its dataset."""
    match = _LOADING.search(outcome.stderr)
    if match is None:
        return None
    printed = outcome.stderr[match.end() :]
    if "in __getattr__" in printed:
        return _DELEGATES
    return _SETS_STATE if "in __setstate__" in printed else _LOADED


def sending_cause(outcome: Outcome) -> Cause | None:
    """The cause if the loader waits for a result that a worker could not pickle."""
    if not dropped_batch_cause(outcome):
        return None
    return _ANSWERS if outcome.fired else _SAMPLES
