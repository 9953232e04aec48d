"""Where a trial hung: the lines of the dataset at which its processes were. Pure.

Some facts about two hangs. A dataset that waits for ever after one error does so after each, and
nobody wants to wait for all of them. How long a trial takes does not tell a hang from a slow
machine, but where it is does: the stacks that its processes write at the deadline show a line of
the dataset's code below torch's own fetch or sampler. A trial that is at the line where the dataset
has hung before is there again. A slow one is elsewhere: it starts, imports, or reads. A process
that waits for work has no such line, and neither has a thread that torch did not call. Where
torch's queue thread has dropped a batch, all processes wait for work, and what it printed is as
good as a line: that batch never comes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container

import pytest_dataloader_faults as package
from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._judge._errors import dropped_batch_cause

_THREAD = re.compile(r"^(?:Current thread|Thread) .*\n((?:  .*\n?)*)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_TORCH = re.compile(r".*/torch/utils/data/")
_PYTHON, _OURS = (os.path.dirname(each) + os.sep for each in (os.__file__, package.__file__))
_LOCK = re.compile(
    rf"{re.escape(_PYTHON)}(threading|queue|concurrent/futures/\w+|multiprocessing/pool)\.py"
)
_QUEUE = "the queue of a worker, which dropped a batch"
_LIBRARY = re.compile(
    rf"<|.*/(?:site|dist)-packages/torch/|{re.escape(_PYTHON)}(?!(?:site|dist)-packages/)"
    rf"|{re.escape(_OURS)}"
)


def places_of(outcome: TrialFacts) -> frozenset[str]:
    """Where *outcome* hung, such as "FILE:LINE in FUNCTION"; empty if it did not, or if unknown.

    A recovery that hangs is at a place of its own, since no fault is left to wait for.
    """
    if not outcome.timed_out:
        return frozenset()
    when = ", without a fault" if outcome.phase == "recovery" else ""
    lines = (_place(frames) for frames in _THREAD.findall(outcome.stacks))
    found = set(filter(None, lines)) or ({_QUEUE} if dropped_batch_cause(outcome) else set())
    return frozenset(each + when for each in found)


def is_at(outcome: TrialFacts, known: Container[str]) -> bool:
    """Whether *outcome* hung, and at *known* places only."""
    places = places_of(outcome)
    return bool(places) and all(each in known for each in places)


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


def gave_up(outcome: TrialFacts) -> bool:
    """Whether the loader's own timeout ended its wait for a batch."""
    return bool(outcome.exception and "DataLoader timed out" in outcome.exception.message)


def _place(frames: str) -> str | None:
    """The innermost line of the dataset in the *frames* of one thread, if torch called it."""
    own = None
    for path, line, function in _FRAME.findall(frames):
        if _TORCH.match(path):
            return own
        if own is None and not _LIBRARY.match(path):
            own = f"{path}:{line} in {function}"
    return None
