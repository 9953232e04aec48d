"""How far a long call has come: a line, which the plugin shows in a terminal.

It is no line of a logger. Tests look at what is logged, and have to find the same with a terminal
and without.

Some facts about terminals. While a test runs, pytest's line is not at its end: "test_a.py ..F", and
the next letter goes behind. So our line must be the one below, and the cursor must come back to
its column. ESC D moves the cursor one line down in its column, and scrolls where there is no line
below; from there, one line up is where it was. ESC 7 and ESC 8 save and restore its place, which
is right as long as nothing scrolls between them.

What a test prints goes to a file of pytest, except with ``-s``. There, what is printed would mix
with our line, and there is none. It is removed before pytest writes: when a stage or a test ends.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence

show: Callable[[str], object] | None = None
"""The function that shows a line, or removes it if the line is empty; set by the plugin."""
_stages: list[ProgressStage] = []
_MINUTE = 60
_RESERVE, _SAVE, _RESTORE = "\x1bD\x1b[A", "\x1b7", "\x1b8"
_BELOW, _TO_END = "\r\n", "\x1b[K"
_SURE = 2
"""How many steps have to be over before the rest is estimated."""


class ProgressStage:
    """Something that takes a while, and has steps."""

    def __init__(self, title: str) -> None:
        self._what = title
        self._began = time.monotonic()
        self._text = ""

    def step(self, detail: str, done_count: int = 0, total: int | None = None) -> None:
        """Tell that the next step begins, after *done_count* others of *total*."""
        counted = time_left = ""
        if total is not None:
            counted = f"{done_count} of {total}"
            time_left = remaining(done_count, total, time.monotonic() - self._began)
        self._text = f"{self._what}: {', '.join(filter(None, (counted, detail, time_left)))}"
        self.show_again()

    def show_again(self) -> None:
        """Tell again where it is."""
        _show(self._text)


def _show(text: str) -> None:
    if show is not None:
        show(text)


def clear() -> None:
    """Show nothing any more."""
    _show("")


class Line:
    """The line in a terminal: called with a text, it shows that, or nothing any more.

    *uncaptured*: a context in which what is written goes to the terminal.
    """

    def __init__(self, uncaptured: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._uncaptured = uncaptured
        self._is_shown = False

    def __call__(self, progress_text: str) -> None:
        """Show *progress_text*."""
        if progress_text:
            # pytest looks like this, too: a line that wraps would take more than the one below.
            text = f"dataloader-faults: {progress_text}"[: shutil.get_terminal_size().columns - 1]
            self._write(f"{_RESERVE}{_SAVE}{_BELOW}{text}{_TO_END}{_RESTORE}")
        elif self._is_shown:
            self._write(f"{_SAVE}{_BELOW}{_TO_END}{_RESTORE}")
        self._is_shown = bool(progress_text)

    def _write(self, text: str) -> None:
        with self._uncaptured():
            sys.stdout.write(text)
            sys.stdout.flush()


def stage(title: str) -> contextlib.AbstractContextManager[None]:
    """Something that takes a while: ``step`` is about it until it ends, or another begins."""
    return within(ProgressStage(title))


@contextlib.contextmanager
def within(current: ProgressStage) -> Iterator[None]:
    """The same, of a stage that is longer than this part of it."""
    _stages.append(current)
    try:
        yield
    finally:
        _stages.pop()
        clear()
        if _stages:
            _stages[-1].show_again()


def step(detail: str, done_count: int = 0, total: int | None = None) -> None:
    """Tell that the next step of the innermost stage begins, if there is one."""
    if _stages:
        _stages[-1].step(detail, done_count, total)


def step_through(names: Sequence[str]) -> Iterator[str]:
    """The *names*, each of which is a step of the innermost stage."""
    for done_count, name in enumerate(names):
        step(name, done_count, len(names))
        yield name


def remaining(done_count: int, total: int, spent: float) -> str:
    """How long the other steps will take if *done_count* of *total* took *spent* seconds."""
    if done_count < _SURE:
        return ""
    seconds = spent / done_count * max(0, total - done_count)
    time_text = f"{seconds / _MINUTE:.0f} min" if seconds >= 2 * _MINUTE else f"{seconds:.0f} s"
    return f"about {time_text} left"
