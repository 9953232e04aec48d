"""Take the reference in a worker, for datasets that cannot be read elsewhere [in a trial].

Some facts about such datasets. A ``worker_init_fn`` may open the handle that samples are read from,
as many recipes for HDF5 do, and a dataset may refuse to be read outside of a worker. A stream may
also refuse any number of workers but the one that it was made for, as energon's streams do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind

from pytest_dataloader_faults._engine.worker.arm import end_with_parent
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.loaders import EmptyDatasetError
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import Reference
from pytest_dataloader_faults.outcomes.reference import join_references

_Reply: TypeAlias = Reference | UnusableDatasetError
"""The reference, or why there is none."""


class _TakeInWorker:
    """A ``worker_init_fn`` that runs the user's own, and then has the worker make one batch.

    That is what *take* returns.
    """

    def __init__(
        self, take: Callable[[], Reference], init_fn: Callable[[int], object] | None
    ) -> None:
        self._take, self._then = take, init_fn

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its fetcher."""
        end_with_parent(at_once=True)
        reply = self._reply(worker)
        _DatasetKind.create_fetcher = lambda *_: _OneBatch(reply)  # type: ignore[method-assign]

    def _reply(self, worker: int) -> _Reply:
        try:
            with loaders.report_dataset_errors("worker_init_fn"):
                if self._then is not None:
                    self._then(worker)
            return self._take()
        except UnusableDatasetError as error:
            return error


class _OneBatch:
    """A fetcher that makes one batch, and then is at the end."""

    def __init__(self, batch: Any) -> None:
        self._batches = [batch]

    def fetch(self, _: Any) -> Any:
        if not self._batches:
            raise StopIteration
        return self._batches.pop()


def take_in_worker(loader: DataLoader[Any], take: Callable[[], Reference]) -> Reference | None:
    """What *take* returns in a worker of *loader*; None if the worker died.

    A stream is read in one worker, which has all of it, or else in as many as *loader* has.

    Raises:
        UnusableDatasetError: The dataset cannot be read in workers either.
    """
    is_stream = loaders.kind_of(loaders.dataset_of(loader)) == "iterable"
    replies = _take_in_workers(loader, take, 1)
    if any(isinstance(each, UnusableDatasetError) for each in replies) and is_stream:
        several = _take_in_workers(loader, take, loader.num_workers)
        references = [each for each in several if isinstance(each, Reference)]
        # Some may not have a part of the stream.
        others = (each for each in several if not isinstance(each, (Reference, EmptyDatasetError)))
        if references and next(others, None) is None:
            joined = join_references(references)
            return replace(joined, is_of_worker=True, is_of_all_workers=True)
    for reply in replies:
        if isinstance(reply, UnusableDatasetError):
            raise reply
        return replace(reply, is_of_worker=True)
    return None


def _take_in_workers(
    loader: DataLoader[Any], take: Callable[[], Reference], count: int
) -> list[_Reply]:
    """What each of *count* workers replies; nothing if one of them died."""
    dataset = loaders.dataset_of(loader)
    options: dict[str, Any] = {} if loaders.kind_of(dataset) == "iterable" else {"sampler": [0]}
    task = _TakeInWorker(take, loader.worker_init_fn)
    try:
        return list(
            DataLoader(
                dataset,
                batch_size=None,
                num_workers=count,
                worker_init_fn=task,
                multiprocessing_context="fork",
                **options,
            )
        )
    except RuntimeError:  # A worker has exited.
        return []
