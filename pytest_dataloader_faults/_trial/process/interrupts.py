"""SIGINT in the process that drives the loader [runs in a trial].

Some facts about SIGINT. Ctrl-C goes to pytest's process group, which a trial has left, so a trial
gets the signal only from another program. Python's handler raises KeyboardInterrupt in whatever
code runs, and code may catch that: some clients have a time limit made of it. If nobody catches it,
Python ends its own process by the same signal, so that a parent sees what happened. A dataset may
also raise KeyboardInterrupt without a signal, which is then an error like any other.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_interrupted: list[int] = []
"""This process, once it got the signal. Its children inherit the list, and have other pids."""


def raise_on_sigint() -> None:
    """Have SIGINT raise KeyboardInterrupt, as in any Python program."""
    signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _interrupted.append(os.getpid())
    signal.default_int_handler(number, frame)


def end_if_interrupted(error: BaseException) -> None:
    """End this process as Python does, if *error* is an interrupt by SIGINT that nobody caught."""
    if isinstance(error, KeyboardInterrupt) and os.getpid() in _interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
