"""Datasets that read from a network: what checks try, and connections from before the fork."""

import contextlib
import functools
import multiprocessing
import os
import socket
import tarfile
import threading
from collections import Counter
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from torch.utils.data import Dataset, get_worker_info

from pytest_dataloader_faults import Verdict, run_trial
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes import Pass, WorkerDeath
from pytest_dataloader_faults.outcomes.judge.sharing import connection_cause
from pytest_dataloader_faults.outcomes.stages import SharedConnection
from support.facts import EIO, EPOCH_1, fired, ordinary, revised
from support.network_datasets import (
    ByConnection,
    ByHttp,
    OfItsLength,
    RepeatsSample,
    RetriesThrice,
    SkipsMissing,
    UnderLock,
    answer_squares,
    write_samples,
)
from support.results import failure_of, result_of, verdicts_of
from support.rows import rows
from support.servers import http_server, read_all, tcp_server
from support.waiting import allowed

COUNT = 8


class Asks(ByHttp):
    def __init__(self, address):
        super().__init__("")
        self.address = address

    def read(self, _url):
        with socket.create_connection(self.address) as connection:
            connection.sendall(b"?")
            return connection.recv(1)


def test_connections_are_counted():
    with tcp_server(lambda connection: connection.sendall(connection.recv(1))) as address:
        result = result_of(lambda: Asks(address), "read-error")
        outcome = run_trial(lambda: Asks(address), ReadError("*.none"))
    assert not result.applies
    assert "they open network connections, which checks such as" in result.explanation
    assert outcome.unobserved == {}
    connections = sum(
        (Counter(each.counts_of("connections")) for each in outcome.workers), Counter()
    )
    assert connections == {f"tcp://127.0.0.1:{address[1]}": COUNT}


@pytest.fixture(name="url", scope="module")
def _url(tmp_path_factory):
    folder = write_samples(tmp_path_factory.mktemp("served"))
    with tarfile.open(folder / "samples.tar", "w") as archive:
        for path in sorted(folder.glob("*.bin")):
            archive.add(path, path.name)
    with http_server(folder, keep_alive=True) as url:
        yield url


def test_file_checks_do_not_cover_connections(url):
    result = result_of(lambda: OfItsLength(url), "connection-error")
    note, *_ = result.notes
    assert "made TCP connections to 127.0.0.1: file checks do not cover" in note
    assert str(urlsplit(url).port) not in note


LATE = "503 after a few requests"
PAGE = {"a page with status 200": "failed_cleanly"}


@pytest.mark.parametrize(
    ("kind", "verdicts"),
    [
        (RetriesThrice, {"404": "failed_cleanly", LATE: "failed_cleanly"}),
        (SkipsMissing, {"404": "survived", LATE: "failed_cleanly"}),
    ],
)
def test_error_pages(kind, verdicts, url):
    result = result_of(functools.partial(kind, url), "http-error")
    assert result.passed, result.explanation
    assert verdicts | PAGE == verdicts_of(result)
    assert all(each.fired for each in result.trials)


def test_a_client_that_repeats_a_sample(url):
    """An error of each response lets the dataset raise it: it has no sample to repeat yet."""
    result = failure_of(functools.partial(RepeatsSample, url), "http-error")
    assert result.verdict == "corrupted", result.explanation
    assert result.cause == "returns a substitute for an unreadable sample"


CHECK, CONNECTION = "workers-agree", "uses a connection that was opened before the fork"


class AtFork(ByConnection):
    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        super().__init__(folder, address, in_worker=False)


class JoinsLate(AtFork):
    """One worker uses the connection only once the other one has used it."""

    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        super().__init__(folder, address)
        self.is_used = multiprocessing.Event()

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info and info.id:
            assert self.is_used.wait(allowed(20))
        sample = super().__getitem__(index)
        if info:
            self.is_used.set()
        return sample


def test_a_connection_that_one_worker_uses_later_is_shared(records):
    with tcp_server(answer_squares) as address:
        result = failure_of(lambda: JoinsLate(records, address), CHECK)

    assert result.cause == CONNECTION
    host, port = address
    assert f"two workers sent requests on a connection to {host}:{port}" in result.explanation


class ByClient(Dataset[Any]):
    def __init__(self, address: tuple[str, int]) -> None:
        self.client = Client(address)

    def __len__(self):
        return 16

    def __getitem__(self, index):
        self.client.send_bytes(bytes([index]))
        return self.client.recv_bytes()


def test_a_connection_of_multiprocessing_is_shared():
    with Listener(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_answer_all, args=(listener,), daemon=True).start()
        result = failure_of(lambda: ByClient(listener.address), CHECK)

    assert result.cause == CONNECTION


def _answer_all(listener: Listener) -> None:
    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=_answer_each, args=(listener.accept(),), daemon=True).start()


def _answer_each(connection: Connection) -> None:
    with contextlib.suppress(EOFError, OSError), connection:
        while True:
            connection.send_bytes(connection.recv_bytes())


class OnlyReports(AtFork):
    """Tells a server which samples it reads, and never wants an answer: healthy."""

    def __getitem__(self, index: int) -> Any:
        self.connection.sendall(b"%8d" % index)
        return index


@pytest.mark.parametrize("make", [OnlyReports, UnderLock])
def test_a_connection_that_no_other_worker_disturbs_is_healthy(records, make):
    """Nobody waits for an answer, or nobody else sends while a worker does."""
    with tcp_server(read_all if make is OnlyReports else answer_squares) as address:
        result = result_of(lambda: make(records, address), CHECK)

    assert result.passed, result.explanation


class WithoutSockets(AtFork):
    """Uses the connection as C code does, past Python's sockets, and compares no answer."""

    def __getitem__(self, index: int) -> Any:
        os.write(self.connection.fileno(), b"%8d" % index)
        is_worker = get_worker_info() is not None
        return os.read(self.connection.fileno(), 8) if is_worker else index


def test_a_connection_that_c_code_uses_may_be_the_cause(records):
    with tcp_server(answer_squares) as address:
        result = failure_of(lambda: WithoutSockets(records, address), CHECK)

    assert (result.verdict, result.cause) == ("corrupted", CONNECTION)


_SHARED = (SharedConnection("a connection to 127.0.0.1:9000"),)
_DEAD = Pass(EPOCH_1, deaths=(WorkerDeath(0, 7, 1),))


@rows(
    ("outcome", "cause"),
    [
        (ordinary(Pass(EPOCH_1)), CONNECTION),
        (ordinary(Pass(EPOCH_1), fired(EIO)), ""),
        (ordinary(_DEAD), ""),
        (revised(ordinary(Pass(EPOCH_1)), start_method="spawn"), ""),
    ],
    ids=["no fault", "a fault", "a death", "not forked"],
)
def test_a_shared_connection_is_the_cause_if_nothing_else_may_be(outcome, cause):
    found = connection_cause(revised(outcome, notes=_SHARED), Verdict.CORRUPTED)

    assert (found.phrase if found else "") == cause
