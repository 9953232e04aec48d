"""Checks of faults of TCP connections, where the workers make some. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._trial.job import TrialOptions
from pytest_dataloader_faults.battery._workload import NotApplicable, Workload
from pytest_dataloader_faults.battery.checks._base import Check, Plan, Variant
from pytest_dataloader_faults.outcomes import Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes.contract import Finding
from pytest_dataloader_faults.outcomes.judge.hangs import gave_up

_PATIENCE = 1.0
"""Seconds. A client with a shorter time limit of its own reaches that first."""
_WITHIN = 1024
"""Most headers of HTTP are shorter: this many bytes end within the content."""
_NO_CONNECTION = (
    "its workers make no TCP connection. One that was made before they started is not seen: make it"
    " in the worker, at its first sample"
)

_NO_ANSWER = "no server answered on a connection that the engine can see"


def _on_connections(*variants: tuple[str, Callable[..., faults.Fault]]) -> Callable[..., Plan]:
    def plan(workload: Workload) -> Plan:
        found = workload.connections
        if not found.paths:
            return NotApplicable(_NO_CONNECTION)
        return tuple(Variant((make(found.path),), title) for title, make in variants)

    return plan


def _cut_off(kind: Callable[..., faults.Fault]) -> Callable[..., Plan]:
    return _on_connections(
        ("before an answer", kind),
        (f"after {_WITHIN} bytes of an answer", lambda path: kind(path, after=_WITHIN)),
    )


def _has_no_answer(_: Workload, outcome: Outcome) -> NotApplicable | None:
    """A log, a probe and telemetry send only. A session of before the fork answers unseen."""
    is_met = any(each.reached for each in outcome.faults)
    return None if is_met else NotApplicable(_NO_ANSWER)


def _has_no_limit(outcome: Outcome, _: Reference) -> Finding | None:
    """The loader gave up, and the client would not have."""
    waits = sorted({path for each in outcome.workers for path in each.unlimited_waits})
    if not waits or not gave_up(outcome):
        return None
    sentence = f"a worker waited for an answer of {waits[0]} without a time limit of its own"
    ended = "only the loader's timeout, which this check sets, ended that"
    return Finding(Verdict.HUNG, f"{sentence}; {ended}")


NETWORK = (
    Check(
        "connect-error",
        "handles a server that refuses connections",
        _on_connections(("", faults.ConnectError)),
    ),
    Check(
        "connection-reset",
        "handles a server that resets a connection",
        _cut_off(faults.ConnectionReset),
        skip_reason=_has_no_answer,
    ),
    Check(
        "connection-closed",
        "handles a server that closes a connection in the middle of an answer",
        _cut_off(faults.ConnectionClosed),
        skip_reason=_has_no_answer,
    ),
    Check(
        "connection-hung",
        "raises an error in time where a server does not answer",
        _on_connections(("", faults.HungRead)),
        options=TrialOptions(patience=_PATIENCE),
        extra_rule=_has_no_limit,
        skip_reason=_has_no_answer,
    ),
)
