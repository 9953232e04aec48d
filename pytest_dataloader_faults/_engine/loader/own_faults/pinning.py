"""Faults of the thread that pins batches [runs where the loader does].

Some facts about that thread (torch/utils/data/_utils/pin_memory.py, ``_pin_memory_loop``). It
takes a batch from the workers' queue, pins it, and passes it on. An error while it pins is passed
on in the batch's place. An error while it takes one, such as EMFILE, ends it: the error is
printed, and the loader notices at its next check, after 5 s, and only says that the thread
exited; with a ``timeout`` shorter than that, it says that it timed out. The thread exists only
with an accelerator and workers.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch._utils import ExceptionWrapper
from torch.utils.data._utils import pin_memory
from torch.utils.data._utils.worker import _IterableDatasetStopIteration

from pytest_dataloader_faults._engine.plan import FaultPlan, fresh_counters
from pytest_dataloader_faults.faults import PinMemoryThreadDeath
from pytest_dataloader_faults.faults.base import FiringKind

_NOT_PINNED = (ExceptionWrapper, _IterableDatasetStopIteration, type(None))


class PinMemoryFaults:
    """What the schedule does to the pin-memory threads that start in this process."""

    def __init__(self, plan: FaultPlan, on_error: Callable[[Exception], None]) -> None:
        counters = fresh_counters(plan, None)
        self.on_error = on_error
        self.counters = [each for each in counters if isinstance(each.fault, PinMemoryThreadDeath)]

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Threads that start in this scope take their batches from a ``_FaultyQueue``."""
        original: Any = pin_memory._pin_memory_loop

        def loop(taken_from: Any, *arguments: Any) -> None:
            original(_FaultyQueue(taken_from, self), *arguments)

        replaced: Any = loop
        pin_memory._pin_memory_loop = replaced
        try:
            yield
        finally:
            pin_memory._pin_memory_loop = original


class _FaultyQueue:
    """The workers' queue, as one pin-memory thread sees it."""

    def __init__(self, batches: Any, faults: PinMemoryFaults) -> None:
        self._batches = batches
        self._faults = faults
        self._taken = 0

    def get(self, timeout: float) -> Any:
        number, batch = self._take(timeout)
        if isinstance(batch, _NOT_PINNED):
            return number, batch
        self._taken += 1
        for counter in self._faults.counters:
            counter.matched += 1
            fault = counter.fault
            if self._taken == fault.at:
                counter.fire_here(fault.stage, FiringKind.THREAD)
                if fault.stage == "take":
                    raise RuntimeError(_TEXT)
                batch = _Unpinnable()
        return number, batch

    def _take(self, timeout: float) -> Any:
        try:
            return self._batches.get(timeout=timeout)
        except queue.Empty:
            raise
        except Exception as error:  # It ends the thread, and is only printed.
            self._faults.on_error(error)
            raise


class _Unpinnable:
    def pin_memory(self) -> NoReturn:
        raise RuntimeError(_TEXT)


_TEXT = "the pin-memory thread fails here: PinMemoryThreadDeath"
