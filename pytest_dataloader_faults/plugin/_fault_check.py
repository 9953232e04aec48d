"""The fixture ``fault_check``: one check of the battery, in one test item."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
import warnings
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults._arguments import meant
from pytest_dataloader_faults._engine import choose
from pytest_dataloader_faults._settings import Files, Settings
from pytest_dataloader_faults._trial.factory import DatasetFactory, is_ready, part_of
from pytest_dataloader_faults.battery import progress
from pytest_dataloader_faults.battery.asking import prepare
from pytest_dataloader_faults.battery.baseline_cache import Answer, BaselineCache
from pytest_dataloader_faults.battery.checking import about, excused, summed_up
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.exceptions import (
    InvalidArgumentError,
    NotReproducedWarning,
    SeveralLoadersError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.outcomes import CheckResult, Contract, Verdict
from pytest_dataloader_faults.outcomes.text import call, for_log, headline
from pytest_dataloader_faults.plugin._failures import about_call, shortage_reported_once
from pytest_dataloader_faults.plugin._known import KNOWN
from pytest_dataloader_faults.plugin._options import (
    CALLED,
    MARKER,
    NAMED,
    NOT_ASKED,
    ItemOptions,
    asks_check,
    check_asked,
    command_line,
)
from pytest_dataloader_faults.plugin._report import id_of, note

if TYPE_CHECKING:
    from typing_extensions import Never

_baselines = pytest.StashKey[BaselineCache]()
_stage = pytest.StashKey[progress.Stage]()
_numbers = pytest.StashKey[dict[pytest.Item, int]]()


class FaultCheck:
    """One check, to be called with a dataset."""

    def __init__(self, name: str, options: ItemOptions, node: pytest.Item) -> None:
        self.name = name
        self._options = options
        self._node = node
        self._calls = 0
        self._place = ""
        """Where it was called last."""
        self._failing_alone: set[str | None] = set()
        """The parts of the last call that fail with no fault."""

    def __call__(
        self,
        make_dataset: DatasetFactory,
        *,
        files: Files | None = None,
        loader: Mapping[str, Any] | None = None,
        contract: Contract | None = None,
        copy: str | os.PathLike[str] | None = None,
        **others: Never,
    ) -> CheckResult:
        """Run the check. Fails, skips or xfails the test, or returns the result."""
        __tracebackhide__ = True
        _refuse(others)
        self._calls += 1
        self._failing_alone = set()
        self._node.stash[CALLED] = True
        caller = sys._getframe(1)
        self._place = f"{os.path.relpath(caller.f_code.co_filename)}:{caller.f_lineno}"
        how = {"files": files, "loader": loader, "contract": contract, "copy": copy}
        began = time.monotonic()
        with shortage_reported_once(self._node), self._progress():
            result = self._with_known(self._ask_each(make_dataset, how))
        fails = self._fails(result)
        note(self._node, result, time.monotonic() - began, fails=fails)
        _report_to_pytest(result, fails=fails)
        return result

    def _fails(self, result: CheckResult) -> bool:
        """Whether *result* fails the item."""
        is_doubtful = not (result.reproduced or result.expected)
        return result.failed or (is_doubtful and self._options.not_reproduced != "warn")

    def _with_known(self, result: CheckResult) -> CheckResult:
        """*result*, expected where each part that fails is known to fail so."""
        known = self._node.config.stash.get(KNOWN, None)
        if known is None:
            return result
        alone, call = self._failing_alone, self._calls
        ones = [
            known.excused(self._node, each, self._fails, alone=each.part in alone, call=call)
            for each in result.parts or [result]
        ]
        return summed_up(ones) if result.parts else ones[0]

    def _progress(self) -> contextlib.AbstractContextManager[None]:
        """Tell which check of how many this is, in this run of pytest."""
        places, stash = _places(self._node), self._node.config.stash
        if _stage not in stash:
            stash[_stage] = progress.Stage("checks")
            prepare(name for name in map(check_asked, places) if name in CHECKS)
        stage = stash[_stage]
        stage.step(self.name, places.get(self._node, 0), len(places))
        return progress.within(stage)

    def _ask_each(self, make_dataset: DatasetFactory, how: Mapping[str, Any]) -> CheckResult:
        """The result; of several loaders or datasets, those of all of them."""
        try:
            return self._ask(make_dataset, how)
        except SeveralLoadersError as error:
            ones = [(part, part_of(make_dataset, part)) for part in error.parts]
        results = [about(part, self._ask(one, how, part)) for part, one in ones]
        return summed_up(excused(results))

    def _ask(
        self, make_dataset: DatasetFactory, how: Mapping[str, Any], part: str | None = None
    ) -> CheckResult:
        """The result; where the dataset cannot be tried, only one item of the test says why."""
        report = about_call(self._node, self._calls, part)
        if report.elsewhere:
            text = f"not asked, for the dataset cannot be tried: see {report.elsewhere}"
            self._node.stash[NOT_ASKED] = text
            return _nothing_shown(self.name, text, applies=False)
        try:
            result, is_usable = self._asked(make_dataset, how, report.about)
        except SeveralLoadersError:
            raise
        except (InvalidArgumentError, UnusableDatasetError) as error:
            why = f"{error}{self._origin_of(make_dataset)}"
            result, is_usable = _nothing_shown(self.name, why, applies=True), False
        if is_usable:
            report.is_gone()
        else:
            report.is_here()
            self._failing_alone.add(part)
        return result

    def _origin_of(self, make_dataset: object) -> str:
        """Where a test has handed over an object: no text of the harness knows that."""
        if NAMED in self._node.stash or not is_ready(make_dataset):
            return ""
        given = getattr(self._node, "funcargs", {}).items()
        fixtures = [
            f", the value of fixture {name!r}" for name, value in given if value is make_dataset
        ]
        return f". It was handed over at {self._place}{''.join(fixtures[:1])}"

    def _asked(
        self, make_dataset: DatasetFactory, how: Mapping[str, Any], call: Hashable
    ) -> Answer:
        again = f"pytest {_arguments_for(self._node)} {self._command_line()}"
        folder = getattr(self._node, "funcargs", {}).get("tmp_path")
        return self._node.config.stash.setdefault(_baselines, BaselineCache()).ask(
            self.name,
            make_dataset,
            Settings(**self._options.settings, **how),
            call=call,
            home=folder and str(folder),
            expected=(self._options.expected_failures or {}).get(self.name),
            reproduce=again.rstrip(),
        )

    def _command_line(self) -> str:
        """The options of this run, and the python engine where the kernel engine cannot run."""
        given = command_line(self._node.config)
        if self._options.engine == "auto" and choose("auto") == "python":
            given = f"{given} --dataloader-faults-engine=python".lstrip()
        return given

    def require_called(self) -> None:
        """Fail a test that never called its check, since it has shown nothing."""
        if not self._calls:
            message = "fault_check was never called: call fault_check(lambda: MyDataset(...))"
            pytest.fail(message, pytrace=False)


def _refuse(others: Mapping[str, Any]) -> None:
    """Refuse arguments that a check does not take; some are for the marker."""
    if not others:
        return
    given = call("", **others)[1:-1]
    if set(others) <= set(MARKER.parameters):
        what = "it" if len(others) == 1 else "them"
        advice = f"Give {what} to the marker: @pytest.mark.dataloader_faults({given})"
    else:
        known = ("files", "loader", "contract", "copy", *MARKER.parameters)
        takes = "It takes a dataset, files=, loader=, contract= and copy="
        advice = " ".join(filter(None, (meant(next(iter(others)), known), takes)))
    if "faults" in others:
        advice += ". Each check has its faults; for others, call run_trial, inject or sweep"
    raise InvalidArgumentError(f"fault_check() takes no {given}. {advice}")


def _places(node: pytest.Item) -> dict[pytest.Item, int]:
    """The number of each item of this run that asks a check, from 0. It is found out once."""
    stash = node.config.stash
    if _numbers not in stash:
        asking = filter(asks_check, node.session.items)
        stash[_numbers] = {item: number for number, item in enumerate(asking)}
    return stash[_numbers]


def _arguments_for(node: pytest.Item) -> str:
    """What has pytest run *node*, in the folder where the user started pytest."""
    if NAMED in node.stash:
        return node.stash[NAMED].arguments
    path = os.path.relpath(node.path, node.config.invocation_params.dir)
    return shlex.quote(f"{path}::{id_of(node).partition('::')[2]}")


def _nothing_shown(check: str, why: str, *, applies: bool) -> CheckResult:
    """The result where the dataset was not tried; it fails the item unless another one did."""
    verdict, text = Verdict.NOT_EXERCISED, headline(why)
    return CheckResult(
        check, verdict, passed=False, sentence=text, explanation=why, applies=applies
    )


def _report_to_pytest(result: CheckResult, *, fails: bool) -> None:
    __tracebackhide__ = True
    if not result.applies:
        pytest.skip(result.explanation)
    if fails:
        pytest.fail(result.explanation, pytrace=False)
    if not result.reproduced:
        warnings.warn(for_log(result.explanation), NotReproducedWarning, stacklevel=3)
    if result.expected:
        pytest.xfail(f"{result.expected} ({result.verdict})")
