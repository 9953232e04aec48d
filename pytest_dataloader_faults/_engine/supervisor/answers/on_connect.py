"""The answer to connect(2) of a TCP socket [runs in the supervisor]."""

from __future__ import annotations

from pytest_dataloader_faults._engine.kernel import connections
from pytest_dataloader_faults._engine.kernel.identity import INVISIBLE
from pytest_dataloader_faults._engine.kernel.remote_process import Syscall
from pytest_dataloader_faults._engine.policy.actions import CONNECT, Fail, Operation
from pytest_dataloader_faults._engine.supervisor.answers.relay import Relay
from pytest_dataloader_faults._engine.supervisor.worker_state import WorkerState


def on_connect(worker: WorkerState, call: Syscall, relay: Relay) -> bool:
    """Answer a connect(2), or have *relay* do it; False if the kernel is to make it."""
    try:
        peer = connections.peer_of(call)
    except PermissionError:
        worker.policy.unobserved[f"connect {INVISIBLE}"] += 1
        return False
    if peer is None or connections.is_repeated(call):
        return False
    for action in worker.policy.connected(Operation(CONNECT, peer.path, call.pid)):
        if isinstance(action, Fail):
            worker.listener.fail(call, action.errno)
            return True
    if not worker.faults.needs_answers_of(peer.path):
        return False
    if not connections.is_of_this_network(call.pid):
        worker.policy.unobserved["connect in another network namespace"] += 1
        return False
    relay.connect(worker, call, peer)
    return True
