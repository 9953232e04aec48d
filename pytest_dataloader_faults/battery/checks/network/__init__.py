"""Checks of what a dataset does if a server refuses, breaks off or fails to answer. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.battery.checks._base import PATIENCE, Check, Scenario, Scenarios
from pytest_dataloader_faults.battery.checks.network.rules import find_wait_without_timeout
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults.addresses import host_of
from pytest_dataloader_faults.faults.http import TLS_CONNECTION, HttpError
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes.text import join_some
from pytest_dataloader_faults.steps import Epoch, arm_workers

if TYPE_CHECKING:
    from pytest_dataloader_faults._settings.jobs import Watcher
    from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun

_WITHIN = 1024
"""Most HTTP headers are shorter, so this many bytes end within the content."""
_NO_RESPONSE = "no server responded on a connection that the engine can see"
_ENCRYPTED = (
    "its workers use TLS connections, whose requests are encrypted. Test the dataset with a local"
    " server that speaks plain HTTP"
)
_NO_REQUEST = "its workers send no HTTP/1.x request on a connection that the engine can see"
_FEW_RESPONSES = "its workers receive too few responses to have samples before a failing one"
_FILE_CHECKS_ONLY = "file checks do not cover data from these connections"


def note_on_connections(run: FaultFreeRun) -> tuple[str, ...]:
    """The hosts that data came from, because file checks do not cover that data."""
    workers = run.working.workers
    # The server of a test may have a different port in each item.
    hosts = sorted(
        {host_of(path) for worker in workers for path in worker.counts_of("connections")}
    )
    if not hosts:
        return ()
    return (f"the workers made TCP connections to {join_some(hosts)}: {_FILE_CHECKS_ONLY}",)


def watch_connections() -> Watcher:
    """What watches the connections that workers share. Its module is imported in trials only."""
    from pytest_dataloader_faults.battery.checks.network.sharing import SharedConnections

    return SharedConnections()


def _on_connections(
    *kinds: tuple[str, Callable[..., faults.Fault]],
) -> Callable[[Workload], Scenarios]:
    def plan(workload: Workload) -> Scenarios:
        path = workload.connections.path
        return tuple(Scenario(faults=(make(path),), title=title) for title, make in kinds)

    return plan


def _after_some(workload: Workload, kind: Callable[..., faults.Fault], title: str) -> Scenario:
    """*kind*, once a worker has correct samples, which it could return again."""
    fault = kind(workload.connections.path, nth=max(2, workload.fetches))
    return Scenario(faults=(fault,), title=title, require_effect=_require_firing)


def _require_firing(_: Workload, outcome: Outcome) -> None:
    if not outcome.fired:
        raise NotApplicable(_FEW_RESPONSES)


def _plan_resets(workload: Workload) -> Scenarios:
    early = _closed_early(faults.ConnectionReset)(workload)
    return (*early, _after_some(workload, faults.ConnectionReset, "after a few responses"))


def _closed_early(kind: Callable[..., faults.Fault]) -> Callable[[Workload], Scenarios]:
    return _on_connections(
        ("before a response", kind),
        (f"after {_WITHIN} bytes of a response", lambda path: kind(path, after=_WITHIN)),
    )


def _require_response(_: Workload, outcome: Outcome) -> None:
    """Logs, probes and telemetry only send. A session from before the fork is not monitored."""
    if not any(each.matched for each in outcome.faults):
        raise NotApplicable(_NO_RESPONSE)


def _plan_errors(workload: Workload) -> Scenarios:
    """For good first: several placeholders are recognized, but a single one may be anything."""
    path = workload.connections.path
    unavailable = partial(HttpError, status=int(HTTPStatus.SERVICE_UNAVAILABLE), retry_after=0)
    return (
        Scenario(faults=(unavailable(path),), title="503"),
        Scenario(faults=(HttpError(path, int(HTTPStatus.NOT_FOUND)),), title="404"),
        Scenario(faults=(unavailable(path, times=1),), title="503 once"),
        _after_some(workload, unavailable, "503 after a few requests"),
    )


def _require_request(_: Workload, outcome: Outcome) -> None:
    if not any(each.matched for each in outcome.faults):
        raise NotApplicable(_ENCRYPTED if TLS_CONNECTION in outcome.unobserved else _NO_REQUEST)


NETWORK = (
    Check(
        "connect-error",
        "handles a server that refuses connections",
        _on_connections(("", faults.ConnectError)),
    ),
    Check(
        "connection-reset",
        "handles a server that resets a connection",
        _plan_resets,
        scenario=Scenario(require_effect=_require_response),
    ),
    Check(
        "connection-closed",
        "handles a server that closes a connection in the middle of a response",
        _closed_early(faults.ConnectionClosed),
        scenario=Scenario(require_effect=_require_response),
    ),
    Check(
        "connection-hung",
        "raises an error in time when a server does not respond",
        _on_connections(("", faults.HungRead)),
        rule=find_wait_without_timeout,
        scenario=Scenario(
            processes=arm_workers(Epoch(patience=PATIENCE)), require_effect=_require_response
        ),
    ),
)

HTTP = (
    Check(
        "http-error",
        "handles a server that responds with an error page",
        _plan_errors,
        scenario=Scenario(require_effect=_require_request),
        advice=(
            "Check the status of a response before you use its body: call"
            " response.raise_for_status(), or with urllib3 compare response.status. Let that error"
            " reach the loader, or retry 429 and 503 a few times and then raise it"
        ),
    ),
)
