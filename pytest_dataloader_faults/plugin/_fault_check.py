"""One test item of the battery: what the fixture ``fault_check`` gives."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_dataloader_faults._engine import choose
from pytest_dataloader_faults.battery._baseline_cache import BaselineCache
from pytest_dataloader_faults.battery._check_dataset import select_checks
from pytest_dataloader_faults.battery._sweep import sweep
from pytest_dataloader_faults.battery._targets import Files
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    InvalidArgumentError,
    NotReproducedWarning,
)
from pytest_dataloader_faults.outcomes import CheckResult, Contract
from pytest_dataloader_faults.outcomes._results import SweepResult
from pytest_dataloader_faults.plugin._environment import reported_once
from pytest_dataloader_faults.plugin._options import Settings, command_line

SWEEP = "sweep"
"""In place of a check's name: the test's one item is for ``fault_check.sweep``."""
_ONCE = (
    "a sweep is done once, by the first item of its test. With"
    " @pytest.mark.dataloader_faults(only='sweep') that is the only one"
)
_NO_CHECK = (
    "this test is marked only='sweep', so it has no check to ask: call fault_check.sweep(...), or"
    " name checks in only"
)
_memory = pytest.StashKey[BaselineCache]()


def items_for(settings: Settings) -> list[str]:
    """The names of a test's items: of checks, or of the one for a sweep."""
    only = settings.only
    if only != SWEEP and not (isinstance(only, (list, tuple, set)) and list(only) == [SWEEP]):
        return select_checks(settings.only, settings.exclude, settings.expected_failures)
    if settings.exclude or settings.expected_failures:
        message = "only='sweep' asks no check: leave exclude and expected_failures out"
        raise InvalidArgumentError(message)
    return [SWEEP]


class FaultCheck:
    """A check, ready to be asked about a dataset."""

    def __init__(
        self, name: str, settings: Settings, node: pytest.Item, *, is_first: bool = True
    ) -> None:
        self.name = name
        self._is_first = is_first
        self._settings = settings
        self._node = node
        self._called = False

    def __call__(
        self,
        make_dataset: Callable[[], Any],
        *,
        files: Files | None = None,
        loader: Mapping[str, Any] | None = None,
        contract: Contract | None = None,
    ) -> CheckResult:
        """Ask. Fails, skips or xfails the test, or returns the result; see ``check_dataset``."""
        __tracebackhide__ = True
        self._called = True
        if self.name == SWEEP:
            pytest.fail(_NO_CHECK, pytrace=False)
        expected = (self._settings.expected_failures or {}).get(self.name)
        how = f"pytest {shlex.quote(_from_here(self._node))} {self._options()}"
        with reported_once(self._node):
            result = self._node.config.stash.setdefault(_memory, BaselineCache()).ask(
                self.name,
                make_dataset,
                home=self._home(),
                expected=expected,
                how=how.rstrip(),
                files=files,
                loader=loader,
                contract=contract,
                deadline=self._settings.deadline,
                seed=self._settings.seed,
                engine=self._settings.engine,
            )
        self._node.user_properties.append(("dataloader_faults_verdict", str(result.verdict)))
        _tell(result, self._settings.not_reproduced)
        return result

    def _home(self) -> str | None:
        """The folder that pytest made for this item alone, if the test or a fixture asked."""
        folder = getattr(self._node, "funcargs", {}).get("tmp_path")
        return folder and str(folder)

    def _options(self) -> str:
        """Those that were given, and the engine where it was only chosen for want of another."""
        given = command_line(self._node.config)
        if self._settings.engine == "auto" and choose("auto") == "python":
            given = f"{given} --dataloader-faults-engine=python".lstrip()
        return given

    def sweep(
        self,
        make_dataset: Callable[[], Any],
        *,
        files: Files | None = None,
        loader: Mapping[str, Any] | None = None,
        contract: Contract | None = None,
        **options: Any,
    ) -> SweepResult:
        """Let the N-th operation fail, for each N. Fails the test, or returns; see ``sweep``.

        *options*: ``faults``, ``start_at`` and ``max_trials``.
        """
        __tracebackhide__ = True
        self._called = True
        if not self._is_first:
            pytest.skip(_ONCE)
        try:
            with reported_once(self._node):
                swept = sweep(
                    make_dataset,
                    files=files,
                    loader=loader,
                    contract=contract,
                    deadline=self._settings.deadline,
                    seed=self._settings.seed,
                    engine=self._settings.engine,
                    **options,
                )
        except CheckFailedError as error:
            convicted = str(error)
        else:
            print(swept.table())  # noqa: T201  # pytest shows it with -s, or -rP
            return swept
        pytest.fail(convicted, pytrace=False)  # Not above: the report would show both errors.

    def require_called(self) -> None:
        """A check that was never asked has shown nothing."""
        if not self._called:
            message = "fault_check was never called: call fault_check(lambda: MyDataset(...))"
            pytest.fail(message, pytrace=False)


def _from_here(node: pytest.Item) -> str:
    """The node id for a command that is given where this one was."""
    path = os.path.relpath(node.path, node.config.invocation_params.dir)
    return f"{path}::{node.nodeid.partition('::')[2]}"


def _tell(result: CheckResult, not_reproduced: str) -> None:
    """Turn *result* into what pytest understands."""
    __tracebackhide__ = True
    if not result.applies:
        pytest.skip(result.explanation)
    if not result.reproduced and not_reproduced == "warn":
        warnings.warn(result.explanation, NotReproducedWarning, stacklevel=3)
    elif result.failed or not result.reproduced:
        pytest.fail(result.explanation, pytrace=False)
    if result.expected:
        pytest.xfail(f"{result.expected} ({result.verdict})")
