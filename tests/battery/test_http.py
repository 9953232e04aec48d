"""Datasets that request their samples by HTTP, and a server that responds with an error page."""

from __future__ import annotations

import functools
import io
import ssl
import tarfile
from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults._settings.jobs import TrialJob
from pytest_dataloader_faults._trial import run_trial_job, take_reference
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks.network.rules import ERROR_PAGE
from pytest_dataloader_faults.faults import HttpError
from support.http_datasets import (
    BlamesFile,
    ByAiohttp,
    ByAiohttpWithStatus,
    ByFsspec,
    ByUrllib3,
    ByUrllib3WithStatus,
    CatchesHttpError,
    ChecksInSession,
    EndingStream,
    FromS3,
    FromShards,
    FromShardsWithoutStatus,
    HidesStatus,
    Lengths,
    RemembersMissing,
    RepeatsSample,
    RetriesForever,
    RetriesThrice,
    SkippingStream,
    SkipsMissing,
    Stream,
    TakesItsBeginning,
    TakesItsFirstBytes,
    TakesPage,
    TakesPageInSession,
    TakesPageOfMissing,
    ZerosForMissing,
    ZerosForStatus,
)
from support.judging import judge_trial
from support.network_datasets import ByHttp, ByRequests, OfItsLength, write_samples
from support.readers.servers import s3_server
from support.results import failure_of, result_of
from support.rows import slow
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
_run_check = functools.partial(result_of, check=CHECK)
_run_failure = functools.partial(failure_of, check=CHECK)


TITLES = ("503", "404", "503 once", "503 after a few requests")
FINE = dict.fromkeys(TITLES, "failed_cleanly")
RETRIED = {**FINE, "503 once": "survived"}


@pytest.mark.parametrize(
    ("kind", "expected", "url"),
    [(ByHttp, FINE, False), slow(ChecksInSession, FINE, True), (RetriesThrice, RETRIED, True)],
    indirect=["url"],
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


CLIENTS = [
    FromShards,
    *map(slow, (ByFsspec, Stream, ByAiohttpWithStatus, ByUrllib3WithStatus)),
    *map(slow, (FromShardsWithoutStatus, ByRequests)),
]


@once
@pytest.mark.parametrize("kind", CLIENTS)
def test_healthy_client_passes(kind, url):
    """Their errors name the status, or the URL. fsspec ignores a failed HEAD.

    A worker that requests one shard has no earlier sample.
    """
    result = _run_check(functools.partial(kind, url))
    assert result.passed, result.explanation
    retries = kind in (ByFsspec, ByUrllib3WithStatus)
    expected = dict(RETRIED if retries else FINE)
    if issubclass(kind, FromShards):
        del expected[TITLES[-1]]
    assert expected == _verdicts(result)


@once
@pytest.mark.parametrize(
    ("kind", "verdict", "cause"),
    [
        (TakesPage, "corrupted", ERROR_PAGE.phrase),
        slow(TakesItsBeginning, "corrupted", ERROR_PAGE.phrase),
        (TakesItsFirstBytes, "corrupted", ERROR_PAGE.phrase),
        slow(TakesPageInSession, "corrupted", ERROR_PAGE.phrase),
        (CatchesHttpError, "corrupted", ERROR_PAGE.phrase),
        slow(ByAiohttp, "corrupted", ERROR_PAGE.phrase),
        slow(ByUrllib3, "corrupted", ERROR_PAGE.phrase),
        slow(OfItsLength, "corrupted", ERROR_PAGE.phrase),
        (ZerosForStatus, "corrupted", "returns a substitute for an unreadable sample"),
        (RepeatsSample, "corrupted", "returns a substitute for an unreadable sample"),
        slow(SkippingStream, "corrupted", "skips samples without an error"),
        slow(EndingStream, "corrupted", "skips samples without an error"),
        (TakesPageOfMissing, "corrupted", ERROR_PAGE.phrase),
        (ZerosForMissing, "corrupted", "returns a substitute for an unreadable sample"),
        (HidesStatus, "failed_unclearly", "raises an error that hides its cause"),
        (Lengths, "failed_unclearly", "raises an error that hides its cause"),
    ],
)
def test_defect_is_found(kind, verdict, cause, url):
    result = _run_failure(functools.partial(kind, url))
    assert (verdict, cause) == (result.verdict, result.cause), result.explanation
    assert "raise_for_status()" in result.explanation


@once
@pytest.mark.parametrize(
    ("kind", "verdict"), [(SkipsMissing, "survived"), (RemembersMissing, "failed_cleanly")]
)
def test_a_missing_object_is_an_answer(kind, verdict, url):
    result = _run_check(functools.partial(kind, url))
    assert result.passed, result.explanation
    assert _verdicts(result) == {**FINE, "404": verdict}


@once
def test_a_missing_object_is_named_if_the_author_promises_it(url):
    contract = Contract(names_file=True)
    result = _run_failure(functools.partial(RemembersMissing, url), contract=contract)
    assert "failed_unclearly" == result.verdict
    assert "404" in result.explanation


@once
def test_a_false_reason_is_found(url):
    result = _run_failure(functools.partial(BlamesFile, url))
    assert "failed_unclearly" == result.verdict
    assert "blames 'FileNotFoundError'" in result.explanation
    assert "answered with HTTP status 503 Service Unavailable" in result.explanation


@once
def test_endless_retry_is_found(url):
    result = _run_failure(functools.partial(RetriesForever, url), deadline=2)
    assert "hung" == result.verdict, result.explanation


@once
@pytest.mark.parametrize(
    ("kind", "contract"),
    [
        slow(ZerosForStatus, Contract(may_substitute=True)),
        (SkippingStream, Contract(may_skip=True)),
    ],
)
def test_declared_substitutes_and_gaps_pass(kind, contract, url):
    assert _run_check(functools.partial(kind, url), contract=contract).passed


@once
@pytest.mark.parametrize(
    "kind", [TakesPage, slow(ZerosForStatus), slow(HidesStatus), slow(SkippingStream)]
)
def test_disarmed_it_shows_nothing(kind, url):
    make = functools.partial(kind, url)
    job = TrialJob(
        make_dataset=make,
        faults=(HttpError("tcp://192.0.2.1:1"),),
        options=CHECKS[CHECK].scenario.options,
    )
    reference = take_reference(make)
    assert "not_exercised" == judge_trial(run_trial_job(job), reference).verdict
    assert judge_trial(run_trial_job(replace(job, faults=(HttpError(),))), reference).verdict.fails


@pytest.mark.filterwarnings("ignore")  # Those of other people's libraries.
@pytest.mark.parametrize(("retries", "last"), [(0, "failed_cleanly"), slow(2, "survived")])
def test_boto3_says_the_status_or_retries(retries, last):
    with s3_server() as url:
        result = _run_check(lambda: FromS3(url, retries), samples=4)
    assert result.passed, result.explanation
    assert {**FINE, "503 once": last} == _verdicts(result)


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
