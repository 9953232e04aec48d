"""Rank 0 waits before it creates or fills what another rank looks for [in a trial].

Some facts about ranks that prepare files. Each of them runs the same code: ``if not
folder.exists(): extract(archive, folder)``. One creates the folder, and another finds it before
everything is in it, or creates it as well. The windows are short, and which rank is first varies.
So rank 0 waits, after it has created a file or before it creates a folder, until another rank has
looked at that path, and then a little longer, so that the other rank acts first. The others start
once rank 0 waits. If no rank looks, because all others wait at a barrier or for a lock, rank 0
continues after a while: each path is waited for only once, and after a few paths no more.

This process is the rank's own, so Python's functions can be replaced in it. They do what they
always do, as soon as the dataset is made. What C or C++ code creates is not held.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._trial.factory import PartOf, is_a
from pytest_dataloader_faults.battery.checks.ranks.process_group import Meetings

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

_LOOKS = "stat lstat access listdir scandir open mkdir".split()
_HELD = "/held"
"""What rank 0 adds to the store when it waits: no name of a file."""
_START_TIMEOUT = 0.5
_TIMEOUT = 0.2
_HEAD_START = 0.05
"""Seconds for the rank that has just looked at a path to act."""
_POLLING = 0.005
_MAX_WAITS = 6
_OPENS = ((builtins, "open"), (io, "open"), (os, "open"))


def hold(process: TrialProcess, *, before_folders: bool) -> None:
    """Hold the writes of rank 0 until the dataset of *process* is made."""
    if not isinstance(process.meetings, Meetings):
        return
    folder = SharedFolder(process, process.meetings.folder_store)
    if process.meetings.number:
        folder.report_looks()
        folder.await_first_hold()
    elif before_folders:
        folder.hold_folders()
    else:
        folder.hold_files()


class SharedFolder:
    """The folder in which ranks prepare files, as one of them uses it.

    *store*: what ranks have looked at, for all of them.
    """

    def __init__(self, process: TrialProcess, store: Any) -> None:
        self._process = process
        self._store = store
        self._folder = _folder_of(process.job.make_dataset)
        self._awaited: set[str] = set()

    def report_looks(self) -> None:
        """Report to rank 0 what this rank looks at."""
        for module, name in (*((os, name) for name in _LOOKS), *_OPENS[:2]):
            _replace(module, name, self._reporting)
        for name in ("rename", "replace"):
            _replace(os, name, lambda original: self._reporting(original, at=1))

    def await_first_hold(self) -> None:
        """Wait until rank 0 has created something, or has had the time for it."""
        self._await([_HELD], _START_TIMEOUT)

    def hold_folders(self) -> None:
        """Wait before this rank creates a folder."""

        def holding(original: Callable[..., Any]) -> Callable[..., Any]:
            def mkdir(path: Any, *args: Any, **kwargs: Any) -> Any:
                self._await_look(path)
                return original(path, *args, **kwargs)

            return mkdir

        _replace(os, "mkdir", holding)

    def hold_files(self) -> None:
        """Wait after this rank has created a file, or emptied it."""

        def holding(original: Callable[..., Any]) -> Callable[..., Any]:
            def open_file(path: Any, *args: Any, **kwargs: Any) -> Any:
                size = _size_of(path)
                opened = original(path, *args, **kwargs)
                if not _size_of(path) and size != 0:
                    self._await_look(path)
                return opened

            return open_file

        for module, name in _OPENS:
            _replace(module, name, holding)

    def _reporting(self, original: Callable[..., Any], at: int = 0) -> Callable[..., Any]:
        """*original*, which reports its argument number *at*."""

        def report(*args: Any, **kwargs: Any) -> Any:
            name = self._name(args[at]) if len(args) > at else None
            if name:
                self._store.set(name, b"looked")
            return original(*args, **kwargs)

        return report

    def _name(self, path: Any) -> str | None:
        """*path* relative to the folder; None if it is elsewhere or the dataset is made."""
        if self._process.loader is not None or not isinstance(path, (str, os.PathLike)):
            return None
        absolute = os.path.abspath(os.fspath(path))
        prefix = os.path.join(self._folder, "")
        return absolute.removeprefix(prefix) if absolute.startswith(prefix) else None

    def _await_look(self, path: Any) -> None:
        name = self._name(path)
        if not name or name in self._awaited or len(self._awaited) >= _MAX_WAITS:
            return
        self._awaited.add(name)
        self._store.set(_HELD, b"held")
        if self._await([*_with_parents(name)], _TIMEOUT):
            time.sleep(_HEAD_START)

    def _await(self, names: Iterable[str], seconds: float) -> bool:
        """Whether one of *names* is in the store before that many *seconds* are over."""
        end = time.monotonic() + seconds
        while not any(self._store.check([name]) for name in names):
            if time.monotonic() > end:
                return False
            time.sleep(_POLLING)
        return True


def _with_parents(name: str) -> Iterator[str]:
    """*name*, and the folders above it: to list one is to look at what is in it."""
    while name:
        yield name
        name = os.path.dirname(name)


def _size_of(path: Any) -> int | None:
    """The size of the file; None if there is none."""
    try:
        return os.path.getsize(path)
    except (OSError, TypeError, ValueError):
        return None


def _replace(
    module: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    original = getattr(module, name)
    setattr(module, name, functools.wraps(original)(wrap(original)))


def _folder_of(make_dataset: Any) -> str:
    """The folder that *make_dataset* receives."""
    while is_a(make_dataset, PartOf):
        make_dataset = make_dataset.source
    return os.path.realpath(str(make_dataset.args[0]))
