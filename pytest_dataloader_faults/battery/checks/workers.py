"""Checks of workers that die, that write or lock files, or that get no thread or memory. Pure."""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pytest_dataloader_faults.battery.checks._base import Scenario, check, in_constructor, plan_each
from pytest_dataloader_faults.battery.checks._epochs import FAULTS_IN_EPOCH_1
from pytest_dataloader_faults.battery.targets import path_of
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import (
    LockError,
    MemoryExhaustion,
    ThreadExhaustion,
    WorkerKilled,
    WriteError,
)
from pytest_dataloader_faults.faults.base import Place
from pytest_dataloader_faults.faults.globs import IN_MEMORY, GlobMatcher, is_below, may_be_data
from pytest_dataloader_faults.faults.workers import WRITE_LOCKS
from pytest_dataloader_faults.outcomes import Finding, Outcome, Reference, Verdict, WorkerFacts
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.stages import (
    DONE,
    RECOVERY,
    Activity,
    JobKilled,
    Phase,
    Stage,
)
from pytest_dataloader_faults.outcomes.text import format_size
from pytest_dataloader_faults.steps import Action, Epoch, FaultFreePass, Make, Step, run_epochs

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess


@dataclass(frozen=True)
class KillJob(Step):
    """Kill all processes of the job after the first batch of the next epoch."""

    @property
    def harms(self) -> bool:
        """It does what the end of a job does, without any cleanup."""
        return True

    def run(self, process: TrialProcess) -> None:
        """Do it once there is a batch."""
        process.start_driver().after_batch = partial(_kill_job, process)


def _kill_job(process: TrialProcess, *_: int, **_at_end: bool) -> None:
    from pytest_dataloader_faults._engine.system.proc import inherited_mappings
    from pytest_dataloader_faults._trial import resources
    from pytest_dataloader_faults._trial.journal import PhaseStarted

    mappings = inherited_mappings(lambda path: path.startswith(IN_MEMORY))
    process.journal.write(JobKilled(tuple({os.path.basename(each.path) for each in mappings})))
    process.journal.write(PhaseStarted(DONE, time.monotonic()))
    resources.send(signal.SIGKILL, resources.trial_processes(process.around.server_pids))
    os.kill(os.getpid(), signal.SIGKILL)


_JOB_KILLED = (
    (Action.ARM, Make(Phase(Stage.EPOCH, 1)), KillJob(), Epoch(), Action.DISARM),
    (Make(RECOVERY), FaultFreePass(after_faults=False), Action.END_WORKERS),
)


def _leaves_names(workload: Workload) -> bool:
    """Whether a job may leave behind what the next one finds, and no lock next to the data."""
    own, processes = workload.own_folders.paths, workload.fault_free.processes
    locks = (path for each in processes for path in each.remaining_locks)
    if not all(is_below(path, (*own, IN_MEMORY)) for path in locks):
        return False
    files = (path for each in processes for path in each.leftover_files)
    has_segments = any(path.startswith(IN_MEMORY) and may_be_data(path) for path in files)
    return bool(own) or has_segments


@check("worker-killed", "handles a worker that dies, and a job that is killed")
def worker_killed(workload: Workload) -> Iterator[Scenario]:
    """Between two operations, inside a read, and inside a write.

    Where in the epoch it dies makes no difference to the dataset. Whether it holds a lock, or has
    written half a file, does. If a job is killed, nothing removes what it leaves.
    """
    yield Scenario(faults=(WorkerKilled(),), title="in its first batch")
    if workload.readers:
        # In its first batch: a reader may hold the GIL, and then the worker could not send the
        # batches that it made before.
        fault = WorkerKilled(reading=workload.read.path, worker=min(workload.readers))
        yield Scenario(faults=(fault,), title="while it reads")
    if workload.writers:
        fault = WorkerKilled(writing=workload.written.path, worker=min(workload.writers))
        yield Scenario(faults=(fault,), title="while it writes")
    if workload.monitored and _leaves_names(workload.monitored):
        yield Scenario(processes=_JOB_KILLED, title="with its whole job")


@check("worker-killed-sending", "handles a worker that dies while it sends a batch")
def worker_killed_sending(workload: Workload) -> Iterator[Scenario]:
    """Apart from the others, because its failures are usually those of a wrapper around torch."""
    if workload.fault_free.loader.start_method == "forkserver":
        raise NotApplicable(
            "its workers come from a fork server. If one of them dies within a message, torch waits"
            " for the rest of it forever, whatever the dataset does: the worker is not a child of"
            " the main process, so no signal interrupts read(2)"
        )
    yield Scenario(faults=(WorkerKilled(sending=True),))


_NO_START = "its workers start no thread or process while they make batches"
_NO_SECOND = "its workers start a second thread or process in some passes only"
_REFUSED = (
    "Threads and processes could not be started (EAGAIN), as at the process limit of a user or a"
    " container"
)
_RAISE_ERROR = (
    "Let the error of start(), submit() or subprocess.run() reach the loader. If a pool is kept"
    " for later samples, assign it only after its threads have started"
)


@check(
    "thread-exhaustion",
    "handles a thread or a process that cannot be started",
    preface=_REFUSED,
    advice=_RAISE_ERROR,
)
def thread_exhaustion(workload: Workload) -> Iterator[Scenario]:
    """Several ways, because code may handle a pool without a thread, but not one that lacks some.

    First in workers that continue after the error, since a queue or a pool may be kept there. The
    error of the first start would hide what a dataset returns in place of one result.
    """
    start_count = workload.count_busiest("starts")
    if not start_count:
        raise NotApplicable(_NO_START)
    faults = (ThreadExhaustion(),)
    yield replace(FAULTS_IN_EPOCH_1, faults=faults, title="in the first of two epochs")
    yield Scenario(faults=faults, title="from the first start on")
    if start_count > 1:
        from_second, second = ThreadExhaustion(nth=2), ThreadExhaustion(nth=2, times=1)
        yield _later("from the second start on", from_second)
        yield _later("the second start alone", second)


def _later(title: str, fault: ThreadExhaustion) -> Scenario:
    return Scenario(faults=(fault,), title=title, require_effect=_require_second_start)


def _require_second_start(_: Workload, outcome: Outcome) -> None:
    """How many threads a pool starts may depend on how fast the first one is."""
    if not outcome.fired:
        raise NotApplicable(_NO_SECOND)


_NO_NUMBERS = "its indices are not integers, so no sample can be chosen"
_SIZE = format_size(MemoryExhaustion().min_bytes)
_FEW = 4
_SMALL = f"for two of its samples, the workers allocate less than {_SIZE} at once"
_ABORTS = Cause(
    "crashes when an allocation fails",
    "Code in C or C++ ended the worker: it does not check the result of malloc(3), or does not"
    " catch std::bad_alloc. If the worker printed a stack, it shows which library was called. Read"
    " less at once (a tile, a part of a file), or use another library",
    fix="read less at once, or use another library",
)


def _middle_and_last_sample(workload: Workload) -> list[int]:
    """Two samples of different batches: their indices, or their numbers in each worker.

    One if there is only one batch: the error of the second would hide the placeholder of the first.
    """
    run = workload.fault_free
    batches = [batch.keys for batch in run.delivered if batch.keys]
    if run.kind != "map":
        worker = next((each.worker for each in run.delivered), None)
        sizes = [len(each.samples) for each in run.delivered if each.worker == worker]
        ends = [*itertools.accumulate(sizes)] or [1]
        batches = [(end - 1,) for end in ends]
    samples = [batch[len(batch) // 2] for batch in batches]
    chosen = [samples[len(samples) // 2 - 1], samples[-1]] if samples[1:] else samples
    if not chosen or not all(type(each) is int for each in chosen):
        raise NotApplicable(_NO_NUMBERS)
    return chosen


def _require_allocation(_: Workload, outcome: Outcome) -> None:
    if not any(each.matched for each in outcome.faults):
        raise NotApplicable(_SMALL)


def _find_crash(outcome: Outcome, _: Reference) -> Finding | None:
    """A worker that was killed by a signal instead of raising an error."""
    crashes = [each for each in outcome.deaths if each.exitcode < 0]
    if not (outcome.fired and crashes):
        return None
    sentence = f"{crashes[0]} when an allocation failed, but an error was expected"
    return Finding(Verdict.FAILED_UNCLEARLY, sentence, _ABORTS)


@check(
    "memory-exhaustion",
    "handles an allocation that fails",
    rule=_find_crash,
    preface=f"An allocation of {_SIZE} or more failed for one sample, and all of them for another",
    advice=(
        "Let MemoryError reach the loader, or free memory, try again a limited number of times and"
        " then raise it. Catch the exceptions that you expect instead of Exception, and get the"
        " results of threads, as future.result() does, which raises their errors"
    ),
)
def memory_exhaustion(workload: Workload) -> Iterator[Scenario]:
    """An allocation fails once, which a second attempt survives, and leaves room for zeros.

    For a sample of a later batch every allocation fails, which a dataset may try again forever.
    One that raises the first error does not get there, and need not. A stream that leaves out the
    sample goes on with the next one, which then has the same number.
    """
    once, *always = _middle_and_last_sample(workload)
    times = None if workload.fault_free.kind == "map" else _FEW
    yield Scenario(
        faults=(
            MemoryExhaustion(times=1, sample=once),
            *(MemoryExhaustion(times=times, sample=sample) for sample in always),
        ),
        require_effect=_require_allocation,
    )


DEATHS = (worker_killed, worker_killed_sending)


# The recovery pass, which follows each trial, finds what a fault left in a file: it reads the same
# files, and must deliver the correct samples. A dataset may take a lock in its constructor, and on
# files that it writes itself, such as a cache. So faults of locks are armed before the dataset is
# created, whatever it writes.
#
# Some facts about waiting. Jobs and ranks wait for a lock while another one prepares their files,
# so a wait is no defect, even without a limit. So the other job releases its locks soon. A drive
# without locks never has them. But SQLite tries again after each error of a lock, filelock after
# most, until their own timeout expires, which is up to a minute: 60 s is the default of diskcache.
#
# Some facts about what a lock is for. The kernel does not know which file a lock file protects, and
# its name need not say so: many files next to it are written without it, such as a log. So the
# fault-free run shows it: a process holds the lock during each of its writes to the file. A worker
# that writes a temporary file under a name of its own, and renames it, needs no lock. Neither does
# one that has waited for the lock and holds it by the time it writes.


PARTIAL_FILE = Cause(
    "leaves a partially written file behind",
    "A later read accepted a file that was incomplete, because a write had failed or not ended."
    " Write to a temporary name in the same folder, and rename the file with os.replace() once it"
    " is complete. Some writers ignore write errors (np.save, for the data), so check the size"
    " before you rename",
    fix="write to a temporary name, and rename the file with os.replace()",
)
_STREAM_ERROR = re.compile(r"iostream error|unexpected pos \d+ vs \d+")
HIDDEN_BY_STREAM = Cause(
    "passes torch.save a path and so hides why a write failed",
    "When torch.save gets a path, it writes through a C++ stream that drops the errno. Pass it a"
    " file opened with open() instead, whose errors get through",
    fix="pass torch.save a file opened with open()",
)


def _fill_disk(workload: Workload) -> Iterator[Scenario]:
    """Twice: the header and the data of a file may be written separately, and one error ignored."""
    half = workload.writes // 2 + 1
    path = workload.written.path
    for nth in (half, half + 1):
        if nth <= workload.writes:
            fault = WriteError(path, errno.ENOSPC, nth=nth)
            yield Scenario(faults=(fault,), title=f"from write {nth} on")


@in_constructor
def _fill_disk_of_constructor(workload: Workload) -> Iterator[Scenario]:
    written, main = workload.written_by_main_process, workload.fault_free.main
    counts = [main.files[path].writes for path in written.paths] if main else []
    fault = WriteError(written.path, errno.ENOSPC, nth=sum(counts) // 2 + 1)
    yield Scenario(faults=(fault,), title="in the constructor")


@check("write-error", "handles files that cannot be written, because the disk fills up")
def write_error(workload: Workload) -> Iterator[Scenario]:
    """In the workers, and in the constructor: what it leaves may be believed later."""
    yield from plan_each([_fill_disk, _fill_disk_of_constructor], workload)


def find_cause(outcome: Outcome, verdict: Verdict, fault_free: Outcome) -> Cause | None:
    """The cause after a failed write, or after another fault in a worker that writes files."""
    failed = any(Place.WRITE in each.places for each in outcome.fired_faults)
    hangs = outcome.timed_out  # It waits for something that an error left undone in memory.
    writers = fault_free.processes if outcome.before_init else fault_free.workers
    if verdict is Verdict.POISONED and not hangs and (failed or _write_files(writers)):
        return PARTIAL_FILE
    if failed and verdict is Verdict.CORRUPTED:
        return PARTIAL_FILE
    text = outcome.exception.text if outcome.exception else ""
    is_hidden = failed and verdict is Verdict.FAILED_UNCLEARLY and _STREAM_ERROR.search(text)
    return HIDDEN_BY_STREAM if is_hidden else None


def _write_files(processes: Iterable[WorkerFacts]) -> bool:
    return any(counts.writes for each in processes for counts in each.files.values())


_NO_LOCKS = "neither its constructor nor its workers lock a file"
_RELEASED_AFTER = 1.0
"""Seconds."""
_DEADLINES = 7
"""How many times its deadline a trial on a drive without locks may take."""
_HELD, _WITHOUT_LOCKS = "another job has the lock", "a drive without locks"
_REFUSED = (
    f"For {_RELEASED_AFTER:g} s, another job held the locks: a call that waits for a lock returned"
    " after that, and any other request failed until then. In other trials, every request failed"
    " with ENOLCK, as on a drive without locks"
)
_WAIT_OR_RAISE = (
    "Wait for the lock, as in `fcntl.flock(file, fcntl.LOCK_EX)`, or let the error of the failed"
    " request reach the loader. Only EAGAIN and EACCES mean that another process holds the lock:"
    " raise every other error at once, instead of trying again or continuing without the lock. Open"
    " data that is only read without a lock: lmdb.open(path, readonly=True, lock=False), or"
    " h5py.File(path, 'r', locking=False)"
)
UNLOCKED = Cause(
    "writes a file that it could not lock",
    "The error of a failed lock was caught, and the file was written without the lock, so two jobs"
    " can overwrite each other's data. Let the error reach the loader, or write to a temporary file"
    " and rename it with os.replace(), which needs no lock",
    fix="raise the error of a failed lock",
)
_WAITS = Cause(
    "keeps waiting after a file lock is released",
    "Another job held the lock and released it, but the dataset did not continue. Wait for the lock"
    " itself, which the kernel releases if the other job dies, and not for a file that the other"
    " job should write",
    fix="wait for the lock itself, not for what the other job should do",
)
_RETRIES = Cause(
    "takes every error of a lock for a held lock",
    fix="retry only if the errno is EAGAIN or EACCES, and raise every other error",
)


def find_unlocked_write(outcome: Outcome, reference: Reference) -> Finding | None:
    """A write in *outcome* without the lock that protects the file in the fault-free run.

    A lock that was never refused does not count.
    """
    fault_free = reference.fault_free
    if fault_free is None:
        return None
    refused = {firing.path for firing in outcome.firings if firing.path}
    for process in outcome.processes:
        held = process.notes.get(WRITE_LOCKS, {})
        for path in sorted(path for path, counts in process.files.items() if counts.writes):
            missing = (_list_locks(fault_free, path) & refused).difference(held.get(path, ()))
            if missing:
                return _unlocked_write(process, path, min(missing))
    return None


def _list_locks(fault_free: Outcome, path: str) -> set[str]:
    """The files whose locks each process that wrote to *path* held during each write."""
    held = [each.notes.get(WRITE_LOCKS, {}) for each in fault_free.processes]
    writers = [each for each in held if path in each]
    return set.intersection(*(set(each[path]) for each in writers)) if writers else set()


def _unlocked_write(process: WorkerFacts, path: str, lock: str) -> Finding:
    writer = "the main process" if process.worker is None else "a worker"
    target = "it" if path == lock else os.path.basename(lock)
    sentence = f"{writer} wrote {os.path.basename(path)}, but could not lock {target}"
    return Finding(Verdict.CORRUPTED, sentence, UNLOCKED)


def find_cause_of_wait(outcome: Outcome, verdict: Verdict, _: Outcome) -> Cause | None:
    """Why *outcome* hung after a lock was refused; None if it was only slow."""
    end = outcome.end.at_deadline
    is_slow = end is not None and end.activity is Activity.DELIVERS
    refused = [each for each in outcome.fired_faults if isinstance(each, LockError)]
    if verdict is not Verdict.HUNG or not refused or outcome.phase == RECOVERY or is_slow:
        return None
    return _WAITS if any(fault.is_held for fault in refused) else _RETRIES


@check(
    "file-locks",
    "handles locks of files that another job holds, and a drive without locks",
    scenario=Scenario(processes=run_epochs(before_init=True)),
    rule=find_unlocked_write,
    preface=_REFUSED,
    advice=_WAIT_OR_RAISE,
)
def file_locks(workload: Workload) -> Iterator[Scenario]:
    """If the constructor locks files as well as the workers, its error may hide what they do."""
    run, is_meant = workload.fault_free, GlobMatcher(workload.globs)
    ids = {each.worker for each in run.processes if _locks_file(each, is_meant)}
    if not ids:
        raise NotApplicable(_NO_LOCKS)
    path = path_of(workload.globs)
    held, none = LockError(path, seconds=_RELEASED_AFTER), LockError(path, errno=errno.ENOLCK)
    for title, fault, deadlines in ((_HELD, held, 1), (_WITHOUT_LOCKS, none, _DEADLINES)):
        yield Scenario(faults=(fault,), title=title, deadlines=deadlines)
        if None in ids and len(ids) > 1:
            workers = tuple(sorted(each.worker for each in run.workers if each.worker is not None))
            in_workers = (replace(fault, workers=workers),)
            part = f"{title}, in the workers only"
            yield Scenario(faults=in_workers, title=part, deadlines=deadlines)


def _locks_file(process: WorkerFacts, is_meant: GlobMatcher) -> bool:
    """Whether *process* locks a file that faults may hit."""
    return any(counts.locks and is_meant(path) for path, counts in process.files.items())
