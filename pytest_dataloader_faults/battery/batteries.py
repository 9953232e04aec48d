"""One battery for all items of a test, so that its fault-free runs are made once.

``fault_check`` is an item for each check, and pytest runs the fixtures of the test for each item.
They usually make the data again, in another folder. The first item's data are still there, since
pytest keeps ``tmp_path`` until the session ends. So all items use the dataset of the first one, as
long as nothing but their own trials changes its files.

Before the second item uses it, the dataset must pass once more without a fault, with files of the
same folders: a fixture may have closed what it needs, or have it find other files.

A check that passes has compared that dataset with itself, which proves as much as any other. One
that fails shows a defect only if the dataset still passes without a fault: a fixture may have
closed what it needs, as a server. If it does not pass, the battery of the item's own dataset
decides. The items of a test share none from then on, unless both have the same verdict.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checking import run_check
from pytest_dataloader_faults.battery.checks import WORKERS_AGREE
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableDatasetError
from pytest_dataloader_faults.outcomes import CheckResult, Outcome, Verdict

_Versions: TypeAlias = Mapping[str, tuple[int, ...] | None]
_MOST_TESTS = 8
"""A plugin that shuffles items may mix the items of a few tests."""


@dataclass
class _Kept:
    """The battery of an earlier item, and the versions of its files after that item.

    Attributes:
        is_shared: Whether its dataset works when another item runs; None before one does.
    """

    battery: Battery
    settings: Settings
    versions: _Versions
    is_shared: bool | None = None

    def holds_for(self, settings: Settings) -> bool:
        """Whether an item with these *settings* may use it."""
        with contextlib.suppress(Exception):  # Settings may have tensors, which have no truth.
            is_same = (
                self.is_shared is not False
                and self.battery.fault_free_run.is_reusable
                and self.settings == settings
                and self.versions == _versions_of(self.battery)
            )
            if is_same and self.is_shared is None:
                self.is_shared = False
                self.is_shared = self._works_elsewhere()
            return is_same and bool(self.is_shared)
        return False

    def _works_elsewhere(self) -> bool:
        """Whether the dataset passes while another item runs, and uses no files of that item.

        It may find its files by the current folder or a variable, which fixtures set for each item.
        """
        run = self.battery.fault_free_run
        outcomes, finding = run.run_watched()
        folders, known = (_folders_of(self.battery, each) for each in (outcomes[-1], run.working))
        return finding.passed and folders <= known

    def run(self, check: Callable[[Battery], CheckResult]) -> tuple[CheckResult | None, bool]:
        """The result of *check*, None if it cannot run any more, and whether it decides."""
        run = self.battery.fault_free_run
        try:
            result = check(self.battery)
            if result.passed or not (result.applies or run.fails_in_ranks):
                return result, True
            # If no fault fired, the dataset may have used the files of the present item.
            is_unfired = result.applies and result.verdict is Verdict.NOT_EXERCISED
            return result, not is_unfired and run.passes_again()
        except (InvalidArgumentError, UnusableDatasetError):
            return None, False

    def own_battery(self, make_dataset: DatasetFactory) -> Battery | None:
        """That of the present item's dataset; None if trials of this one damaged its data."""
        now = _versions_of(self.battery)
        changed = {path for path, version in self.versions.items() if now[path] != version}
        try:
            own = Battery(make_dataset, self.settings)
        except (InvalidArgumentError, UnusableDatasetError):
            if changed:
                return None
            raise
        reference = self.battery.fault_free_run.reference
        is_other = own.fault_free_run.reference != reference
        return None if is_other and changed & _versions_of(own).keys() else own


class Batteries:
    """The batteries of one session."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Kept] = {}

    def run_check(
        self,
        name: str,
        make_dataset: DatasetFactory,
        settings: Settings,
        *,
        call: Hashable,
        expected_failures: Mapping[str, str],
        reproduce: str,
        announce: Callable[[float, Mapping[str, float]], object] = lambda *_: None,
    ) -> tuple[CheckResult, bool]:
        """The result of the check *name*, and whether the dataset works without a fault at all.

        *call* is equal for all items of a test with the same parameters. *announce* is called
        before the first of them, with the seconds that the fault-free runs took, and those that
        each import took in the first of these runs.
        """
        expected = expected_failures.get(name)
        check = partial(run_check, name=name, expected=expected, reproduce=reproduce)
        kept, earlier = self._kept.get(call), None
        is_shared: bool | None
        if kept is not None and kept.holds_for(settings):
            earlier, decides = kept.run(check)
            own = None if earlier and decides else kept.own_battery(make_dataset)
            if earlier and own is None:
                self._keep(call, kept.battery, settings, is_shared=decides)
                return earlier, True
            battery, is_shared = own or Battery(make_dataset, settings), False
        else:
            # Hangs are at the same lines, whatever the files and the settings are.
            hangs = kept.battery.hangs if kept else None
            is_shared = kept.is_shared if kept else None
            began = time.monotonic()
            battery = Battery(make_dataset, settings, hangs=hangs)
            if kept is None:
                imports = dict(battery.fault_free_run.reference.imports)
                announce(time.monotonic() - began, imports)
        run = battery.fault_free_run
        if run.unusable_reason and name != WORKERS_AGREE:
            return _failure_without_fault(battery, name, expected_failures, reproduce), False
        result = check(battery)
        is_same = earlier is not None and earlier.verdict is result.verdict
        self._keep(call, battery, settings, is_shared=is_same or is_shared)
        return result, not run.unusable_reason

    def samples_of(self, call: Hashable) -> str:
        """A digest of the samples without a fault; "" if they are unknown, or random."""
        kept = self._kept.get(call)
        if kept is None or (reference := kept.battery.fault_free_run.reference).comparison.is_loose:
            return ""
        text = repr([(name, sample.digest) for name, sample in reference.samples])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _keep(
        self, call: Hashable, battery: Battery, settings: Settings, *, is_shared: bool | None
    ) -> None:
        self._kept.pop(call, None)  # The latest is the last of them.
        self._kept[call] = _Kept(battery, settings, _versions_of(battery), is_shared)
        if len(self._kept) > _MOST_TESTS:
            self._kept.pop(next(iter(self._kept)))


def _versions_of(battery: Battery) -> _Versions:
    """What changes when a file that the workers used is changed, or its folder is.

    For a file in a trial's own folder, the file from which it was copied counts. A folder changes
    when a file in it is made, removed or renamed. The kernel sets ctime, and no program can set it
    back.
    """
    run = battery.fault_free_run
    original = run.own_folders.original
    files = {original(path) for worker in run.working.workers for path in worker.files}
    return {path: _version(path) for path in files | set(map(os.path.dirname, files))}


def _folders_of(battery: Battery, outcome: Outcome) -> set[str]:
    """The folders of the files that workers used in *outcome*, and that still exist."""
    original = battery.fault_free_run.own_folders.original
    return {os.path.dirname(original(path)) for path in outcome.lasting_files}


def _version(path: str) -> tuple[int, ...] | None:
    with contextlib.suppress(OSError):
        at = os.stat(path)
        return (at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
    return None


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
