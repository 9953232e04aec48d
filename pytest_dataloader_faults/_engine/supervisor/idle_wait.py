"""Answer the main process once workers have nothing to do [runs in the supervisor]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from pytest_dataloader_faults._engine import protocol
from pytest_dataloader_faults._engine.supervisor.events import Timers
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState


class IdleWait:
    """Answers the main process when workers have done what they were sent, or hang.

    Attributes:
        request: The request without an answer; None if it was answered.
    """

    def __init__(self, timers: Timers) -> None:
        self.request: protocol.WaitUntilIdle | None = None
        self._timers = timers

    def answer(self, workers: Sequence[WorkerState]) -> protocol.Idle | None:
        """The answer, if it is time for it."""
        request = self.request
        if request is None:
            return None
        idle = _all_idle(workers, request)
        if idle is not None:
            self.request = None
        elif request.patience is not None and _may_wait_for_hung(workers, request):
            self.request = request._replace(patience=None)
            self._timers.after(request.patience, partial(self._stop, self.request))
        return idle

    def _stop(self, request: protocol.WaitUntilIdle) -> None:
        """Stop waiting for workers if *request* is not answered yet."""
        if self.request is request:
            self.request = request._replace(sent=())


def _all_idle(
    workers: Iterable[WorkerState], request: protocol.WaitUntilIdle
) -> protocol.Idle | None:
    """The answer to *request*, once each of *workers* has made the batches that it was sent."""
    of_loader = [each for each in workers if each.loader == request.loader]
    latest = {each.id: each for each in of_loader}
    for worker, count in request.sent:
        if worker not in latest or not latest[worker].has_done(request.epoch, count):
            return None
    dead = [each for each in of_loader if not each.alive]
    ended = [(each.id, each.ended) for each in dead if each.id is not None]
    early, in_time = ([id_ for id_, is_end in ended if is_end is end] for end in (False, True))
    return protocol.Idle(early, in_time)


def _may_wait_for_hung(workers: Iterable[WorkerState], request: protocol.WaitUntilIdle) -> bool:
    """Whether one of *workers* hangs, and each of the others has started a batch."""
    latest = {each.id: each for each in workers if each.loader == request.loader}
    awaited_workers = [latest.get(worker) for worker, count in request.sent if count]
    have_begun = all(
        each and (each.hung or each.position[0] == request.epoch) for each in awaited_workers
    )
    return have_begun and any(each.alive and each.hung for each in latest.values())
