"""Take the reference in a worker, for datasets that cannot be read elsewhere [in a trial].

Some facts about such datasets. A ``worker_init_fn`` may open the handle that samples are read from,
as many recipes for HDF5 do, and a dataset may refuse to be read outside of a worker.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from torch.utils.data import DataLoader

from pytest_dataloader_faults._engine.worker.arm import end_with_parent
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.loaders import end_workers
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import Reference


class _TakeInWorker:
    """A ``worker_init_fn`` that runs the user's own, sends what *take* returns, and exits."""

    def __init__(
        self, take: Callable[[], Reference], then: Callable[[int], object] | None, to: Connection
    ) -> None:
        self._take, self._then, self._to = take, then, to

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        end_with_parent(at_once=True)
        try:
            with loaders.errors_of_dataset("worker_init_fn"):
                if self._then is not None:
                    self._then(worker)
            found: Reference | str = self._take()
        except UnusableDatasetError as error:
            found = str(error)
        self._to.send(found)
        os._exit(0)


def take_in_worker(loader: DataLoader[Any], take: Callable[[], Reference]) -> Reference | None:
    """What *take* returns in a worker of *loader*; None if the worker ended without a word.

    Raises:
        UnusableDatasetError: The dataset cannot be read in a worker either.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    task = _TakeInWorker(take, loader.worker_init_fn, sender)
    how: dict[str, Any] = {"num_workers": 1, "worker_init_fn": task, "batch_size": None}
    if loaders.kind_of(loader.dataset) == "map":
        how["sampler"] = [0]
    iterator = iter(DataLoader(loader.dataset, multiprocessing_context="fork", **how))
    sender.close()
    try:
        found: Reference | str = receiver.recv()
    except EOFError:
        return None
    finally:
        receiver.close()
        with contextlib.suppress(RuntimeError):  # It says that the worker has exited.
            end_workers(iterator)
    if isinstance(found, str):
        raise UnusableDatasetError(found)
    return replace(found, is_of_worker=True)
