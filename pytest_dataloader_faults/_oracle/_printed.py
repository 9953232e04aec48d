"""Causes that were printed by a worker and told to nobody. Pure.

Some facts about errors that no exception carries to the loader. What a worker has to send is
pickled in a thread that feeds its queue (multiprocessing/queues.py, ``_feed``). An error there, of
a sample that cannot be pickled or of the exception that should be sent in its place, is printed and
the batch dropped: the worker lives on, and the loader waits for ever. And a worker that is spawned
unpickles the dataset before torch's code in it begins, so that the loader learns of an error there
only that the worker "exited unexpectedly".
"""

from __future__ import annotations

import re

from pytest_dataloader_faults.outcomes import Outcome

_MOST = 200
_DROPPED = re.compile(
    r'^Traceback \(most recent call last\):\n  File ".*multiprocessing.queues\.py", line \d+, in'
    r" _feed\n(?:[ \t].*\n|\n)*(\S.*)",
    re.MULTILINE,
)
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): .*", re.MULTILINE)
_DIED = re.compile(r"exited unexpectedly|is killed by signal")


def dropped(outcome: Outcome) -> str:
    """Why a batch was dropped, as the rest of a sentence; empty if none was."""
    if found := _DROPPED.findall(outcome.stderr):
        return (
            f": what a worker had to send could not be pickled ({found[-1][:_MOST]}), so torch's"
            " queue thread printed that and dropped the batch"
        )
    return ""


def last_words(outcome: Outcome) -> str:
    """What a worker printed that died, as the rest of a sentence; empty if it told nothing."""
    raised = outcome.exception
    printed = _ERROR.findall(outcome.stderr)
    if raised is None or not printed or not (outcome.deaths or _DIED.search(raised.text)):
        return ""
    return f"; a worker printed: {printed[-1][:_MOST]}"
