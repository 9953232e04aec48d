"""What a trial did when its time was up, and where a trial hung. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

from pytest_dataloader_faults.outcomes import stacks
from pytest_dataloader_faults.outcomes.judge.errors import dropped_batch_cause
from pytest_dataloader_faults.outcomes.records import TrialFacts, makes_dataset
from pytest_dataloader_faults.outcomes.stages import RECOVERY, Activity, Phase, Stage
from pytest_dataloader_faults.outcomes.text import counted

_PROCESS = re.compile(r"^Process (\d+) \(.*\n((?:(?!Process \d).*\n?)*)", re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) .*\n((?:  .*\n?)*)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_TORCH = re.compile(r".*/torch/utils/data/")
_LOCK = re.compile(
    rf"{re.escape(stacks.PYTHON)}(threading|queue|concurrent/futures/\w+|multiprocessing/pool)\.py"
)
_LIBRARY = re.compile(
    rf"<|.*/(?:site|dist)-packages/torch/|{re.escape(stacks.PYTHON)}(?!(?:site|dist)-packages/)"
    rf"|{re.escape(stacks.OURS)}"
)


def lines_of(outcome: TrialFacts) -> Iterator[tuple[int, str]]:
    """Each process that was at a line of the dataset, and that line, for each such thread."""
    for pid, threads in _PROCESS.findall(outcome.stacks):
        places = (_place(frames) for frames in _THREAD.findall(threads))
        yield from ((int(pid), place) for place in places if place)


def waits_for_thread(outcome: TrialFacts) -> bool:
    """Whether *outcome* hung in the dataset's code, and there in a lock or a queue of threads."""
    processes = re.split(r"\n(?=Process \d+ )", outcome.stacks)
    return outcome.timed_out and any(map(_is_in_lock, processes))


def _is_in_lock(process: str) -> bool:
    title, _, threads = process.lstrip("\n").partition("\n")
    for frames in filter(_place, _THREAD.findall(threads)):
        (path, *_), *_ = _FRAME.findall(frames)
        if _LOCK.match(path) or "futex" in title:
            return True
    return False


def asleep(outcome: TrialFacts) -> tuple[int, ...]:
    """The processes that slept, if no batch came any more."""
    found = outcome.at_deadline
    return found.asleep if found and found.activity is Activity.SLEEPS else ()


def goes_on(outcome: TrialFacts) -> bool:
    """Whether batches came, or files were read."""
    found = outcome.at_deadline
    return found is not None and found.activity in (Activity.DELIVERS, Activity.READS)


def seconds(outcome: TrialFacts) -> str:
    """How long the loader had, in words."""
    more = outcome.at_deadline.more if outcome.at_deadline else 0.0
    if not more:
        return f"{outcome.deadline:g} s"
    return f"its deadline of {outcome.deadline:g} s and {more:g} s more"


def in_words(outcome: TrialFacts) -> str:
    """What it did, as the rest of a sentence; empty where nothing moved."""
    activity = outcome.at_deadline and outcome.at_deadline.activity
    is_made, came = not makes_dataset(outcome), _batches_that_came(outcome)
    who = "a worker" if is_made else "it"
    if activity is Activity.DELIVERS:
        return f": {came} came, and it goes on"
    if activity is Activity.READS:
        return f": {came} came, and workers read on" if is_made else ": it reads on"
    if activity is Activity.SLEEPS:
        lines = sorted({line for pid, line in lines_of(outcome) if pid in asleep(outcome)})
        where = f" at {' and at '.join(lines)}" if lines else ""
        return f": {who} sleeps, as between retries{where}"
    computes = activity is Activity.COMPUTES
    return f": {who} computes, or tries again, all the time" if computes else ""


def _batches_that_came(outcome: TrialFacts) -> str:
    """How many batches came in the last pass, and of how many if that is known."""
    last = outcome.recovery if outcome.phase == RECOVERY else None
    if outcome.phase == Phase(Stage.EPOCH, len(outcome.passes)):
        last = outcome.passes[-1]
    count = len(last.delivered) if last else 0
    if outcome.batches:
        return f"{count} of {counted(outcome.batches, 'batch')}"
    return counted(count, "batch")


def _place(frames: str) -> str | None:
    """The innermost line of the dataset in the *frames* of one thread, if torch called it."""
    own = None
    for path, line, function in _FRAME.findall(frames):
        if _TORCH.match(path):
            return own
        if own is None and not _LIBRARY.match(path):
            own = f"{path}:{line} in {function}"
    return None


# Some facts about two hangs. A dataset that waits forever after one error does so after each, and
# nobody wants to wait for all of them. How long a trial takes does not tell a hang from a slow
# machine, but where it is does: the stacks that its processes write at the deadline show a line of
# the dataset's code below torch's own fetch or sampler. A trial that is at the line where the
# dataset has hung before is there again. A slow one is elsewhere: it starts, imports, or reads. A
# process that waits for work has no such line, and neither has a thread that torch did not call.
# Where torch's queue thread has dropped a batch, all processes wait for work, and what it printed
# is as good as a line: that batch never comes.
#
# Some facts about what sleeps. A process that sleeps between two attempts is at the same line as
# one that sleeps forever, and may be done after a few of them. So to sleep at a line is a separate
# place. It is known once a trial has slept there until it got no more time. What goes on at its
# deadline is nowhere: it is at the line that reads, where a hang may be as well.


_QUEUE = "the queue of a worker, which dropped a batch"


def places_of(outcome: TrialFacts) -> frozenset[str]:
    """Where *outcome* hung, such as "FILE:LINE in FUNCTION"; empty if it did not, or if unknown.

    A recovery that hangs is at a place of its own, since no fault is left to wait for.
    """
    if not outcome.timed_out or goes_on(outcome):
        return frozenset()
    when = ", without a fault" if outcome.phase == RECOVERY else ""
    sleepers = asleep(outcome)
    found = {
        f"{line} while it sleeps" if pid in sleepers else line for pid, line in lines_of(outcome)
    }
    found = found or ({_QUEUE} if dropped_batch_cause(outcome) else set())
    return frozenset(each + when for each in found)


def is_at(outcome: TrialFacts, known: Container[str]) -> bool:
    """Whether *outcome* hung, and at *known* places only."""
    places = places_of(outcome)
    return bool(places) and all(each in known for each in places)


def tries_again(outcome: TrialFacts) -> bool:
    """Whether it computed, or tried again at once, when its time was up: it may have a limit."""
    found = outcome.at_deadline
    return outcome.timed_out and found is not None and found.activity is Activity.COMPUTES


def gave_up(outcome: TrialFacts) -> bool:
    """Whether the loader's own timeout ended its wait for a batch."""
    return bool(outcome.exception and "DataLoader timed out" in outcome.exception.message)
