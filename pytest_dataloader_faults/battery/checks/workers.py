"""Checks of workers that die. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader_faults.battery.checks._base import Scenario, check
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import WorkerKilled


@check("worker-killed", "handles a worker that dies")
def worker_killed(workload: Workload) -> Iterator[Scenario]:
    """Between two operations, inside a read, and inside a write.

    Where in the epoch it dies makes no difference to the dataset. Whether it holds a lock, or has
    written half a file, does.
    """
    yield Scenario(faults=(WorkerKilled(),), title="in its first batch")
    if workload.readers:
        # In its first batch: a reader may hold the GIL, and then the worker could not send the
        # batches that it made before.
        fault = WorkerKilled(reading=workload.read.path, worker=min(workload.readers))
        yield Scenario(faults=(fault,), title="while it reads")
    if workload.writers:
        fault = WorkerKilled(writing=workload.written.path, worker=min(workload.writers))
        yield Scenario(faults=(fault,), title="while it writes")


@check("worker-killed-sending", "handles a worker that dies while it sends a batch")
def worker_killed_sending(workload: Workload) -> Iterator[Scenario]:
    """Apart from the others, because its failures are usually those of a wrapper around torch."""
    if workload.fault_free.loader.start_method == "forkserver":
        raise NotApplicable(
            "its workers come from a fork server. If one of them dies within a message, torch waits"
            " for the rest of it forever, whatever the dataset does: the worker is not a child of"
            " the main process, so no signal interrupts read(2)"
        )
    yield Scenario(faults=(WorkerKilled(sending=True),))


WORKERS = (worker_killed, worker_killed_sending)
