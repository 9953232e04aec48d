"""What a trial did at its deadline, where it hung, and the likely cause. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

from pytest_dataloader_faults.faults import TruncatedFile
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.judge.errors import dropped_batch_cause
from pytest_dataloader_faults.outcomes.records import Outcome
from pytest_dataloader_faults.outcomes.stages import RECOVERY, Activity, AtDeadline, Phase, Stage
from pytest_dataloader_faults.outcomes.text import OURS, PYTHON, pluralize

_PROCESS = re.compile(r"^Process (\d+) (\(.*)\n((?:(?!Process \d).*\n?)*)", re.MULTILINE)
"""The id, the state and the threads of a process, as it writes them at the deadline."""
_THREAD = re.compile(r"^(?:Current thread|Thread) .*\n((?:  .*\n?)*)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_TORCH = re.compile(r".*/torch/utils/data/")
_LOCK = re.compile(
    rf'  File "{re.escape(PYTHON)}(threading|queue|concurrent/futures/\w+|multiprocessing/pool)\.py'
)
"""The innermost frame of a thread that waits for another one."""
_IN_WORKER = re.compile(r'/torch/utils/data/_utils/worker\.py", line \d+ in _worker_loop')
_STARTED = re.compile(rf'"{re.escape(PYTHON)}threading\.py", line \d+ in _bootstrap$', re.MULTILINE)
_LOADER_THREAD = re.compile(
    rf"{re.escape(PYTHON)}multiprocessing/queues\.py|/torch/utils/data/_utils/pin_memory\.py"
    rf"|{re.escape(OURS)}"
)
_PAUSE = "hrtimer_nanosleep"
"""The kernel function of a process that sleeps briefly before it checks again."""
_LIBRARY = re.compile(
    rf"<|.*/(?:site|dist)-packages/torch/|{re.escape(PYTHON)}(?!(?:site|dist)-packages/)"
    rf"|{re.escape(OURS)}"
)


def _processes(outcome: Outcome) -> list[tuple[int, str, list[str]]]:
    """The id and the state of each process at the deadline, and the frames of its threads."""
    processes = _PROCESS.findall(outcome.end.stacks)
    return [(int(pid), state, _THREAD.findall(threads)) for pid, state, threads in processes]


def dataset_lines(outcome: Outcome) -> Iterator[tuple[int, str]]:
    """The processes whose threads were at a line of the dataset, each with that line."""
    for pid, _, threads in _processes(outcome):
        yield from ((pid, place) for place in map(_place, threads) if place)


def _waiting_lines(outcome: Outcome) -> list[str]:
    """The lines of the dataset's code that hung in a lock or a queue of threads.

    If the fork lost threads, a worker may also poll for them.
    """
    if not outcome.timed_out:
        return []
    calls = ("futex", _PAUSE) if has_threads_left_behind(outcome) else ("futex",)
    lines = (
        _place(frames)
        for _, state, threads in _processes(outcome)
        for frames in threads
        if _LOCK.match(frames) or any(call in state for call in calls)
    )
    return sorted({line for line in lines if line})


def has_threads_left_behind(outcome: Outcome) -> bool:
    """Whether the main process has threads of the dataset, and its workers were forked."""
    processes = (threads for _, _, threads in _processes(outcome))
    main = (threads for threads in processes if not any(map(_IN_WORKER.search, threads)))
    is_left = any(
        _STARTED.search(frames) and not _LOADER_THREAD.search(frames)
        for threads in main
        for frames in threads
    )
    return is_left and outcome.loader.is_forked


def _at_deadline(outcome: Outcome) -> AtDeadline:
    """What *outcome* did at its deadline, which was nothing if it did not reach that."""
    return outcome.end.at_deadline or AtDeadline(Activity.WAITS)


def makes_progress(outcome: Outcome) -> bool:
    """Whether batches were delivered, or files were read."""
    return _at_deadline(outcome).activity in (Activity.DELIVERS, Activity.READS)


def describe_deadline(outcome: Outcome) -> str:
    """How much time the loader had."""
    seconds, extension = outcome.request.deadline, _at_deadline(outcome).extension
    return f"its deadline of {seconds:g} s plus {extension:g} s" if extension else f"{seconds:g} s"


def describe_activity(outcome: Outcome, *, has_dataset: bool = True) -> str:
    """What the trial did at its deadline, as the end of a sentence; empty if nothing.

    *has_dataset*: whether it got as far as having its dataset.
    """
    activity, process = _at_deadline(outcome).activity, "a worker" if has_dataset else "it"
    delivered = f"{_describe_batches(outcome)} delivered"
    if activity is Activity.DELIVERS:
        return f": {delivered}, and the epoch was still making progress"
    lines = _waiting_lines(outcome) if has_threads_left_behind(outcome) else []
    if lines and not outcome.fired:
        thread = "probably for a thread that exists only in the main process"
        return f": a worker waits at {' and at '.join(lines)}, {thread}"
    if activity is Activity.READS:
        is_reading = f"{delivered}, and the workers were" if has_dataset else "it was"
        return f": {is_reading} still reading"
    if activity is Activity.SLEEPS:
        sleepers = _at_deadline(outcome).asleep
        lines = sorted({line for pid, line in dataset_lines(outcome) if pid in sleepers})
        where = f" at {' and at '.join(lines)}" if lines else ""
        reason = ", probably between retries" if outcome.fired else ""
        return f": {process} was sleeping{reason}{where}"
    computes = activity is Activity.COMPUTES
    return f": {process} was computing, or retrying without a pause" if computes else ""


def _describe_batches(outcome: Outcome) -> str:
    """How many batches were delivered in the last pass, and of how many if that is known."""
    epoch = outcome.recovery if outcome.phase == RECOVERY else None
    if outcome.phase == Phase(Stage.EPOCH, len(outcome.epochs)):
        epoch = outcome.epochs[-1]
    count, batches = len(epoch.delivered) if epoch else 0, outcome.loader.batches
    return f"{count} of {pluralize(batches, 'batch')}" if batches else pluralize(count, "batch")


def _place(frames: str) -> str | None:
    """The innermost line of the dataset in the *frames* of one thread, if torch called it."""
    place = None
    for path, line, function in _FRAME.findall(frames):
        if _TORCH.match(path):
            return place
        if place is None and not _LIBRARY.match(path):
            place = f"{path}:{line} in {function}"
    return None


# Some facts about comparing hangs. A dataset that waits forever after one error does so after every
# error, and waiting for each of these hangs would take too long. The duration of a trial does not
# distinguish a hang from a slow machine, but its place does: the stacks that its processes write at
# the deadline show a line of the dataset's code below torch's own fetch or sampler. A trial at the
# line where the dataset has hung before has hung there again. A slow trial is elsewhere: it starts,
# imports or reads. A process that waits for work has no such line, and neither does a thread that
# torch did not call. If torch's queue thread has dropped a batch, all processes wait for work, and
# its output is as good as a line, because that batch is never delivered.
#
# Some facts about sleeping processes. A process that sleeps between two attempts is at the same
# line as one that sleeps forever, and may finish after a few attempts: a fault that hits fewer
# files means fewer pauses. So sleeping at a line, or waiting there with a timeout, is a separate
# place. It confirms the hang of the same scenario, and is no place at which trials of other checks
# are known to hang. A trial that makes progress at its deadline has no place: it is at the line
# that reads, where a hang may be as well.


_ASLEEP = " while it sleeps"
_QUEUE = "the queue of a worker, which dropped a batch"


def hang_places(outcome: Outcome) -> frozenset[str]:
    """Where *outcome* hung, such as "FILE:LINE in FUNCTION"; empty if it did not, or if unknown.

    A recovery pass that hangs has a separate place, because it does not wait for a fault.
    """
    if not outcome.timed_out or makes_progress(outcome):
        return frozenset()
    when = ", without a fault" if outcome.phase == RECOVERY else ""
    sleepers = _at_deadline(outcome).asleep
    places = {
        f"{line}{_ASLEEP}" if pid in sleepers else line for pid, line in dataset_lines(outcome)
    }
    places = places or ({_QUEUE} if dropped_batch_cause(outcome) else set())
    return frozenset(each + when for each in places)


def lasting_places(outcome: Outcome) -> frozenset[str]:
    """The places where no process slept: the dataset hangs there, whatever the fault."""
    return frozenset(each for each in hang_places(outcome) if _ASLEEP not in each)


def hangs_at(outcome: Outcome, known_places: Container[str]) -> bool:
    """Whether *outcome* hung at *known_places* only."""
    places = hang_places(outcome)
    return bool(places) and all(each in known_places for each in places)


def was_computing(outcome: Outcome) -> bool:
    """Whether it computed, or retried without a pause, at its deadline: it may have a limit."""
    return _at_deadline(outcome).activity is Activity.COMPUTES


def loader_timed_out(outcome: Outcome) -> bool:
    """Whether the loader's own timeout ended its wait for a batch."""
    return bool(outcome.exception and "DataLoader timed out" in outcome.exception.message)


_LOST_THREAD = Cause(
    "waits for a thread that did not survive the fork",
    "A worker waits on a lock or a queue whose thread exists only in the main process: fork copies"
    " only the calling thread. Start the pool, or open the decoder, in the worker, on first use. If"
    " the main process already has one, create another when os.getpid() has changed",
    fix="start the thread in the worker, on first use",
)
_LOCKS = Cause(
    "waits forever for a lock or a thread",
    "A worker waits for a lock that is never released, or for a thread that it does not have. A"
    " fork copies locks in their current state, but only the calling thread: if the main process"
    " created them, create new ones in the worker when os.getpid() has changed. Otherwise, release"
    " every lock with a `with` block",
    fix="create locks and pools in the worker, and release each lock with a `with` block",
)
_FULL_PIPE = Cause(
    "waits for a program whose pipe is full",
    "A program printed more than its pipe holds, and waits until somebody reads it, while the"
    " dataset waits for the program. Read both pipes, as subprocess.run(capture_output=True) and"
    " communicate() do, or pass stderr=subprocess.DEVNULL",
    fix="call communicate(), or pass stderr=subprocess.DEVNULL",
)
_LOST_ERROR = Cause(
    "waits for a thread that an error ended",
    "A thread raised an error, which only its own traceback shows, and the sample waits for what"
    " the thread can no longer deliver. Catch the error in the thread, put it into the queue, and"
    " raise it where the sample is taken out; or use submit() and result() of an executor",
    fix="put the error of a thread into its queue, and raise it in the sample",
)
_THREAD_ENDED = re.compile(r"^Exception in thread ", re.MULTILINE)
_WRITES_TO_PIPE = re.compile(r"in \w*pipe_write\): ")
"""The state of a program: that of a process with Python's stacks ends its line."""
_LONGER = (
    "If this duration is expected, raise the deadline: deadline=300 (seconds) as an argument or in"
    " the marker, or --dataloader-faults-deadline=300"
)
_AFTER_READ = Cause(
    "hangs after the main process has read a sample",
    fix="open the file in the worker, on first access",
)
_BY_ACTIVITY = {
    Activity.DELIVERS: Cause(
        "is slow under this fault",
        f"The epoch was slow, not hung. {_LONGER}",
        fix="pass a longer deadline=",
    ),
    Activity.READS: Cause(
        "is too slow under this fault or rereads the same data",
        f"Look for an unbounded retry loop at the line in its stack. {_LONGER}",
        fix="limit the number of retries",
    ),
    Activity.SLEEPS: Cause(
        "sleeps between retries past the deadline",
        f"Give up after a few attempts, and raise the error. {_LONGER}",
        fix="raise the error after a few attempts",
    ),
    Activity.COMPUTES: Cause(
        "retries forever or computes past the deadline",
        "Look for an unbounded retry loop at the line in its stack: retry a few times, then raise"
        f" the error. {_LONGER}",
        fix="limit the number of retries",
    ),
}
"""Without any activity, the verdict is the cause."""
_READS_AT_END = _BY_ACTIVITY[Activity.COMPUTES]._replace(
    advice="At the end of a file, read() and readline() return an empty result, and no error. So a"
    " loop that waits for more never ends: raise an error there, and limit the number of retries",
    fix="raise an error if read() returns an empty result, and limit the number of retries",
)


def likely_cause(outcome: Outcome, *, after_one: bool) -> Cause | None:
    """The likely cause of a hang; None if there was no activity, so that only the verdict is known.

    *after_one*: whether the main process read a sample before its workers started.
    """
    if _WRITES_TO_PIPE.search(outcome.end.stacks):
        return _FULL_PIPE
    if _THREAD_ENDED.search(outcome.stderr):
        return _LOST_ERROR
    is_of_fork = not outcome.fired and outcome.loader.is_forked
    if (outcome.fired or is_of_fork) and _waiting_lines(outcome):
        return _LOST_THREAD if is_of_fork and has_threads_left_behind(outcome) else _LOCKS
    if is_of_fork and after_one:
        return _AFTER_READ
    return _cause_by_activity(outcome)


def _cause_by_activity(outcome: Outcome) -> Cause | None:
    activity = _at_deadline(outcome).activity
    if activity is Activity.COMPUTES and outcome.has_fired(TruncatedFile):
        return _READS_AT_END
    if activity is Activity.SLEEPS and not outcome.fired:  # No operation failed.
        return None
    return _BY_ACTIVITY.get(activity)
