"""Checks of what a dataset does if a server refuses, breaks off or fails to answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from pytest_dataloader_faults.battery.checks._base import (
    PATIENCE,
    Scenario,
    check,
    in_constructor,
    plan_each,
)
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload
from pytest_dataloader_faults.faults import (
    ConnectError,
    ConnectionClosed,
    ConnectionReset,
    HttpError,
    HungRead,
)
from pytest_dataloader_faults.faults.files import TLS_CONNECTION, UNLIMITED_WAITS
from pytest_dataloader_faults.faults.globs import host_of
from pytest_dataloader_faults.outcomes import Outcome
from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.judge.causes import PAGE_AS_DATA
from pytest_dataloader_faults.outcomes.judge.hangs import loader_timed_out
from pytest_dataloader_faults.outcomes.judge.sharing import sending_cause, start_cause
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.text import join_some

if TYPE_CHECKING:
    from pytest_dataloader_faults.battery.fault_free_run import FaultFreeRun

# Some facts about a missing object. 404 and 410 are answers of a server that works: the object does
# not exist, and the next attempt will not find it either. So a dataset may skip the object, raise
# whatever error it has for a missing sample, and remember the answer. But a page, zeros or anything
# else that is no sample of the reference must not take its place.


_WITHIN = 1024
"""Most HTTP headers are shorter, so this many bytes end within the content."""
_PAGE = "a page with status 200"
_NO_RESPONSE = "no server responded on a connection that the engine can see"
_ENCRYPTED = (
    "its workers use TLS connections, whose requests are encrypted. Test the dataset with a local"
    " server that speaks plain HTTP"
)
_NO_REQUEST = "its workers send no HTTP/1.x request on a connection that the engine can see"
_FEW_RESPONSES = "its workers receive too few responses to have samples before a failing one"
_FILE_CHECKS_ONLY = "file checks do not cover data from these connections"
_CHECK_STATUS = (
    "Check the status of a response before you use its body: call response.raise_for_status(), or"
    " with urllib3 compare response.status. Let that error reach the loader, or retry 429 and 503 a"
    " few times and then raise it"
)
NO_TIMEOUT = Cause(
    "waits for a server without a timeout",
    "Set a timeout in the client, for example requests.get(url, timeout=30), urlopen(url,"
    " timeout=30) or socket.setdefaulttimeout(30). Servers do disappear without closing the"
    " connection",
    fix="set a timeout in the client, such as requests.get(url, timeout=30)",
    is_general=True,
)

APPENDS = Cause(
    "adds a second response to a part of the first",
    "A response broke off, and the next one was whole. Discard what came before you request it"
    " again, or request only the rest, with a Range header, and check the status 206",
    fix="discard a partial response before a retry",
)


def find_wait_without_timeout(outcome: Outcome, _: Reference) -> Finding | None:
    """A wait that only the loader's timeout ended, because the client has none."""
    waits = sorted({path for each in outcome.workers for path in each.counts_of(UNLIMITED_WAITS)})
    if not waits or not loader_timed_out(outcome):
        return None
    sentence = (
        f"a worker waited for a response from {waits[0]} without a timeout of its own; only the"
        " loader's timeout, which this check sets, ended the wait"
    )
    return Finding(Verdict.HUNG, sentence)


@check(
    "hung-read",
    "raises an error in time when the storage or a server does not respond",
    rule=find_wait_without_timeout,
    scenario=Scenario(patience=PATIENCE),
)
def hung_read(workload: Workload) -> Iterator[Scenario]:
    """Files and connections apart: a client has a timeout, but a read of a file cannot have one."""
    has_files, has_connections = bool(workload.readers), bool(workload.connections.paths)
    if not (has_files or has_connections):
        raise workload.no_target("read")
    is_both = has_files and has_connections
    if has_files:
        title = "files" if is_both else ""
        yield Scenario(faults=(HungRead(workload.read.path),), title=title)
    if has_connections:
        yield Scenario(
            faults=(HungRead(workload.connections.path),),
            title="connections" if is_both else "",
            require_effect=_require_response,
        )


def _break_connections(workload: Workload) -> Iterator[Scenario]:
    """Before there is a connection, within the content of a response, and after a few responses.

    The second one shows whether a dataset takes what came for all of it, and the third one whether
    it returns a sample again that it has by then. After the last one, a second request succeeds:
    the dataset may add the whole response to the part that it has.
    """
    path = workload.connections.path
    yield Scenario(faults=(ConnectError(path),), title="refused")
    yield Scenario(
        faults=(ConnectionClosed(path, after=_WITHIN),),
        title=f"closed after {_WITHIN} bytes of a response",
        require_effect=_require_response,
    )
    yield Scenario(
        faults=(ConnectionReset(path, nth=_nth_response(workload)),),
        title="reset after a few responses",
        require_effect=_require_firing,
    )
    yield Scenario(
        faults=(ConnectionReset(path, after=_WITHIN, times=1),),
        title=f"reset once, after {_WITHIN} bytes of a response",
        require_effect=_require_response,
    )


@in_constructor
def _break_download(workload: Workload) -> Iterator[Scenario]:
    fault = ConnectionReset(workload.connections_of_main_process.path, after=_WITHIN)
    yield Scenario(
        faults=(fault,), title="reset in the constructor", require_effect=_require_response
    )


@check("connection-error", "handles a server that refuses, closes or resets connections")
def connection_error(workload: Workload) -> Iterator[Scenario]:
    """In the workers, and in a constructor that downloads: what it leaves may be believed later."""
    yield from plan_each([_break_connections, _break_download], workload)


def _send_pages(workload: Workload) -> Iterator[Scenario]:
    """Lasting errors: several equal placeholders can be recognized, but a single one cannot.

    What does not exist is missing from the start. An overloaded server comes to be so, when the
    dataset has samples that it could return again. A page with status 200 is that of a login, or of
    an exceeded quota.
    """
    path = workload.connections.path
    missing = HttpError(path, int(HTTPStatus.NOT_FOUND))
    yield Scenario(faults=(missing,), title="404", require_effect=_require_request)
    nth, status = _nth_response(workload), int(HTTPStatus.SERVICE_UNAVAILABLE)
    unavailable = HttpError(path, status, retry_after=0, nth=nth)
    yield Scenario(
        faults=(unavailable,), title="503 after a few requests", require_effect=_require_firing
    )
    page = HttpError(path, int(HTTPStatus.OK))
    whole = HttpError(path, int(HTTPStatus.PARTIAL_CONTENT))
    for title, fault in ((_PAGE, page), ("a whole file in place of a part", whole)):
        yield Scenario(faults=(fault,), title=title, require_effect=_require_request)


@in_constructor
def _send_page_for_download(workload: Workload) -> Iterator[Scenario]:
    page = HttpError(workload.connections_of_main_process.path, int(HTTPStatus.OK))
    title = f"{_PAGE}, in the constructor"
    yield Scenario(faults=(page,), title=title, require_effect=_require_request)


@check("http-error", "handles a server that responds with an error page", advice=_CHECK_STATUS)
def http_error(workload: Workload) -> Iterator[Scenario]:
    """In the workers, and in a constructor that downloads."""
    yield from plan_each([_send_pages, _send_page_for_download], workload)


def _nth_response(workload: Workload) -> int:
    """The number of a response before which a worker has correct samples."""
    return max(2, workload.fetches)


def _require_firing(_: Workload, outcome: Outcome) -> None:
    if not outcome.fired:
        raise NotApplicable(_FEW_RESPONSES)


def _require_response(_: Workload, outcome: Outcome) -> None:
    """Logs, probes and telemetry only send. A session from before the fork is not monitored."""
    if not any(each.matched for each in outcome.faults):
        raise NotApplicable(_NO_RESPONSE)


def _require_request(_: Workload, outcome: Outcome) -> None:
    if not any(each.matched for each in outcome.faults):
        raise NotApplicable(_ENCRYPTED if TLS_CONNECTION in outcome.unobserved else _NO_REQUEST)


NETWORK = (hung_read, connection_error, http_error)


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


def find_cause(outcome: Outcome, verdict: Verdict, _: Outcome) -> Cause | None:
    """The cause of a wait without a timeout, or of a retry that starts from a partial response."""
    is_retried = any(isinstance(each, ConnectionReset) and each.times for each in outcome.schedule)
    if verdict is Verdict.CORRUPTED and is_retried:
        return APPENDS
    pages = (each for each in outcome.fired_faults if isinstance(each, HttpError))
    if verdict is Verdict.POISONED and any(each.claims_success for each in pages):
        return PAGE_AS_DATA
    waits = any(each.counts_of(UNLIMITED_WAITS) for each in outcome.workers)
    is_of_queue = start_cause(outcome) or sending_cause(outcome)
    return NO_TIMEOUT if verdict is Verdict.HUNG and waits and not is_of_queue else None
