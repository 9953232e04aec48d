"""How far a long call has come: a line, which the plugin shows in a terminal.

It is no line of a logger. Tests look at what is logged, and have to find the same with a terminal
and without.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

show: Callable[[str], object] | None = None
"""What shows a line, or nothing any more where it is empty; whoever shows it puts this here."""
_stages: list[Stage] = []
_MINUTE = 60
_SURE = 2
"""How many steps have to be over before the rest is estimated."""


class Stage:
    """Something that takes a while, and has steps."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self._told = ""

    def step(self, detail: str, done: int = 0, total: int | None = None) -> None:
        """Tell that the next step begins, after *done* others of *total*."""
        counted = rest = ""
        if total is not None:
            counted = f"{done} of {total}"
            rest = remaining(done, total, time.monotonic() - self._began)
        self._told = f"{self._what}: {', '.join(filter(None, (counted, detail, rest)))}"
        self.tell()

    def tell(self) -> None:
        """Tell again where it is."""
        _show(self._told)


def _show(text: str) -> None:
    if show is not None:
        show(text)


def stage(what: str) -> contextlib.AbstractContextManager[None]:
    """Something that takes a while: ``step`` is about it until it ends, or another begins."""
    return within(Stage(what))


@contextlib.contextmanager
def within(current: Stage) -> Iterator[None]:
    """The same, of a stage that is longer than this part of it."""
    _stages.append(current)
    try:
        yield
    finally:
        _stages.pop()
        _show("")
        if _stages:
            _stages[-1].tell()


def step(detail: str, done: int = 0, total: int | None = None) -> None:
    """Tell that the next step of the innermost stage begins, if there is one."""
    if _stages:
        _stages[-1].step(detail, done, total)


def each(names: Sequence[str]) -> Iterator[str]:
    """The *names*, each of which is a step of the innermost stage."""
    for done, name in enumerate(names):
        step(name, done, len(names))
        yield name


def remaining(done: int, total: int, spent: float) -> str:
    """How long the other steps are likely to take, if *done* of *total* took *spent* seconds."""
    if done < _SURE:
        return ""
    seconds = spent / done * max(0, total - done)
    told = f"{seconds / _MINUTE:.0f} min" if seconds >= 2 * _MINUTE else f"{seconds:.0f} s"
    return f"about {told} left"
