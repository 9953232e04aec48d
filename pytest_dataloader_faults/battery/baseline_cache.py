"""The fault-free run of an earlier item of a test, for the items that follow.

Some facts about what may be shared. A baseline takes longer than the trial it is for, and each item
of a test would repeat it. But the factory alone does not show that its dataset is the one of
before: fixtures make the data again, and may make other data, in another place. So what is recalled
is a guess. It is believed where the files that the workers used, and their folders, have not
changed since. It is also believed where the item has a new folder with files of the same content,
once the reference was as recalled in one such folder: a sample may have the path of its file in it.
Otherwise the reference, which is the cheaper half of a baseline, is taken first. It has to be taken
before the trial: a dataset may write down what a fault did to it, and give other samples from then
on. Where the reference is not as recalled, the whole baseline is taken, and nothing is recalled for
that factory again.

A dataset may depend on more than files: on a global variable, or on a service. So where a guess was
believed and the check does not pass, the reference is taken after all. If it is not as recalled,
and the files have not changed in the trial either, the check is repeated with a baseline of its
own. So it is where a check does not apply since a run without a fault was not as recalled. A check
that passes needs no such thing: its samples were compared with what is recalled. Others that do not
apply have compared nothing, so that is believed of items of one test only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import hashlib
import itertools
import operator
import os
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial.factory import DatasetFactory, PartOf, is_ready
from pytest_dataloader_faults.battery._battery import WORKERS_AGREE, Battery, Memory
from pytest_dataloader_faults.battery.asking import ask
from pytest_dataloader_faults.battery.baseline import (
    Baseline,
    KnownBaseline,
    OutdatedBaselineError,
)
from pytest_dataloader_faults.battery.targets import OwnFolders
from pytest_dataloader_faults.globs import is_below
from pytest_dataloader_faults.outcomes import CheckResult, Outcome, Verdict

_PLAIN = (str, bytes, int, float, bool, type(None))
_NAMED = (type, ModuleType)
_NO_FOLDERS = OwnFolders()
_LATER = ("from_start", "ranks", "worker_epoch")
"""What a baseline finds out where a check needs it."""


class Answer(NamedTuple):
    """The result of a check, and whether the dataset works without a fault at all."""

    result: CheckResult
    is_usable: bool = True


class BaselineCache:
    """The fault-free runs of one session."""

    def __init__(self) -> None:
        self._found: dict[Hashable, _Entry | None] = {}
        self._memory: defaultdict[Hashable, Memory] = defaultdict(Memory)

    def ask(
        self,
        name: str,
        make_dataset: DatasetFactory,
        settings: Settings,
        *,
        call: Hashable = None,
        home: str | None,
        expected: str | None,
        reproduce: str,
    ) -> Answer:
        """The result of the check *name*, with fewer trials where the dataset is known.

        *call* is equal for all items of a test that ask about the same dataset; None if unknown.
        *home* is a folder that the test has for itself, and gets a new one of for each item.
        """
        key = _identity(make_dataset, settings, home)
        entry = self._found.get(key)
        memory = None if call is None else self._memory[call]
        battery_of = functools.partial(Battery, make_dataset, settings, memory=memory)
        asked = functools.partial(ask, name=name, expected=expected, reproduce=reproduce)
        was_wrong = False
        if entry is not None:
            try:
                moved = entry.moved(home)
                is_proven = moved is entry or entry.may_move
                result, battery, holds = _by_entry(moved, battery_of, asked, is_proven=is_proven)
                self._found[key] = entry = entry.with_found(battery.baseline, home)
                # After a hang without a fault, another run without one would hang as well.
                is_shown = result.verdict is not Verdict.NOT_EXERCISED or entry.baseline.changes
                is_same_test = call is not None and entry.call == call
                if is_shown or (not result.applies and holds and is_same_test):
                    return Answer(result)
            except OutdatedBaselineError:
                was_wrong = True
        battery = battery_of()
        base = battery.baseline
        versions = versions_of_files(base.working, base.own_folders)
        if base.unusable_reason and name != WORKERS_AGREE:
            return Answer(_failing_alone(battery, name, reproduce), is_usable=False)
        result = asked(battery)
        if key is not None and (found := base.known) is not None:
            seen = (found, home, versions, _contents(versions, home), call, base.own_folders)
            self._found[key] = None if was_wrong else _Entry(*seen, bool(entry and entry.may_move))
        return Answer(result, is_usable=not battery.baseline.unusable_reason)


class _Entry(NamedTuple):
    """A fault-free run, the folder of the item that made it, and the files then.

    Attributes:
        baseline: What the run showed.
        home: The folder.
        versions: Of the files, and of their folders.
        contents: Of those that are in *home*; None if they are too large to look at.
        call: As for ``BaselineCache.ask``.
        own: The folders that a trial of it has for itself.
        may_move: Whether the reference was the same in another folder.
    """

    baseline: KnownBaseline
    home: str | None
    versions: Mapping[str, tuple[int, ...] | None]
    contents: Mapping[str, str] | None
    call: Hashable
    own: OwnFolders
    may_move: bool = False

    def _folders(self, home: str | None) -> tuple[str, str] | None:
        """The folder of this entry and *home*, if both are there and they differ."""
        return (self.home, home) if self.home and home and self.home != home else None

    def moved(self, home: str | None) -> _Entry:
        """The same for an item that has the folder *home*."""
        folders = self._folders(home)
        if folders is None:
            return self
        known = (self.baseline, self.contents, self.own)
        baseline, contents, own = _Mover(*folders)(known)
        versions = {
            path: version
            for path, version in self.versions.items()
            if not is_below(path, folders[:1])
        }
        return self._replace(
            baseline=baseline, home=home, versions=versions, contents=contents, own=own
        )

    def holds_for(self, now: Mapping[str, tuple[int, ...] | None]) -> bool:
        """Whether its files, which have the versions *now*, are as they were then."""
        if now == self.versions:
            return True
        same = all(now.get(path) == version for path, version in self.versions.items())
        is_moved = now.keys() != self.versions.keys()
        if not (same and is_moved and self.contents is not None):
            return False
        return self.contents == _contents(now, self.home)

    def with_found(self, known: Baseline, home: str | None) -> _Entry:
        """The same with what an item that has the folder *home* has found out beyond it."""
        found = known.known
        names = [each for each in _LATER if getattr(self.baseline, each) is None]
        more = {each: getattr(found, each) for each in names if found is not None}
        if folders := self._folders(home):
            more = _Mover(*reversed(folders))(more)
        baseline, is_moved = replace(self.baseline, **more), folders is not None
        return self._replace(baseline=baseline, may_move=self.may_move or is_moved)


def _by_entry(
    entry: _Entry,
    battery_of: Callable[..., Battery],
    asked: Callable[[Battery], CheckResult],
    *,
    is_proven: bool,
) -> tuple[CheckResult, Battery, bool]:
    """The result by what *entry* knows, by whom, and whether the files are as they were.

    *is_proven*: whether the samples are the same then, too. OutdatedBaselineError if they are not.
    """
    before = versions_of_files(entry.baseline.working, entry.own)
    holds = entry.holds_for(before)
    battery = battery_of(known=entry.baseline, is_sure=holds and is_proven)
    result = asked(battery)
    is_right = result.passed if result.applies else not battery.fails_followed
    if holds and is_proven and not is_right:
        try:
            battery_of(known=entry.baseline)
        except OutdatedBaselineError:
            if versions_of_files(entry.baseline.working, entry.own) == before:
                raise
    return result, battery, holds


def versions_of_files(
    run: Outcome, own: OwnFolders = _NO_FOLDERS
) -> dict[str, tuple[int, ...] | None]:
    """What changes when a file that the workers of *run* used is changed, or its folder is.

    Of a file in folders that the trial had for its *own*, that from which it was copied.

    A folder changes when a file in it is made, removed or renamed. The kernel sets ctime, and no
    program can set it back.
    """
    files = {own.original(path) for worker in run.workers for path in worker.files}
    return {path: _version(path) for path in sorted(files | set(map(os.path.dirname, files)))}


def _version(path: str) -> tuple[int, ...] | None:
    with contextlib.suppress(OSError):
        at = os.stat(path)
        return (at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
    return None


_MOST_BYTES, _MOST_FILES = 1 << 25, 1000
"""Of files in an item's folder. To look at more takes longer than to take the reference."""


def _contents(paths: Iterable[str], home: str | None) -> dict[str, str] | None:
    """A digest of each of *paths* in *home*: of the bytes of a file, of the names in a folder.

    None if that cannot be told, or not soon.
    """
    own = [path for path in paths if home and is_below(path, [home])]
    with contextlib.suppress(OSError):
        if len(own) <= _MOST_FILES and sum(map(os.path.getsize, own)) <= _MOST_BYTES:
            return {path: _digest(path) for path in own}
    return None


def _digest(path: str) -> str:
    if os.path.isdir(path):
        content = "\0".join(sorted(os.listdir(path))).encode(errors="surrogateescape")
    else:
        with open(path, "rb") as file:
            content = file.read()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _failing_alone(battery: Battery, name: str, reproduce: str) -> CheckResult:
    """What is wrong without a fault, in place of the result of the check *name*."""
    found = ask(battery, WORKERS_AGREE, reproduce=reproduce)
    text = f"{name} was not asked, for the dataset fails with no fault at all, as in {found.check}"
    explanation = f"{text}:\n{found.explanation}"
    return replace(found, check=name, sentence=text, explanation=explanation)


def _identity(make_dataset: DatasetFactory, options: Settings, home: str | None) -> Hashable:
    """A key that is equal for factories that are likely to make the same dataset, or None.

    It is a function's code, and the values that it closes over, if all of them are plain.
    """
    if is_ready(make_dataset):
        return None
    if isinstance(make_dataset, functools.partial):
        inner = _identity(make_dataset.func, options, home)
        given = _plain_or_none([make_dataset.args, make_dataset.keywords], home)
        return inner and given and (inner, given)
    if isinstance(make_dataset, type):
        given = _plain_or_none([options], home)
        return given and (make_dataset, given)
    if isinstance(make_dataset, PartOf):
        whole = _identity(make_dataset.source, options, home)
        return whole and (whole, make_dataset.name)
    if not isinstance(make_dataset, FunctionType):
        return None
    cells = (cell.cell_contents for cell in make_dataset.__closure__ or ())
    values = [make_dataset.__defaults__, make_dataset.__kwdefaults__, options]
    known = _plain_or_none(itertools.chain(cells, values), home)
    return known and (make_dataset.__code__, id(make_dataset.__globals__), known)


def _plain_or_none(values: Iterable[Any], home: str | None) -> Hashable:
    try:
        found = tuple(_plain(value, home) for value in values)
        hash(found)
    except Exception:  # noqa: BLE001  # One is not assigned yet, or not plain, and of any class.
        return None
    return found


def _plain(value: Any, home: str | None) -> Hashable:
    """*value* as a key, with *home* left out; TypeError if it is not plain."""
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, str) and home:
        return str, _places(home).sub("", value)
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, _NAMED) or (isinstance(value, FunctionType) and not value.__closure__):
        return value
    if isinstance(value, (tuple, list, frozenset)):
        return type(value), tuple(_plain(each, home) for each in value)
    if isinstance(value, Mapping):
        return dict, tuple((key, _plain(each, home)) for key, each in sorted(value.items()))
    if dataclasses.is_dataclass(value):
        return _plain({"": type(value), **vars(value)}, home)
    message = f"{value!r} is not plain"
    raise TypeError(message)


def _places(folder: str) -> re.Pattern[str]:
    """The places in a text that name *folder*, or a file in it, as a path or as a glob."""
    names = "|".join(map(re.escape, (folder, glob.escape(folder))))
    return re.compile(f"(?:{names})(?![^/])")


_ATOMS = frozenset({int, float, bool, type(None)})


class _Mover:
    """Replaces each path in the folder *was* by one in the folder *now*.

    Most values are digests and numbers. What has no such path in it stays the object that it is.
    """

    def __init__(self, was: str, now: str) -> None:
        self._new = {glob.escape(was): glob.escape(now), was: now}
        self._pattern = _places(was)
        self._moved: dict[int, Any] = {}
        """By the identity of an object, since two runs may be one."""

    def __call__(self, value: Any) -> Any:
        """The same as *value*, with other paths."""
        # Members of an enum may be str, and are compared by identity.
        if type(value) in _ATOMS or isinstance(value, Enum):
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, (tuple, list)):
            return self._sequence(value)
        if isinstance(value, dict):
            return {self(key): self(each) for key, each in value.items()}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if id(value) not in self._moved:
                self._moved[id(value)] = self._record(value)
            return self._moved[id(value)]
        return value

    def _text(self, text: str) -> str:
        if not any(each in text for each in self._new):
            return text
        return self._pattern.sub(lambda place: self._new[place[0]], text)

    def _sequence(self, value: tuple[Any, ...] | list[Any]) -> Any:
        values = list(map(self, value))
        if all(map(operator.is_, values, value)):
            return value
        return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)

    def _record(self, value: Any) -> Any:
        old = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        new = {name: self(each) for name, each in old.items()}
        changes = {name: each for name, each in new.items() if each is not old[name]}
        return dataclasses.replace(value, **changes) if changes else value
