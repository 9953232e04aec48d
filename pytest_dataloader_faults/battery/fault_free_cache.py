"""The fault-free run of an earlier item of a test, for the items that follow.

Some facts about what can be shared. A fault-free run takes longer than the trial that it serves,
and each item of a test would repeat it. But the factory alone does not prove that its dataset is
the same as before: fixtures make the data again, and may make other data, in another place. So what
is recalled is a guess. It is used if the files that the workers used, and their folders, have
not changed since. It is also used if the item has a new folder with files of the same content,
and the reference was as recalled in one such folder: a sample may contain the path of its file.
Otherwise the reference, the cheaper half of a fault-free run, is taken first. It must be taken
before the trial: a dataset may write down what a fault did to it, and return other samples from
then on. If the reference is not as recalled, the fault-free run is repeated, and nothing is
recalled for that factory again.

A dataset may depend on more than files: on a global variable, or on a service. So if a guess was
used and the check does not pass, the reference is taken after all. If it is not as recalled, and
the files have not changed in the trial either, the check is repeated with its own fault-free run.
The same holds if a check does not apply because a fault-free run was not as recalled. A check that
passes needs no such repeat: its samples were compared with what is recalled. Others that do not
apply have compared nothing, so they are reused for items of one test only.
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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial.factory import DatasetFactory, PartOf, is_ready
from pytest_dataloader_faults.battery._battery import Battery, CheckMemory
from pytest_dataloader_faults.battery.checks import WORKERS_AGREE
from pytest_dataloader_faults.battery.fault_free_run import (
    EarlierRun,
    FaultFreeRun,
    OutdatedRunError,
)
from pytest_dataloader_faults.battery.runner import run_check
from pytest_dataloader_faults.battery.targets import OwnFolders
from pytest_dataloader_faults.faults.globs import is_below
from pytest_dataloader_faults.outcomes import CheckResult, Outcome, Verdict

_PLAIN = (str, bytes, int, float, bool, type(None))
_NAMED = (type, ModuleType)
_NO_FOLDERS = OwnFolders()


class FaultFreeCache:
    """The fault-free runs of one session."""

    def __init__(self) -> None:
        self._found: dict[Hashable, _Entry | None] = {}
        self._memory: defaultdict[Hashable, CheckMemory] = defaultdict(CheckMemory)

    def run_check(
        self,
        name: str,
        make_dataset: DatasetFactory,
        settings: Settings,
        *,
        call: Hashable = None,
        home: str | None,
        expected_failures: Mapping[str, str],
        reproduce: str,
    ) -> tuple[CheckResult, bool]:
        """The result of the check *name*, and whether the dataset works without a fault at all.

        *call* is equal for all items of a test with the same dataset; None if unknown.
        *home* is a folder that the test has for itself, and gets a new one of for each item.
        """
        entry = self._found.get(key := _identity(make_dataset, settings, home))
        memory = None if call is None else self._memory[call]
        battery_of = functools.partial(Battery, make_dataset, settings, memory=memory)
        expected = expected_failures.get(name)
        check = functools.partial(run_check, name=name, expected=expected, reproduce=reproduce)
        stale = False
        if entry is not None:
            try:
                moved = entry.with_home(home)
                proven = moved is entry or entry.is_movable
                result, battery, holds = _run_by_entry(moved, battery_of, check, is_proven=proven)
                self._found[key] = entry = entry.with_findings(battery.fault_free_run, home)
                # After a hang without a fault, another run without one would hang as well.
                is_exercised = result.verdict is not Verdict.NOT_EXERCISED
                is_shown = is_exercised or entry.fault_free_run.changes
                is_same_test = call is not None and entry.call == call
                if is_shown or (not result.applies and holds and is_same_test):
                    return result, True
            except OutdatedRunError:
                stale = True
        base = (battery := battery_of()).fault_free_run
        versions = versions_of_files(base.working, base.own_folders)
        if base.unusable_reason and name != WORKERS_AGREE:
            return _failure_without_fault(battery, name, expected_failures, reproduce), False
        result = check(battery)
        if key is not None and (run := base.reusable) is not None:
            facts = (run, home, versions, _contents(versions, home), call, base.own_folders)
            self._found[key] = None if stale else _Entry(*facts, bool(entry and entry.is_movable))
        return result, not battery.fault_free_run.unusable_reason


class _Entry(NamedTuple):
    """A fault-free run, the folder of the item that made it, and the files then.

    Attributes:
        fault_free_run: What the run showed.
        home: The folder.
        versions: Of the files, and of their folders.
        contents: Of those that are in *home*; None if they are too large to look at.
        call: As for ``FaultFreeCache.run_check``.
        own_folders: The folders that a trial of it has for itself.
        may_move: Whether the reference was the same in another folder.
    """

    fault_free_run: EarlierRun
    home: str | None
    versions: Mapping[str, tuple[int, ...] | None]
    contents: Mapping[str, str] | None
    call: Hashable
    own_folders: OwnFolders
    is_movable: bool = False

    def _folders(self, home: str | None) -> tuple[str, str] | None:
        """The folder of this entry and *home*, if both are there and they differ."""
        return (self.home, home) if self.home and home and self.home != home else None

    def with_home(self, home: str | None) -> _Entry:
        """The same for an item that has the folder *home*."""
        folders = self._folders(home)
        if folders is None:
            return self
        move, findings = _Mover(*folders), self.fault_free_run.findings
        paths_to_move = (replace(self.fault_free_run, findings={}), self.contents, self.own_folders)
        fault_free_run, contents, own_folders = move(paths_to_move)
        versions = {
            path: version
            for path, version in self.versions.items()
            if not is_below(path, folders[:1])
        }
        return self._replace(
            fault_free_run=replace(fault_free_run, findings=_MovedFindings(findings, move)),
            home=home,
            versions=versions,
            contents=contents,
            own_folders=own_folders,
        )

    def is_valid_for(self, now: Mapping[str, tuple[int, ...] | None]) -> bool:
        """Whether its files, which have the versions *now*, are as they were then."""
        if now == self.versions:
            return True
        same = all(now.get(path) == version for path, version in self.versions.items())
        is_moved = now.keys() != self.versions.keys()
        if not (same and is_moved and self.contents is not None):
            return False
        return self.contents == _contents(now, self.home)

    def with_findings(self, later_run: FaultFreeRun, home: str | None) -> _Entry:
        """The same with what *later_run*, of an item with the folder *home*, has found."""
        run, folders = self.fault_free_run, self._folders(home)
        if (later := later_run.reusable) is not None:
            findings = _Mover(*reversed(folders))(later.findings) if folders else later.findings
            run = replace(run, findings={**findings, **run.findings})
        is_movable = self.is_movable or folders is not None
        return self._replace(fault_free_run=run, is_movable=is_movable)


def _run_by_entry(
    entry: _Entry,
    battery_of: Callable[..., Battery],
    run_check: Callable[[Battery], CheckResult],
    *,
    is_proven: bool,
) -> tuple[CheckResult, Battery, bool]:
    """The result by what *entry* knows, by whom, and whether the files are as they were.

    *is_proven*: whether the samples are the same then, too. OutdatedRunError if they are not.
    """
    versions = versions_of_files(entry.fault_free_run.working, entry.own_folders)
    holds = entry.is_valid_for(versions)
    battery = battery_of(earlier_run=entry.fault_free_run, is_valid=holds and is_proven)
    result = run_check(battery)
    is_consistent = (
        result.passed if result.applies else not battery.fault_free_run.fails_when_monitored
    )
    if holds and is_proven and not is_consistent:
        try:
            battery_of(earlier_run=entry.fault_free_run)
        except OutdatedRunError:
            if versions_of_files(entry.fault_free_run.working, entry.own_folders) == versions:
                raise
    return result, battery, holds


def versions_of_files(
    run: Outcome, own_folders: OwnFolders = _NO_FOLDERS
) -> dict[str, tuple[int, ...] | None]:
    """What changes when a file that the workers of *run* used is changed, or its folder is.

    For a file in the trial's *own_folders*, the file from which it was copied counts.

    A folder changes when a file in it is made, removed or renamed. The kernel sets ctime, and no
    program can set it back.
    """
    files = {own_folders.original(path) for worker in run.workers for path in worker.files}
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

    None if they cannot be read, or are too large.
    """
    home_paths = [path for path in paths if home and is_below(path, [home])]
    with contextlib.suppress(OSError):
        if len(home_paths) <= _MOST_FILES and sum(map(os.path.getsize, home_paths)) <= _MOST_BYTES:
            return {path: _digest(path) for path in home_paths}
    return None


def _digest(path: str) -> str:
    if os.path.isdir(path):
        content = "\0".join(sorted(os.listdir(path))).encode(errors="surrogateescape")
    else:
        with open(path, "rb") as file:
            content = file.read()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _failure_without_fault(
    battery: Battery, name: str, expected_failures: Mapping[str, str], reproduce: str
) -> CheckResult:
    """What is wrong without a fault, in place of the result of the check *name*.

    It is expected if ``workers-agree`` is, whichever check runs first.
    """
    expected = expected_failures.get(WORKERS_AGREE)
    result = run_check(battery, WORKERS_AGREE, expected=expected, reproduce=reproduce)
    text = f"{name} was not run, because the dataset fails even without a fault: {result.check}"
    explanation = f"{text}:\n{result.explanation}"
    finding = replace(result.finding, sentence=text)
    return replace(result, check=name, finding=finding, explanation=explanation)


def _identity(make_dataset: DatasetFactory, options: Settings, home: str | None) -> Hashable:
    """A key that is equal for factories that are likely to make the same dataset, or None.

    It is a function's code, and the values that it closes over, if all of them are plain.
    """
    if is_ready(make_dataset):
        return None
    if isinstance(make_dataset, functools.partial):
        inner = _identity(make_dataset.func, options, home)
        plain_key = _plain_or_none([make_dataset.args, make_dataset.keywords], home)
        return inner and plain_key and (inner, plain_key)
    if isinstance(make_dataset, type):
        plain_key = _plain_or_none([options], home)
        return plain_key and (make_dataset, plain_key)
    if isinstance(make_dataset, PartOf):
        source_key = _identity(make_dataset.source, options, home)
        return source_key and (source_key, make_dataset.name)
    if not isinstance(make_dataset, FunctionType):
        return None
    cells = (cell.cell_contents for cell in make_dataset.__closure__ or ())
    values = [make_dataset.__defaults__, make_dataset.__kwdefaults__, options]
    key = _plain_or_none(itertools.chain(cells, values), home)
    return key and (make_dataset.__code__, id(make_dataset.__globals__), key)


def _plain_or_none(values: Iterable[Any], home: str | None) -> Hashable:
    try:
        plain_values = tuple(_plain(value, home) for value in values)
        hash(plain_values)
    except Exception:  # noqa: BLE001  # One is not assigned yet, or not plain, and of any class.
        return None
    return plain_values


def _plain(value: Any, home: str | None) -> Hashable:
    """*value* as a key, with *home* left out; TypeError if it is not plain."""
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, str) and home:
        return str, _path_pattern(home).sub("", value)
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


def _path_pattern(folder: str) -> re.Pattern[str]:
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
        self._pattern = _path_pattern(was)
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


class _MovedFindings(Mapping[str, Any]):
    """*findings* for another folder. Most items use few of them, so each is moved when used."""

    def __init__(self, findings: Mapping[str, Any], move: _Mover) -> None:
        self._findings = findings
        self._move = functools.cache(lambda name: move(findings[name]))

    def __getitem__(self, name: str) -> Any:
        return self._move(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._findings)

    def __len__(self) -> int:
        return len(self._findings)
