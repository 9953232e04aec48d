"""The check of error responses: its scenarios, clients, and what it does not apply to."""

import functools
import io
import ssl
import tarfile

import pytest

from pytest_dataloader_faults.battery.checks.network.rules import ERROR_PAGE
from support.network_datasets import (
    BlamesFile,
    ByHttp,
    FromShards,
    RemembersMissing,
    RepeatsSample,
    RetriesThrice,
    SkipsMissing,
    TakesItsFirstBytes,
    write_samples,
)
from support.results import failure_of, result_of
from support.servers import http_server, read_all, tcp_server

CHECK = "http-error"


@pytest.fixture(name="url", scope="module")
def _url(tmp_path_factory):
    folder = write_samples(tmp_path_factory.mktemp("served"))
    with tarfile.open(folder / "samples.tar", "w") as archive:
        for path in sorted(folder.glob("*.bin")):
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))
    with http_server(folder, keep_alive=True) as url:
        yield url


_run_check = functools.partial(result_of, check=CHECK)
_run_failure = functools.partial(failure_of, check=CHECK)


TITLES = ("503", "404", "503 once", "503 after a few requests")
FINE = dict.fromkeys(TITLES, "failed_cleanly")
RETRIED = {**FINE, "503 once": "survived"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (RetriesThrice, RETRIED),
        # A worker that requests one shard has no earlier sample.
        (FromShards, {title: verdict for title, verdict in FINE.items() if title != TITLES[-1]}),
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


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (TakesItsFirstBytes, ERROR_PAGE.phrase),
        (RepeatsSample, "returns a substitute for an unreadable sample"),
    ],
)
def test_defect_is_found(kind, cause, url):
    result = _run_failure(functools.partial(kind, url))
    assert (result.verdict, result.cause) == ("corrupted", cause), result.explanation
    assert "raise_for_status()" in result.explanation


@pytest.mark.parametrize(
    ("kind", "verdict"), [(SkipsMissing, "survived"), (RemembersMissing, "failed_cleanly")]
)
def test_a_missing_object_is_an_answer(kind, verdict, url):
    result = _run_check(functools.partial(kind, url))
    assert result.passed, result.explanation
    assert _verdicts(result) == {**FINE, "404": verdict}


def test_a_false_reason_is_found(url):
    result = _run_failure(functools.partial(BlamesFile, url))
    assert "failed_unclearly" == result.verdict
    assert "blames 'FileNotFoundError'" in result.explanation
    assert "answered with HTTP status 503 Service Unavailable" in result.explanation


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
