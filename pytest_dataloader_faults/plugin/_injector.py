"""The fixture ``dataloader_faults``: a FaultInjector with the settings of its test."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.exceptions import CheckFailedError
from pytest_dataloader_faults.faults import KINDS
from pytest_dataloader_faults.injection import FaultInjector
from pytest_dataloader_faults.plugin._failures import shortage_reported_once
from pytest_dataloader_faults.plugin._options import ItemOptions

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.factory import DatasetFactory
    from pytest_dataloader_faults.faults import Fault
    from pytest_dataloader_faults.injection import ArmedFaults
    from pytest_dataloader_faults.outcomes import Outcome, SweepResult
    from pytest_dataloader_faults.search import Exploration


class PytestFaultInjector(FaultInjector):
    """Faults for one test. An argument of a call goes before the test's settings."""

    def __init__(self, options: ItemOptions, node: pytest.Item) -> None:
        super().__init__()
        self._settings = Settings(**{**options.settings, "samples": None})
        self._given = options.given
        self._node = node
        self._statistics: list[str] = []
        self._requested: list[str] = []
        self._used = False

    def arming(self, kind: str, example: str) -> Callable[..., ArmedFaults]:
        """The value of a fixture of one fault: a function that arms it; *example*: such a call."""
        self._requested.append(example)

        def arm(*args: Any, **kwargs: Any) -> ArmedFaults:
            __tracebackhide__ = True
            self._used = True
            return self.inject(KINDS[kind](*args, **kwargs))

        return arm

    def require_used(self) -> None:
        """Fail a test that requested fixtures of one fault and armed none: it shows nothing."""
        if self._requested and not self._used:
            names = ", ".join(each.partition("(")[0] for each in self._requested)
            advice = f"call it, as in {self._requested[0]}, or do not request it"
            pytest.fail(f"{names} was never called, so no fault was armed: {advice}", pytrace=False)

    def inject(self, *faults: Fault) -> ArmedFaults:
        """Add *faults* to those that the first loader's workers will meet; see ``inject``."""
        self._used = True
        return super().inject(*faults)

    def run(
        self, make_dataset: DatasetFactory, *faults: Fault, from_start: bool = False, **loader: Any
    ) -> Outcome:
        """Run one trial; see ``run_trial``. *loader*: options of the ``DataLoader``."""
        self._used = True
        return super().run(make_dataset, *faults, from_start=from_start, **loader)

    def sweep(self, make_dataset: DatasetFactory, **options: Any) -> SweepResult:
        """Let the N-th operation fail, for each N; see ``sweep``. Prints the table.

        Fails the test at the first step that does not pass.
        """
        from pytest_dataloader_faults.battery.sweeping import sweep

        __tracebackhide__ = True
        self._used = True
        try:
            with shortage_reported_once(self._node):
                result = sweep(make_dataset, **self._with_settings(sweep, options))
        except CheckFailedError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        print(result.table())  # noqa: T201  # pytest shows it with -s, or -rP
        return result

    def explore(self, make_dataset: DatasetFactory, **options: Any) -> Exploration:
        """Search for a schedule of faults that breaks the dataset; see ``explore``.

        ``--hypothesis-show-statistics`` shows the statistics, as it does for ``@given``.
        """
        from pytest_dataloader_faults.search import explore

        __tracebackhide__ = True
        self._used = True
        options = self._with_settings(explore, options)
        return explore(make_dataset, report=self._record_statistics, **options)

    def _with_settings(
        self, function: Callable[..., Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        """*options* of a call of *function*, and the settings of the test that it takes."""
        takes = inspect.signature(function).parameters
        return {**{name: self._given[name] for name in self._given if name in takes}, **options}

    def _record_statistics(self, statistics: str) -> None:
        """Keep *statistics* where Hypothesis' pytest plugin looks for them."""
        self._statistics.append(f"{self._node.nodeid}:\n\n{statistics}")
        self._node.hypothesis_statistics = "\n".join(self._statistics)  # type: ignore[attr-defined]
