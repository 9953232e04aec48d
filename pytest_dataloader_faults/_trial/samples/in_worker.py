"""Take the reference in a worker, for datasets that cannot be read elsewhere [in a trial].

Some facts about such datasets. A ``worker_init_fn`` may open the handle that samples are read from,
as many recipes for HDF5 do, and a dataset may refuse to be read outside of a worker. A stream may
also refuse any number of workers but the one that it was made for, as energon's streams do.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from torch.utils.data import DataLoader

from pytest_dataloader_faults._engine.worker.arm import end_with_parent
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.loaders import EmptyDatasetError, end_workers
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes import Reference
from pytest_dataloader_faults.outcomes.reference import join_references

_Reply: TypeAlias = Reference | UnusableDatasetError | None
"""The reference, or why there is none; None if the worker ended without a message."""


class _TakeInWorker:
    """A ``worker_init_fn`` that runs the user's own, sends what *take* returns, and exits."""

    def __init__(
        self,
        take: Callable[[], Reference],
        init_fn: Callable[[int], object] | None,
        senders: Sequence[Connection],
    ) -> None:
        self._take, self._then, self._senders = take, init_fn, senders

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first sample."""
        end_with_parent(at_once=True)
        for sender in self._senders:
            if sender is not self._senders[worker]:
                sender.close()
        try:
            with loaders.report_dataset_errors("worker_init_fn"):
                if self._then is not None:
                    self._then(worker)
            reply: Reference | UnusableDatasetError = self._take()
        except UnusableDatasetError as error:
            reply = error
        self._senders[worker].send(reply)
        os._exit(0)


def take_in_worker(loader: DataLoader[Any], take: Callable[[], Reference]) -> Reference | None:
    """What *take* returns in a worker of *loader*; None if the worker ended without a message.

    A stream is read in one worker, which has all of it, or else in as many as *loader* has.

    Raises:
        UnusableDatasetError: The dataset cannot be read in workers either.
    """
    is_stream = loaders.kind_of(loaders.dataset_of(loader)) == "iterable"
    (reply,) = _take_in_workers(loader, take, 1)
    if isinstance(reply, UnusableDatasetError) and is_stream and loader.num_workers > 1:
        several = _reply_of_all(_take_in_workers(loader, take, loader.num_workers))
        if isinstance(several, Reference):
            return replace(several, is_of_worker=True, is_of_all_workers=True)
    if isinstance(reply, UnusableDatasetError):
        raise reply
    return reply and replace(reply, is_of_worker=True)


def _take_in_workers(
    loader: DataLoader[Any], take: Callable[[], Reference], count: int
) -> list[_Reply]:
    """What each of *count* workers replies."""
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(count)]
    receivers, senders = zip(*pipes, strict=True)
    task = _TakeInWorker(take, loader.worker_init_fn, senders)
    options: dict[str, Any] = {"num_workers": count, "worker_init_fn": task, "batch_size": None}
    if loaders.kind_of(loaders.dataset_of(loader)) == "map":
        options["sampler"] = [0]
    iterator = iter(
        DataLoader(loaders.dataset_of(loader), multiprocessing_context="fork", **options)
    )
    for sender in senders:
        sender.close()
    try:
        return [_receive_reply(receiver) for receiver in receivers]
    finally:
        for receiver in receivers:
            receiver.close()
        with contextlib.suppress(RuntimeError):  # The error says that workers have exited.
            end_workers(iterator)


def _receive_reply(receiver: Connection) -> _Reply:
    with contextlib.suppress(EOFError):
        reply: _Reply = receiver.recv()
        return reply
    return None


def _reply_of_all(replies: Sequence[_Reply]) -> _Reply:
    """What all workers together reply; some may not have a part of the stream."""
    references = [each for each in replies if isinstance(each, Reference)]
    failed = [each for each in replies if not isinstance(each, (Reference, EmptyDatasetError))]
    if failed or not references:
        return failed[0] if failed else replies[0]
    return join_references(references)
