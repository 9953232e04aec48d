"""Checks of what a dataset does with an error page of an HTTP server. Pure."""

from __future__ import annotations

from http import HTTPStatus

from pytest_dataloader_faults.battery.checks._base import Check, Scenario, Scenarios
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults.http import TLS_CONNECTION, HttpError
from pytest_dataloader_faults.outcomes import Outcome

_ENCRYPTED = (
    "its workers use TLS connections, whose requests are encrypted. Test the dataset with a local"
    " server that speaks plain HTTP"
)
_NO_REQUEST = "its workers send no HTTP/1.x request on a connection that the engine can see"


def _plan_errors(workload: Workload) -> Scenarios:
    """For good first: several placeholders are recognized, but a single one may be anything."""
    path = workload.connections.path
    unavailable = int(HTTPStatus.SERVICE_UNAVAILABLE)
    return (
        Scenario(faults=(HttpError(path, unavailable, retry_after=0),), title="503"),
        Scenario(faults=(HttpError(path, int(HTTPStatus.NOT_FOUND)),), title="404"),
        Scenario(faults=(HttpError(path, unavailable, times=1, retry_after=0),), title="503 once"),
    )


def _require_request(_: Workload, outcome: Outcome) -> None:
    if not any(each.matched for each in outcome.faults):
        raise NotApplicable(_ENCRYPTED if TLS_CONNECTION in outcome.unobserved else _NO_REQUEST)


HTTP = (
    Check(
        "http-error",
        "handles a server that responds with an error page",
        _plan_errors,
        scenario=Scenario(require_effect=_require_request),
        advice=(
            "Check the status of a response before you use its body: call"
            " response.raise_for_status(). Let that error reach the loader, or retry 429 and 503 a"
            " few times and then raise it"
        ),
    ),
)
