"""The fixture ``fault_check``: one check of the battery, in one test item."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_dataloader_faults._engine import choose
from pytest_dataloader_faults._trial.factory import DatasetFactory
from pytest_dataloader_faults.battery._baseline_cache import BaselineCache
from pytest_dataloader_faults.battery._targets import Files
from pytest_dataloader_faults.exceptions import NotReproducedWarning
from pytest_dataloader_faults.outcomes import CheckResult, Contract
from pytest_dataloader_faults.plugin._environment import reported_once
from pytest_dataloader_faults.plugin._notes import add_notes
from pytest_dataloader_faults.plugin._options import Settings, command_line
from pytest_dataloader_faults.plugin._summary import CAUSE, CHECK

_baselines = pytest.StashKey[BaselineCache]()


class FaultCheck:
    """One check, to be called with a dataset."""

    def __init__(self, name: str, settings: Settings, node: pytest.Item) -> None:
        self.name = name
        self._settings = settings
        self._node = node
        self._called = False

    def __call__(
        self,
        make_dataset: DatasetFactory,
        *,
        files: Files | None = None,
        loader: Mapping[str, Any] | None = None,
        contract: Contract | None = None,
    ) -> CheckResult:
        """Run the check. Fails, skips or xfails the test, or returns the result."""
        __tracebackhide__ = True
        self._called = True
        expected = (self._settings.expected_failures or {}).get(self.name)
        again = f"pytest {shlex.quote(_from_here(self._node))} {self._options()}"
        folder = getattr(self._node, "funcargs", {}).get("tmp_path")
        with reported_once(self._node):
            result = self._node.config.stash.setdefault(_baselines, BaselineCache()).ask(
                self.name,
                make_dataset,
                home=folder and str(folder),
                expected=expected,
                reproduce=again.rstrip(),
                files=files,
                loader=loader,
                contract=contract,
                samples=self._settings.samples,
                **self._settings.for_trials(),
            )
        self._tell(result)
        _report_to_pytest(result, self._settings.not_reproduced)
        return result

    def _tell(self, result: CheckResult) -> None:
        """Note what the report of pytest, and those who read its JUnit file, want to know."""
        told = {"dataloader_faults_verdict": str(result.verdict)}
        if result.cause:
            told |= {CHECK: result.check, CAUSE: result.cause}
        self._node.user_properties += told.items()
        add_notes(self._node, result.notes)

    def _options(self) -> str:
        """The options of this run, and the python engine where the kernel engine cannot run."""
        given = command_line(self._node.config)
        if self._settings.engine == "auto" and choose("auto") == "python":
            given = f"{given} --dataloader-faults-engine=python".lstrip()
        return given

    def require_called(self) -> None:
        """Fail a test that never called its check, since it has shown nothing."""
        if not self._called:
            message = "fault_check was never called: call fault_check(lambda: MyDataset(...))"
            pytest.fail(message, pytrace=False)


def _from_here(node: pytest.Item) -> str:
    """The node id for a command in the folder where the user started pytest."""
    path = os.path.relpath(node.path, node.config.invocation_params.dir)
    return f"{path}::{node.nodeid.partition('::')[2]}"


def _report_to_pytest(result: CheckResult, not_reproduced: str) -> None:
    __tracebackhide__ = True
    if not result.applies:
        pytest.skip(result.explanation)
    if not result.reproduced and not_reproduced == "warn":
        warnings.warn(result.explanation, NotReproducedWarning, stacklevel=3)
    elif result.failed or not result.reproduced:
        pytest.fail(result.explanation, pytrace=False)
    if result.expected:
        pytest.xfail(f"{result.expected} ({result.verdict})")
