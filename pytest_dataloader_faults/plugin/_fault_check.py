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

from pytest_dataloader_faults._arguments import suggest_name
from pytest_dataloader_faults._settings import Files, Settings
from pytest_dataloader_faults._trial.factory import DatasetFactory, is_ready
from pytest_dataloader_faults.battery.batteries import Batteries
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.runner import prepare
from pytest_dataloader_faults.exceptions import (
    FlakyCheckWarning,
    InvalidArgumentError,
    InvalidCheckError,
    UnclearErrorWarning,
    UnusableDatasetError,
)
from pytest_dataloader_faults.outcomes import CheckResult, Contract, Finding, Verdict
from pytest_dataloader_faults.outcomes.text import call, escape_for_log, headline, pluralize
from pytest_dataloader_faults.plugin._failures import (
    CALLED,
    NOT_RUN,
    report_shortage_once,
    reported_elsewhere,
    test_key,
)
from pytest_dataloader_faults.plugin._items import id_of, record, replace_status, test_of
from pytest_dataloader_faults.plugin._options import (
    MARKER,
    ItemOptions,
    check_name_of,
    run_command,
    runs_check,
    typed_options,
)
from pytest_dataloader_faults.plugin._report import BASELINE, write_line
from pytest_dataloader_faults.report.model import FAILED, WARNED
from pytest_dataloader_faults.report.model import NOT_RUN as NOT_RUN_STATUS

if TYPE_CHECKING:
    from typing_extensions import Never

_batteries = pytest.StashKey[Batteries]()
_is_prepared = pytest.StashKey[bool]()
_SHARE, _LONG = 0.6, 30.0
"""What a check takes on average, in units of the fault-free runs; seconds that are announced."""
_SECOND_CALL = (
    "a test can call fault_check once. Write one test per dataset, or pass them as parameters:"
    ' @pytest.mark.parametrize("make_dataset", [make_train, make_val])'
)


class FaultCheck:
    """One check, to be called with a dataset."""

    def __init__(self, name: str, options: ItemOptions, node: pytest.Item) -> None:
        self.name = name
        self._options = options
        self._expected_failures = _expected_failures(node, options)
        self._node = node
        self._is_called = False
        self._place = ""
        """The place of its call."""
        self._facts: dict[str, Any] = {}
        """More facts for the report."""

    def __call__(
        self,
        make_dataset: DatasetFactory,
        *,
        files: Files | None = None,
        loader: Mapping[str, Any] | None = None,
        contract: Contract | None = None,
        copy: str | os.PathLike[str] | None = None,
        **unknown: Never,
    ) -> CheckResult:
        """Run the check on a dataset. Fails, skips or xfails the test, or returns the result."""
        __tracebackhide__ = True
        _refuse(unknown)
        if self._is_called:
            raise InvalidArgumentError(_SECOND_CALL)
        self._is_called = True
        self._node.stash[CALLED] = True
        caller = sys._getframe(1)
        self._place = f"{os.path.relpath(caller.f_code.co_filename)}:{caller.f_lineno}"
        settings = {"files": files, "loader": loader, "contract": contract, "copy": copy}
        with report_shortage_once(self._node):
            _prepare_once(self._node)
            result = self._run(make_dataset, settings)
        failure = {"status": FAILED} if self._fails(result) else {}
        record(self._node, result, **{**self._facts, **failure})
        _report_to_pytest(self._node, result, fails=self._fails(result))
        return result

    def _fails(self, result: CheckResult) -> bool:
        """Whether *result* fails the item."""
        is_doubtful = not (result.reproduced or result.expected or result.finding.library)
        return result.failed or (is_doubtful and self._options.flaky != "warn")

    def _run(self, make_dataset: DatasetFactory, settings: Mapping[str, Any]) -> CheckResult:
        """Return the result; if the dataset is unusable, only one item of the test explains why."""
        test = test_key(self._node)
        if elsewhere := reported_elsewhere(self._node, test, reports=False):
            text = f"not run, because the dataset cannot be tested: see {elsewhere}"
            self._node.stash[NOT_RUN] = text
            self._facts = {"status": NOT_RUN_STATUS}
            return _untested_result(self.name, text, applies=False)
        began = time.monotonic()
        try:
            result, is_usable = self._run_check(make_dataset, settings, test)
        except InvalidCheckError as error:
            result, is_usable = _untested_result(self.name, str(error), applies=True), True
        except (InvalidArgumentError, UnusableDatasetError) as error:
            why = f"{error}{self._origin_of(make_dataset)}"
            result, is_usable = _untested_result(self.name, why, applies=True), False
        reported_elsewhere(self._node, test, reports=not is_usable)
        duration = time.monotonic() - began
        self._facts = {"duration": duration, "without_fault": not is_usable}
        return result

    def _origin_of(self, make_dataset: object) -> str:
        """Where the test passed an object, which other messages do not contain."""
        if not is_ready(make_dataset):
            return ""
        fixture_values = getattr(self._node, "funcargs", {}).items()
        fixtures = [
            f", the value of fixture {name!r}"
            for name, value in fixture_values
            if value is make_dataset
        ]
        return f". It was passed at {self._place}{''.join(fixtures[:1])}"

    def _run_check(
        self, make_dataset: DatasetFactory, settings: Mapping[str, Any], call: Hashable
    ) -> tuple[CheckResult, bool]:
        return self._node.config.stash.setdefault(_batteries, Batteries()).run_check(
            self.name,
            make_dataset,
            Settings(**self._options.settings, **settings),
            call=call,
            expected_failures=self._expected_failures,
            reproduce=_command_for(self._node),
            announce=self._announce,
        )

    def _announce(self, seconds: float) -> None:
        """Say how long the checks of this test will take, if that is long.

        *seconds*: how long its fault-free runs took.
        """
        test, plugins = test_of(self._node), self._node.config.pluginmanager
        items = filter(runs_check, self._node.session.items)
        count = sum(test_of(item) == test for item in items)
        estimate = _SHARE * seconds * count
        reporter, capture = map(plugins.getplugin, ("terminalreporter", "capturemanager"))
        if estimate < _LONG or reporter is None or reporter.verbosity < 0:
            return
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            reporter.ensure_newline()
            checks = pluralize(count, "check")
            text = f"dataloader-faults: {test}: {checks} will take about {estimate:.0f} s"
            write_line(reporter, text)

    def require_called(self) -> None:
        """Fail a test that never called its check, because such a test shows nothing."""
        if not self._is_called:
            message = "fault_check was never called: call fault_check(lambda: MyDataset(...))"
            pytest.fail(message, pytrace=False)


def _expected_failures(node: pytest.Item, options: ItemOptions) -> Mapping[str, str]:
    """What the baseline and the marker expect to fail: nothing under pytest's ``--runxfail``."""
    if node.config.getoption("runxfail", default=False):
        return {}
    baseline = node.config.stash.get(BASELINE, None)
    known_failures = baseline.expected_failures(test_of(node)) if baseline else {}
    return {**known_failures, **(options.expected_failures or {})}


def _refuse(unknown: Mapping[str, Any]) -> None:
    """Reject arguments that a check does not accept; some are for the marker."""
    if not unknown:
        return
    arguments = call("", **unknown)[1:-1]
    if set(unknown) <= set(MARKER.parameters):
        pronoun = "it" if len(unknown) == 1 else "them"
        advice = f"Pass {pronoun} to the marker: @pytest.mark.dataloader_faults({arguments})"
    else:
        names = ("files", "loader", "contract", "copy", *MARKER.parameters)
        takes = "It accepts a dataset, files=, loader=, contract= and copy="
        advice = " ".join(filter(None, (suggest_name(next(iter(unknown)), names), takes)))
    if "faults" in unknown:
        advice += (
            ". Each check chooses its own faults; to choose them yourself, call run_trial, inject"
            " or sweep"
        )
    raise InvalidArgumentError(f"fault_check() does not accept {arguments}. {advice}")


def _prepare_once(node: pytest.Item) -> None:
    """Prepare this process for the checks of this run of pytest."""
    if _is_prepared not in node.config.stash:
        node.config.stash[_is_prepared] = True
        names = map(check_name_of, filter(runs_check, node.session.items))
        prepare([name for name in names if name in CHECKS])


def _command_for(node: pytest.Item) -> str:
    """The command that runs *node*, in the folder where the user started pytest."""
    config = node.config
    if command := run_command(config, f"--only={check_name_of(node)}"):
        return command
    path = os.path.relpath(node.path, config.invocation_params.dir)
    nodeid = shlex.quote(f"{path}::{id_of(node).partition('::')[2]}")
    return " ".join(["pytest", nodeid, *typed_options(config)])


def _untested_result(check: str, why: str, *, applies: bool) -> CheckResult:
    """The result if the dataset was not tested; fails the item unless another item failed."""
    finding = Finding(Verdict.NOT_EXERCISED, headline(why))
    return CheckResult(check, finding, why, applies=applies)


def _report_to_pytest(node: pytest.Item, result: CheckResult, *, fails: bool) -> None:
    __tracebackhide__ = True
    text = escape_for_log(result.explanation)
    if not result.applies:
        pytest.skip(text)
    if fails:
        pytest.fail(text, pytrace=False)
    if not result.reproduced:
        warnings.warn(text, FlakyCheckWarning, stacklevel=3)
    if result.warns:
        try:
            warnings.warn(text, UnclearErrorWarning, stacklevel=3)
        except UnclearErrorWarning:
            replace_status(node, WARNED, FAILED)
            raise pytest.fail.Exception(text, pytrace=False) from None
    if result.expected:
        pytest.xfail(escape_for_log(f"{result.expected} ({result.verdict})"))
