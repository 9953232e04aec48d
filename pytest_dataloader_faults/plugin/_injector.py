"""What the fixture ``dataloader_faults`` gives: the injector, and a search that tells pytest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults.injection import FaultInjector
from pytest_dataloader_faults.plugin._options import Settings

if TYPE_CHECKING:
    import pytest

    from pytest_dataloader_faults.search._explore import Exploration
    from pytest_dataloader_faults.search._lifecycle import LifeExploration


class PytestFaultInjector(FaultInjector):
    """Faults for one test, with the settings that hold for it."""

    __test__ = False

    def __init__(self, given: Settings, node: pytest.Item) -> None:
        super().__init__(engine=given.engine, deadline=given.deadline, seed=given.seed)
        self._node = node
        self._told: list[str] = []

    def explore(self, make_dataset: Callable[[], Any], **options: Any) -> Exploration:
        """``exploring.explore`` with the test's engine.

        ``--hypothesis-show-statistics`` shows what it has met, as for tests under ``@given``.
        """
        from pytest_dataloader_faults.search._explore import explore

        __tracebackhide__ = True
        options = {"engine": self._options["engine"], **options}
        return explore(make_dataset, report=self._tell, **options)

    def explore_lifecycle(self, make_dataset: Callable[[], Any], **options: Any) -> LifeExploration:
        """``living.explore_lifecycle`` with the test's engine; its statistics are shown, too."""
        from pytest_dataloader_faults.search._lifecycle import explore_lifecycle

        __tracebackhide__ = True
        options = {"engine": self._options["engine"], **options}
        return explore_lifecycle(make_dataset, report=self._tell, **options)

    def _tell(self, statistics: str) -> None:
        self._told.append(f"{self._node.nodeid}:\n\n{statistics}")
        self._node.hypothesis_statistics = "\n".join(self._told)  # type: ignore[attr-defined]
