"""The fixture ``fault_injector``: a FaultInjector with the settings of its test."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.exceptions import CheckFailedError
from pytest_dataloader_faults.faults import KINDS
from pytest_dataloader_faults.injection import FaultInjector
from pytest_dataloader_faults.plugin._failures import report_shortage_once
from pytest_dataloader_faults.plugin._options import ItemOptions

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.factory import DatasetFactory
    from pytest_dataloader_faults.faults import Fault
    from pytest_dataloader_faults.injection import ArmedFaults
    from pytest_dataloader_faults.outcomes import Outcome, SweepResult
    from pytest_dataloader_faults.search import Exploration


class PytestFaultInjector(FaultInjector):
    """Faults for one test. Arguments of a call take precedence over the test's settings."""

    def __init__(self, options: ItemOptions, node: pytest.Item) -> None:
        super().__init__()
        self._settings = Settings(**{**options.settings, "samples": None})
        self._explicit = options.explicit
        self._node = node
        self._statistics: list[str] = []
        self._requested: list[str] = []
        self._used = False

    def make_arm_function(self, kind: str, example: str) -> Callable[..., ArmedFaults]:
        """The value of a fixture of one fault: a function that arms it; *example*: such a call."""
        self._requested.append(example)

        def arm(*args: Any, **kwargs: Any) -> ArmedFaults:
            __tracebackhide__ = True
            self._used = True
            return self.inject(KINDS[kind](*args, **kwargs))

        return arm

    def require_used(self) -> None:
        """Fail a test that requested fixtures of one fault, but armed none."""
        if self._requested and not self._used:
            names = ", ".join(each.partition("(")[0] for each in self._requested)
            advice = f"call it, as in {self._requested[0]}, or remove it from the test's arguments"
            pytest.fail(f"{names} was never called, so no fault was armed: {advice}", pytrace=False)

    def inject(self, *faults: Fault) -> ArmedFaults:
        """Arm *faults* for the workers of the first loader; see ``inject``."""
        self._used = True
        return super().inject(*faults)

    def run(self, make_dataset: DatasetFactory, *faults: Fault, **options: Any) -> Outcome:
        """Run one trial; see ``FaultInjector.run``."""
        self._used = True
        return super().run(make_dataset, *faults, **options)

    def sweep(self, make_dataset: DatasetFactory, **options: Any) -> SweepResult:
        """Fail each operation in turn; see ``sweep``. Prints the table.

        Fails the test at the first violation.
        """
        from pytest_dataloader_faults.battery.sweeping import sweep

        __tracebackhide__ = True
        self._used = True
        try:
            with report_shortage_once(self._node):
                result = sweep(make_dataset, **self._with_settings(sweep, options))
        except CheckFailedError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        print(result.table())  # noqa: T201  # pytest shows it with -s, or -rP
        return result

    def explore(self, make_dataset: DatasetFactory, **options: Any) -> Exploration:
        """Search for faults under which the dataset fails; see ``explore``.

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
        return {
            **{name: self._explicit[name] for name in self._explicit if name in takes},
            **options,
        }

    def _record_statistics(self, statistics: str) -> None:
        """Store *statistics* where Hypothesis' pytest plugin reads them."""
        self._statistics.append(f"{self._node.nodeid}:\n\n{statistics}")
        self._node.hypothesis_statistics = "\n".join(self._statistics)  # type: ignore[attr-defined]
