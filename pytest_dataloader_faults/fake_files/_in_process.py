"""A dataset over fake files under faults in this very process: no loader, no worker, no waiting."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pytest_dataloader_faults._engine.plan import Plan, WorkerFaults
from pytest_dataloader_faults._engine.policy import FaultPolicy
from pytest_dataloader_faults._engine.python.pyfakefs import patcher
from pytest_dataloader_faults._engine.python.pyfakefs.faults import install
from pytest_dataloader_faults._engine.python.pyfakefs.in_worker import patch_every_module
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import Fault, HungRead, has_files

if TYPE_CHECKING:
    from typing_extensions import Self


__all__ = ("InProcessResult", "Rehearsals")


@dataclass(frozen=True)
class InProcessResult:
    """What came of one pass over a dataset.

    Attributes:
        samples: Those that came before the error, in order.
        exception: The error, or None.
        fired: How often the faults happened.

    """

    samples: tuple[Any, ...]
    exception: Exception | None
    fired: int


class Rehearsals:
    """Faults of fake files, without a loader: for thousands of schedules where a trial takes long.

    Enter it in a ``FakeDatasetFs``. Nothing is judged, and what only a loader or a worker can do to
    a dataset does not happen.
    """

    def __init__(self) -> None:
        self._scope = contextlib.ExitStack()
        self._decide = _Current()

    def __enter__(self) -> Self:
        """Put the faults' hooks in place, once for all runs."""
        current = patcher()
        if current is None:
            message = "there are no fake files: enter Rehearsals within a FakeDatasetFs"
            raise InvalidArgumentError(message)
        with contextlib.ExitStack() as scope:
            patch_every_module(current, scope)
            scope.callback(
                install(cast("FaultPolicy", self._decide), NoWaitClock(), current, scarce=False)
            )
            self._scope = scope.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        """Take them out again."""
        self._scope.close()

    def run(
        self, make_dataset: Callable[[], Any], *faults: Fault, seed: int = 0
    ) -> InProcessResult:
        """Read each sample of a map-style dataset once, or an iterable one to its end."""
        _require_file_faults(faults)
        tallies = WorkerFaults(Plan(faults, seed=seed), 0)
        dataset = make_dataset()
        self._decide.schedule = FaultPolicy(tallies, 0, os.getpid())
        samples: list[Any] = []
        error = None
        try:
            samples.extend(_samples(dataset))
        except Exception as raised:  # noqa: BLE001  # the error is the finding
            error = raised
        finally:
            self._decide.schedule = _idle()
        return InProcessResult(tuple(samples), error, sum(each.fired for each in tallies.all))


def _samples(dataset: Any) -> Any:
    if hasattr(dataset, "__getitem__"):
        return (dataset[index] for index in range(len(dataset)))
    return iter(dataset)


def _require_file_faults(faults: tuple[Fault, ...]) -> None:
    for fault in faults:
        if not has_files(fault) or isinstance(fault, HungRead):
            message = f"{fault!r} takes a worker, and a rehearsal has none. Use run_trial()"
            raise InvalidArgumentError(message)


def _idle() -> FaultPolicy:
    schedule = FaultPolicy(WorkerFaults(Plan(()), 0), 0, os.getpid())
    schedule.armed = False
    return schedule


class _Current:
    """Decides as the schedule of the run that is under way."""

    def __init__(self) -> None:
        self.schedule = _idle()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.schedule, name)


class NoWaitClock:
    """Waits not at all."""

    def sleep(self, seconds: float) -> None:
        """Go on."""

    def hang(self) -> None:
        """Go on; such a fault is refused before."""
