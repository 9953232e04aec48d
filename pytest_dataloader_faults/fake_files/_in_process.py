"""Run a dataset over fake files under faults in this process, without a loader or a worker.

Some facts about the hooks of the faults. To put them in place, and to take them out, one has to
look through every module that is loaded, which takes ten times as long as a run. So they stay in
place between runs. They must not be there when pyfakefs takes its own patches out (its pause), or
when a forked process arms faults of its own.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._engine.plan import Plan, WorkerFaults
from pytest_dataloader_faults._engine.policy import FaultPolicy
from pytest_dataloader_faults._engine.python.pyfakefs import patcher
from pytest_dataloader_faults._engine.python.pyfakefs.faults import install
from pytest_dataloader_faults._engine.python.pyfakefs.in_worker import patch_every_module
from pytest_dataloader_faults._engine.scope import FAKE_FILES_TAKE_WRITES, require_faults
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import Fault, HungRead, has_files
from pytest_dataloader_faults.faults._writes import is_of_writing


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


class InProcessRuns:
    """The hooks of the faults, which the first run puts in place for all runs."""

    def __init__(self) -> None:
        self._hooks = contextlib.ExitStack()
        self._policy: _CurrentPolicy | None = None
        _all_runs.add(self)

    def run(
        self, make_dataset: Callable[[], Any], faults: tuple[Fault, ...], seed: int
    ) -> InProcessResult:
        """Read each sample of the dataset under *faults*, until one raises an error."""
        _arguments.check(make_dataset=make_dataset, seed=seed)
        require_faults(faults)
        if wrong := [each for each in faults if not has_files(each) or isinstance(each, HungRead)]:
            message = f"{wrong[0]!r} needs a worker process, and run() starts none. Use run_trial()"
            raise InvalidArgumentError(message)
        if writing := [each for each in faults if is_of_writing(each)]:
            raise InvalidArgumentError(f"{writing[0]!r}: {FAKE_FILES_TAKE_WRITES}")
        from pytest_dataloader_faults._trial.factory import bound
        from pytest_dataloader_faults._trial.loaders import kind_of

        make_dataset, _ = bound(make_dataset)  # It refuses a factory that takes a folder.
        policy = self._policy or self._put_hooks_in_place()
        counters = WorkerFaults(Plan(faults, seed=seed), 0)
        dataset = make_dataset()
        policy.current = FaultPolicy(counters, 0, os.getpid())
        samples: list[Any] = []
        error = None
        try:
            by_index = hasattr(type(dataset), "__getitem__") and kind_of(dataset) == "map"
            found = (dataset[i] for i in range(len(dataset))) if by_index else iter(dataset)
            samples.extend(found)
        except Exception as raised:  # noqa: BLE001  # the error is the finding
            error = raised
        finally:
            policy.current = _idle()
        return InProcessResult(tuple(samples), error, sum(each.fired for each in counters.all))

    def _put_hooks_in_place(self) -> _CurrentPolicy:
        fakes = patcher()
        if fakes is None:
            message = "there are no fake files now: call run() while they are not paused"
            raise InvalidArgumentError(message)
        policy = _CurrentPolicy()
        with contextlib.ExitStack() as hooks:
            patch_every_module(fakes, hooks)
            asked = cast("FaultPolicy", policy)
            hooks.callback(install(asked, NoWaitClock(), fakes, scarce=False))
            self._hooks = hooks.pop_all()
        self._policy = policy
        return policy

    def close(self) -> None:
        """Take the hooks out; the next run puts them in place again."""
        self._policy = None
        self._hooks.close()


_all_runs: weakref.WeakSet[InProcessRuns] = weakref.WeakSet()


def _close_all() -> None:
    for each in _all_runs:
        each.close()


os.register_at_fork(after_in_child=_close_all)


def _idle() -> FaultPolicy:
    policy = FaultPolicy(WorkerFaults(Plan(()), 0), 0, os.getpid())
    policy.armed = False
    return policy


class _CurrentPolicy:
    """The policy of the run that is under way. Between runs it lets everything pass."""

    def __init__(self) -> None:
        self.current = _idle()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)


class NoWaitClock:
    """Counts faults of time without the time."""

    def sleep(self, seconds: float) -> None:
        """Go on at once."""

    def hang(self) -> None:
        """Go on at once; ``run`` refuses ``HungRead`` beforehand."""
