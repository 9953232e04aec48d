"""The fixture ``fault_check``: one check of the battery, in one test item."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
import warnings
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults._settings import Files, Settings
from pytest_dataloader_faults._trial.factory import DatasetFactory, is_ready
from pytest_dataloader_faults.battery.batteries import Batteries
from pytest_dataloader_faults.battery.checking import prepare
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.exceptions import (
    FlakyCheckWarning,
    InvalidArgumentError,
    InvalidCheckError,
    UnclearErrorWarning,
    UnusableDatasetError,
)
from pytest_dataloader_faults.outcomes import CheckResult, Contract, Finding, Verdict
from pytest_dataloader_faults.outcomes.text import (
    call,
    escape_for_log,
    headline,
    join_some,
    pluralize,
)
from pytest_dataloader_faults.plugin import _failures, _items, _options
from pytest_dataloader_faults.plugin._report import known_failures, record, replace_status
from pytest_dataloader_faults.report.model import FAILED, WARNED

if TYPE_CHECKING:
    from typing_extensions import Never

_batteries = pytest.StashKey[Batteries]()
_SHARE, _LONG = 0.6, 30.0
"""What a check takes on average, in units of the fault-free runs; seconds that are announced."""
_TIMES, _SLOW_IMPORT = 2, 0.1
"""How often fault-free runs wait for an import; seconds and share of imports to announce."""
_SECOND_CALL = (
    "a test can call fault_check once. Write one test per dataset, or pass them as parameters:"
    ' @pytest.mark.parametrize("make_dataset", [make_train, make_val])'
)


class FaultCheck:
    """One check, to be called with a dataset."""

    def __init__(self, name: str, options: Mapping[str, Any], node: pytest.Item) -> None:
        self.name = name
        self._options = options
        self._node = node
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
        if self._node.stash[_failures.CALLED]:
            raise InvalidArgumentError(_SECOND_CALL)
        self._node.stash[_failures.CALLED] = True
        settings = {"files": files, "loader": loader, "contract": contract, "copy": copy}
        result = self._run(make_dataset, settings)
        is_doubtful = not (result.reproduced or result.expected or result.finding.library)
        fails = result.failed or (is_doubtful and self._options["flaky"] != "warn")
        record(self._node, result, **self._facts, **({"status": FAILED} if fails else {}))
        _report_to_pytest(self._node, result, fails=fails)
        return result

    def _run(self, make_dataset: DatasetFactory, settings: Mapping[str, Any]) -> CheckResult:
        """Return the result; if the dataset is unusable, only one item of the test explains why."""
        test, firsts = _items.test_of(self._node), _failures.first_items(self._node)
        if (first := firsts.get(test, self._node.nodeid)) != self._node.nodeid:
            text = f"not run, because the dataset cannot be tested: see {first}"
            self._node.stash[_failures.NOT_RUN] = text
            return _untested_result(self.name, text, applies=False)
        began = time.monotonic()
        try:
            result, is_usable = self._run_check(make_dataset, settings, test)
        except InvalidCheckError as error:
            result, is_usable = _untested_result(self.name, str(error), applies=True), True
        except (InvalidArgumentError, UnusableDatasetError) as error:
            why = f"{error}{self._origin_of(make_dataset)}"
            result, is_usable = _untested_result(self.name, why, applies=True), False
        firsts.pop(test, None)  # It may run again, and pass.
        if not is_usable:
            firsts[test] = self._node.nodeid
        duration = round(time.monotonic() - began, 3)
        samples = self._node.config.stash[_batteries].samples_of(test)
        self._facts = {"duration": duration, "without_fault": not is_usable, "samples": samples}
        return result

    def _origin_of(self, make_dataset: object) -> str:
        """The fixture that made an object, which other messages do not name."""
        values = getattr(self._node, "funcargs", {}).items() if is_ready(make_dataset) else ()
        names = [name for name, value in values if value is make_dataset]
        return f". It is the value of fixture {names[0]!r}" if names else ""

    def _run_check(
        self, make_dataset: DatasetFactory, settings: Mapping[str, Any], call: Hashable
    ) -> tuple[CheckResult, bool]:
        stash, items = self._node.config.stash, self._node.session.items
        if _batteries not in stash:
            stash[_batteries] = Batteries()
            names = map(_items.check_name_of, filter(_items.runs_check, items))
            prepare([name for name in names if name in CHECKS])
        return stash[_batteries].run_check(
            self.name,
            make_dataset,
            Settings(**_options.settings_in(self._options), **settings),
            call=call,
            expected_failures=_expected_failures(self._node, self._options),
            reproduce=_command_for(self._node),
            announce=self._announce,
        )

    def _announce(self, seconds: float, imports: Mapping[str, float]) -> None:
        """Say how long the checks of this test will take, if that is long, and why.

        *seconds*: how long its fault-free runs took. *imports*: the seconds of each import, which
        every trial repeats.
        """
        test, plugins = _items.test_of(self._node), self._node.config.pluginmanager
        items = filter(_items.runs_check, self._node.session.items)
        count = sum(_items.test_of(item) == test for item in items)
        estimate = _SHARE * seconds * count
        reporter, capture = map(plugins.getplugin, ("terminalreporter", "capturemanager"))
        if estimate < _LONG or reporter is None or reporter.verbosity < 0:
            return
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            reporter.ensure_newline()
            checks = pluralize(count, "check")
            text = f"dataloader-faults: {test}: {checks} will take about {estimate:.0f} s"
            slow = {name: each for name, each in imports.items() if each > _SLOW_IMPORT}
            share = min(1.0, _TIMES * sum(slow.values()) / seconds)
            if share > _SLOW_IMPORT:
                names = f"{join_some(slow)}, which the test's module should import at its top"
                text += f", {share * estimate:.0f} s of it to import {names}"
            # pytest has written the name of the file or the test already, and writes the letter or
            # the word next: the name comes once more, or that would stand alone.
            reporter.write(escape_for_log(text))
            reporter.pytest_runtest_logstart(self._node.nodeid, self._node.location)


def _expected_failures(node: pytest.Item, options: Mapping[str, Any]) -> Mapping[str, str]:
    """What the baseline and the marker expect to fail: nothing under pytest's ``--runxfail``."""
    if node.config.getoption("runxfail", default=False):
        return {}
    return {**known_failures(node), **(options["expected_failures"] or {})}


def _refuse(unknown: Mapping[str, Any]) -> None:
    """Reject arguments that a check does not accept; some are for the marker."""
    if unknown:
        message = (
            f"fault_check() does not accept {call('', **unknown)[1:-1]}. It accepts a dataset,"
            " files=, loader=, contract= and copy=, and chooses its own faults. The marker accepts"
            f" other settings: @pytest.mark.{_options.USAGE}"
        )
        raise InvalidArgumentError(message)


def _command_for(node: pytest.Item) -> str:
    """The command that runs *node*, in the folder where the user started pytest."""
    config = node.config
    if command := _options.run_command(config, f"--only={_items.check_name_of(node)}"):
        return command
    path = os.path.relpath(node.path, config.invocation_params.dir)
    nodeid = shlex.quote(f"{path}::{_items.id_of(node).partition('::')[2]}")
    return " ".join(["pytest", nodeid, *_options.typed_options(config)])


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
