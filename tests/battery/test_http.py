"""Datasets that request their samples by HTTP, and a server that responds with an error page."""

from __future__ import annotations

import functools
import io
import ssl
import tarfile
from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract, check_dataset
from pytest_dataloader_faults._settings.jobs import TrialJob
from pytest_dataloader_faults._trial import run_trial_job, take_reference
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks.network.rules import ERROR_PAGE
from pytest_dataloader_faults.faults import HttpError
from support.datasets import Records
from support.http_datasets import (
    BlamesFile,
    ByAiohttp,
    ByAiohttpWithStatus,
    ByFsspec,
    CatchesHttpError,
    ChecksInSession,
    EndingStream,
    FromS3,
    FromShards,
    FromShardsWithoutStatus,
    HidesStatus,
    Lengths,
    RetriesForever,
    RetriesThrice,
    SkippingStream,
    Stream,
    TakesItsBeginning,
    TakesPage,
    TakesPageInSession,
    ZerosForStatus,
)
from support.network_datasets import ByHttp, ByRequests, OfItsLength, write_samples
from support.server_readers import places
from support.servers import http_server, read_all, tcp_server

CHECK = "http-error"


@pytest.fixture(name="url", scope="module", params=[False, True], ids=["closed", "kept"])
def _url(tmp_path_factory, request):
    """Of a server that closes each connection, and of one that keeps it."""
    folder = write_samples(tmp_path_factory.mktemp("served"))
    with tarfile.open(folder / "samples.tar", "w") as archive:
        for path in sorted(folder.glob("*.bin")):
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))
    with http_server(folder, keep_alive=request.param) as url:
        yield url


once = pytest.mark.parametrize("url", [True], indirect=True)
"""One server is enough."""


def _run_check(make, **options):
    (result,) = check_dataset(make, only=CHECK, on_fail=None, **options)
    return result


FINE = {
    "503": "failed_cleanly",
    "404": "failed_cleanly",
    "503 once": "failed_cleanly",
}
RETRIED = {**FINE, "503 once": "survived"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        pytest.param(kind, expected, id=kind.__name__)
        for kind, expected in {
            ByHttp: FINE,
            ChecksInSession: FINE,
            RetriesThrice: RETRIED,
        }.items()
    ],
)
def test_healthy_twin_passes(kind, expected, url):
    result = _run_check(functools.partial(kind, url))
    assert result.passed, result.explanation
    assert expected == _verdicts(result)
    assert all(each.fired for each in result.trials)


def _verdicts(result):
    """The verdict of each scenario, as the explanation tells them."""
    (line,) = [each for each in result.explanation.splitlines() if "tried: " in each]
    tried = line.partition("tried: ")[2].rstrip(".").split("; ")
    return {title: verdict.rstrip(")") for title, verdict in (each.split(" (") for each in tried)}


CLIENTS = [ByAiohttpWithStatus, ByFsspec, FromShards, FromShardsWithoutStatus, Stream, ByRequests]


@once
@pytest.mark.parametrize("kind", CLIENTS)
def test_healthy_client_passes(kind, url):
    """Their errors name the status, or the URL. fsspec ignores a failed HEAD."""
    result = _run_check(functools.partial(kind, url))
    assert result.passed, result.explanation
    assert (RETRIED if kind is ByFsspec else FINE) == _verdicts(result)


@once
@pytest.mark.parametrize(
    ("kind", "verdict", "cause"),
    [
        (TakesPage, "corrupted", ERROR_PAGE.phrase),
        (TakesItsBeginning, "corrupted", ERROR_PAGE.phrase),
        (TakesPageInSession, "corrupted", ERROR_PAGE.phrase),
        (CatchesHttpError, "corrupted", ERROR_PAGE.phrase),
        (ByAiohttp, "corrupted", ERROR_PAGE.phrase),
        (OfItsLength, "corrupted", ERROR_PAGE.phrase),
        (ZerosForStatus, "corrupted", "returns a substitute for an unreadable sample"),
        (SkippingStream, "corrupted", "skips samples without an error"),
        (EndingStream, "corrupted", "skips samples without an error"),
        (HidesStatus, "failed_unclearly", "raises an error that hides its cause"),
        (Lengths, "failed_unclearly", "raises an error that hides its cause"),
    ],
)
def test_defect_is_found(kind, verdict, cause, url):
    result = _run_check(functools.partial(kind, url))
    assert (verdict, cause) == (result.verdict, result.cause), result.explanation
    assert "raise_for_status()" in result.explanation


@once
def test_a_false_reason_is_found(url):
    """It is true of 404, and not of 503."""
    result = _run_check(functools.partial(BlamesFile, url))
    assert "failed_unclearly" == result.verdict
    assert "blames 'FileNotFoundError'" in result.explanation
    assert "answered with HTTP status 503 Service Unavailable" in result.explanation


@once
def test_endless_retry_is_found(url):
    result = _run_check(functools.partial(RetriesForever, url), deadline=6)
    assert "hung" == result.verdict, result.explanation


@once
def test_declared_substitutes_and_gaps_pass(url):
    may = Contract(may_substitute=True)
    assert _run_check(functools.partial(ZerosForStatus, url), contract=may).passed
    may = Contract(may_skip=True)
    assert _run_check(functools.partial(SkippingStream, url), contract=may).passed


@once
@pytest.mark.parametrize("kind", [TakesPage, ZerosForStatus, HidesStatus, SkippingStream])
def test_disarmed_it_shows_nothing(kind, url):
    """So the verdict comes from the response."""
    make = functools.partial(kind, url)
    job = TrialJob(
        make_dataset=make,
        faults=(HttpError("tcp://192.0.2.1:1"),),
        options=CHECKS[CHECK].scenario.options,
    )
    assert "not_exercised" == run_trial_job(job).judge(take_reference(make)).verdict
    armed = replace(job, faults=(HttpError(),))
    assert run_trial_job(armed).judge(take_reference(make)).verdict.fails


@pytest.mark.filterwarnings("ignore")  # Those of other people's libraries.
@pytest.mark.parametrize(("retries", "last"), [(0, "failed_cleanly"), (2, "survived")])
def test_boto3_says_the_status_or_retries(tmp_path, retries, last):
    with places(tmp_path) as where:
        result = _run_check(lambda: FromS3(where.s3, retries), samples=4)
    assert result.passed, result.explanation
    assert {**FINE, "503 once": last} == _verdicts(result)


def test_check_needs_a_connection(records):
    result = _run_check(lambda: Records(records))
    assert not result.applies
    assert "open no TCP connection" in result.explanation


class Speaks(ByHttp):
    """Sends *words*, and reads what comes."""

    def __init__(self, words, address):
        super().__init__("")
        self.words = words
        self.address = address

    def read(self, url):
        import socket

        with socket.create_connection(self.address, timeout=60) as connection:
            connection.sendall(self.words)
            connection.shutdown(socket.SHUT_WR)
            return read_all(connection)


def _client_hello():
    """The first bytes of a connection of TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="h")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (_client_hello(), "TLS connections, whose requests are encrypted"),
        (b"get sample\r\n", "its workers send no HTTP/1.x request"),
    ],
    ids=["TLS", "other"],
)
def test_check_says_why_it_does_not_apply(words, reason):
    with tcp_server(lambda connection: connection.sendall(read_all(connection))) as address:
        result = _run_check(functools.partial(Speaks, words, address))
    assert not result.applies
    assert reason in result.explanation


@once
def test_python_engine_refuses_it(url):
    result = _run_check(functools.partial(ByHttp, url), engine="python")
    assert "Use engine='kernel'" in result.explanation
