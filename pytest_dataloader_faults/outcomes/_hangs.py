"""Where a trial hung: the lines of the dataset at which its processes were. Pure.

Some facts about two hangs. A dataset that waits forever after one error does so after each, and
nobody wants to wait for all of them. How long a trial takes does not tell a hang from a slow
machine, but where it is does: the stacks that its processes write at the deadline show a line of
the dataset's code below torch's own fetch or sampler. A trial that is at the line where the dataset
has hung before is there again. A slow one is elsewhere: it starts, imports, or reads. A process
that waits for work has no such line, and neither has a thread that torch did not call. Where
torch's queue thread has dropped a batch, all processes wait for work, and what it printed is as
good as a line: that batch never comes.

Some facts about what sleeps. A process that sleeps between two attempts is at the same line as one
that sleeps forever, and may be done after a few of them. So to sleep at a line is a separate place.
It is known once a trial has slept there until it got no more time. What goes on at its deadline is
nowhere: it is at the line that reads, where a hang may be as well.
"""

from __future__ import annotations

from collections.abc import Container

from pytest_dataloader_faults.outcomes._at_deadline import Activity
from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._judge._at_deadline import asleep, goes_on, lines_of
from pytest_dataloader_faults.outcomes._judge._errors import dropped_batch_cause

_QUEUE = "the queue of a worker, which dropped a batch"


def places_of(outcome: TrialFacts) -> frozenset[str]:
    """Where *outcome* hung, such as "FILE:LINE in FUNCTION"; empty if it did not, or if unknown.

    A recovery that hangs is at a place of its own, since no fault is left to wait for.
    """
    if not outcome.timed_out or goes_on(outcome):
        return frozenset()
    when = ", without a fault" if outcome.phase == "recovery" else ""
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
