"""The fixture ``dataloader_faults``: a FaultInjector with the settings of its test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader_faults.exceptions import CheckFailedError
from pytest_dataloader_faults.injection import FaultInjector
from pytest_dataloader_faults.plugin._environment import reported_once
from pytest_dataloader_faults.plugin._options import Settings

if TYPE_CHECKING:
    from pytest_dataloader_faults._trial.factory import DatasetFactory
    from pytest_dataloader_faults.outcomes import SweepResult
    from pytest_dataloader_faults.search import Exploration


class PytestFaultInjector(FaultInjector):
    """Faults for one test. An argument of a call goes before the test's settings."""

    def __init__(self, settings: Settings, node: pytest.Item) -> None:
        super().__init__(**settings.for_trials())
        self._settings = settings
        self._node = node
        self._statistics: list[str] = []

    def sweep(self, make_dataset: DatasetFactory, **options: Any) -> SweepResult:
        """Let the N-th operation fail, for each N; see ``sweep``. Prints the table.

        Fails the test at the first step that does not pass.
        """
        from pytest_dataloader_faults.battery import sweep

        __tracebackhide__ = True
        options = {**self._settings.for_trials(), **options}
        try:
            with reported_once(self._node):
                result = sweep(make_dataset, **options)
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
        options = {**self._for_a_search(), **options}
        return explore(make_dataset, report=self._record_statistics, **options)

    def explore_lifecycle(self, make_dataset: DatasetFactory, **options: Any) -> Exploration:
        """Search for steps in a loader's lifecycle that break it; see ``explore_lifecycle``."""
        from pytest_dataloader_faults.search import explore_lifecycle

        __tracebackhide__ = True
        options = {**self._for_a_search(), **options}
        return explore_lifecycle(make_dataset, report=self._record_statistics, **options)

    def _for_a_search(self) -> dict[str, Any]:
        return {**self._settings.for_trials(), "seed": self._settings.search_seed}

    def _record_statistics(self, statistics: str) -> None:
        """Keep *statistics* where Hypothesis' pytest plugin looks for them."""
        self._statistics.append(f"{self._node.nodeid}:\n\n{statistics}")
        self._node.hypothesis_statistics = "\n".join(self._statistics)  # type: ignore[attr-defined]
