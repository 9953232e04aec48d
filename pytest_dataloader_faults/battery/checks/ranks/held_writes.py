"""Rank 0 waits before it creates or fills what another rank looks for [in a trial].

Some facts about ranks that prepare files. Each of them runs the same code: ``if not
folder.exists(): extract(archive, folder)``. One creates the folder, and another finds it before
everything is in it, or creates it as well. The windows are short, and which rank is first varies.
So rank 0 waits, after it has created a file or before it creates a folder, until another rank has
looked at that path, and then a little longer, so that the other rank acts first. The others start
once rank 0 waits. If no rank looks, because all others wait at a barrier or for a lock, rank 0
continues after a while: each path is waited for only once, and after a few paths no more.

A rank that does not look may not wait either: its constructor leaves the files to rank 0, and only
its workers open them. So once the dataset of another rank is made, rank 0 waits until that rank has
a batch or an error.

This process is the rank's own, so Python's functions can be replaced in it. They do what they
always do, as soon as the dataset is made. What C or C++ code creates is not held.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._trial.factory import PartOf, is_a
from pytest_dataloader_faults._trial.journal import LoaderTime, MeetingTime
from pytest_dataloader_faults.battery.checks.ranks.process_group import Meetings

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.run import TrialProcess

_LOOKS = "stat lstat access listdir scandir open mkdir".split()
_HELD, _MADE, _BATCH, _PID = "/held", "/made", "/batch", "/pid"
"""What ranks add to the store: rank 0 waits; another rank has its dataset; it has a batch or an
error; its process. No file in the folder has such a name."""
_START_TIMEOUT = 0.5
_TIMEOUT = 0.2
_HEAD_START = 0.05
"""Seconds for the rank that has just looked at a path to act."""
_BATCH_TIMEOUT = 3.0
"""Seconds for a rank that has its dataset to read a batch. Its workers may wait for rank 0."""
_POLLING = 0.005
_MAX_WAITS = 6
_OPENS = ((builtins, "open"), (io, "open"), (os, "open"))


def hold(process: TrialProcess, *, before_folders: bool) -> None:
    """Hold the writes of rank 0 until the dataset of *process* is made."""
    meetings = process.meetings
    if not isinstance(meetings, Meetings):
        return
    folder = SharedFolder(process, meetings)
    if meetings.number:
        folder.report_looks()
        folder.await_first_hold()
    elif before_folders:
        folder.hold_folders()
    else:
        folder.hold_files()


def report_dataset(process: TrialProcess) -> None:
    """Report to rank 0 that this rank has its dataset."""
    if isinstance(process.meetings, Meetings) and process.meetings.number:
        process.meetings.folder_store.set(_MADE, b"made")


class SharedFolder:
    """The folder in which ranks prepare files, as one of them uses it."""

    def __init__(self, process: TrialProcess, meetings: Meetings) -> None:
        self._process = process
        self._meetings = meetings
        self._store = meetings.folder_store
        self._folder = _folder_of(process.job.make_dataset)
        self._pid = os.getpid()
        self._awaited: set[str] = set()
        self._waits_left = _MAX_WAITS
        self._batch_timeout = min(_BATCH_TIMEOUT, process.job.settings.longest_epoch / 2)

    def report_looks(self) -> None:
        """Report to rank 0 what this rank looks at."""
        for module, name in (*((os, name) for name in _LOOKS), *_OPENS[:2]):
            _replace(module, name, self._reporting)
        for name in ("rename", "replace"):
            _replace(os, name, lambda original: self._reporting(original, at=1))
        for name in ("meet", "leave"):
            _replace(self._meetings, name, self._reporting_batch)
        self._store.set(_PID, str(self._pid))

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

    def _reporting_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """*original*, which is called once this rank has a batch, or an error in place of it."""

        def report(*args: Any, **kwargs: Any) -> Any:
            self._store.set(_BATCH, b"read")
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
        if not name or name in self._awaited or not self._waits_left:
            return
        self._awaited.add(name)
        self._waits_left -= 1
        self._store.set(_HELD, b"held")
        with self._time_of_meeting():
            if self._await([*_with_parents(name), _MADE], _TIMEOUT):
                self._await([_MADE], _HEAD_START)
            if self._store.check([_MADE]) and not self._await([_BATCH], self._batch_timeout):
                self._waits_left = 0

    @contextlib.contextmanager
    def _time_of_meeting(self) -> Iterator[None]:
        """Do not count the time of the block, unless user code has forked this process."""
        if os.getpid() != self._pid:
            yield
            return
        self._process.journal.write(MeetingTime(time.monotonic()))
        yield
        self._process.journal.write(LoaderTime(time.monotonic()))

    def _await(self, names: Iterable[str], seconds: float) -> bool:
        """Whether one of *names* is in the store before the rank had that many *seconds*."""
        end = self._time_of_other() + seconds
        while not any(self._store.check([name]) for name in names):
            if self._time_of_other() > end:
                return False
            time.sleep(_POLLING)
        return True

    def _time_of_other(self) -> float:
        """A clock that stops while another rank waits for a processor."""
        is_known = self._store.check([_PID])
        delay = proc.seconds_without_cpu(int(self._store.get(_PID))) if is_known else 0
        return time.monotonic() - delay


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
