"""Show how far a long check, sweep or search is: a line below pytest's own, rewritten.

Some facts about terminals. While a test runs, pytest's line is not at its end: "test_a.py ..F", and
the next letter goes behind. So our line has to be the one below, and the cursor has to come back to
its column. ESC D moves the cursor one line down in its column, and scrolls where there is no line
below; from there, one line up is where it was. ESC 7 and ESC 8 save and restore its place, which
is right as long as nothing scrolls between them.

What a test prints goes to a file of pytest, except with ``-s``. There, what is printed would mix
with our line, and there is none. It is gone before pytest writes: when a stage or a test ends.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

import pytest

_MODULE = "pytest_dataloader_faults.battery.progress"
_RESERVE, _SAVE, _RESTORE = "\x1bD\x1b[A", "\x1b7", "\x1b8"
_BELOW, _TO_END = "\r\n", "\x1b[K"


class ProgressLine:
    """The line; it is registered with pytest where there is a terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._capture = config.pluginmanager.getplugin("capturemanager")
        self._is_shown = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Be told how far calls are, if there may be any: what makes them is slow to import."""
        if _MODULE in sys.modules or "dataloader_faults" in getattr(item, "fixturenames", ()):
            from pytest_dataloader_faults.battery import progress

            progress.show = self.show

    def pytest_unconfigure(self) -> None:
        """Be told nothing more."""
        if _MODULE in sys.modules:
            from pytest_dataloader_faults.battery import progress

            progress.show = None

    def show(self, told: str) -> None:
        """Show how far it is, or nothing any more."""
        if not told:
            self._clear()
            return
        # pytest looks like this, too: a line that wraps would take more than the one below.
        text = f"dataloader-faults: {told}"[: shutil.get_terminal_size().columns - 1]
        self._write(f"{_RESERVE}{_SAVE}{_BELOW}{text}{_TO_END}{_RESTORE}")
        self._is_shown = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        """Whatever happened in an item, leave no line behind."""
        try:
            return (yield)
        finally:
            self._clear()

    def _clear(self) -> None:
        if self._is_shown:
            self._write(f"{_SAVE}{_BELOW}{_TO_END}{_RESTORE}")
            self._is_shown = False

    def _write(self, text: str) -> None:
        with self._capture.global_and_fixture_disabled():
            sys.stdout.write(text)
            sys.stdout.flush()
