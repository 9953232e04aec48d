"""Datasets that read from a network: what checks try, and connections from before the fork."""

import functools
import multiprocessing
import signal
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from pytest_dataloader_faults import Verdict, check_dataset, run_trial, sweep
from pytest_dataloader_faults.battery.checks.network.rules import SharedConnection, find_cause
from pytest_dataloader_faults.exceptions import CheckFailedError
from pytest_dataloader_faults.faults import ConnectError, ReadError
from pytest_dataloader_faults.outcomes import Pass, WorkerDeath
from support.datasets import Records
from support.facts import EIO, EPOCH_1, fired, ordinary, revised
from support.network_datasets import (
    ByConnection,
    ByHttp,
    ByProcess,
    OfItsLength,
    RepeatsSample,
    RetriesOnce,
    UnderLock,
    ZerosOnError,
    answer_squares,
    write_samples,
)
from support.results import failure_of, result_of
from support.rows import rows
from support.servers import http_server, read_all, tcp_server
from support.waiting import allowed

COUNT = 8


class Asks(ByHttp):
    """Asks a server for each sample."""

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
    with http_server(write_samples(tmp_path_factory.mktemp("served"))) as url:
        yield url


def test_a_reset_after_a_few_responses_finds_a_repeated_sample(url):
    """A reset of each response lets the dataset raise an error: it has no sample yet."""
    result = failure_of(functools.partial(RepeatsSample, url), "connection-reset")
    assert "corrupted" == result.verdict, result.explanation
    assert result.trials[-1].schedule[0].nth > 1


def test_an_answer_is_cut_off_within_its_content(url):
    """The result also says that file checks do not cover connections."""
    result = result_of(lambda: OfItsLength(url), "connection-closed")
    assert [0, 1024] == [each.schedule[0].after for each in result.trials]
    note, *_ = result.notes
    assert "made TCP connections to 127.0.0.1: file checks do not cover" in note
    assert str(urlsplit(url).port) not in note


SILENT_COUNT = 4
OF_ANSWERS = ["connection-reset", "connection-closed", "connection-hung"]


class Numbers(Dataset):
    """Gives the indices, and talks to a server besides."""

    def __init__(self, address):
        self.address = address
        self.other = None

    def __len__(self):
        return SILENT_COUNT

    def __getitem__(self, index):
        self._talk(index)
        return torch.tensor(index)

    def _talk(self, index):
        """What it says for each sample."""


class Session(Numbers):
    """Asks over a connection from before the fork, and over others for nothing."""

    def __init__(self, address):
        super().__init__(address)
        self.lock = threading.Lock()
        self.other = socket.create_connection(address)

    def _talk(self, index):
        socket.create_connection(self.address).close()
        with self.lock:
            self.other.sendall(b"?")


class Listens(Numbers):
    """Has a thread that listens for what a server greets with, and for what never comes."""

    def _talk(self, index):
        if self.other is None:
            self.other = socket.create_connection(self.address)
            threading.Thread(target=read_all, args=(self.other,), daemon=True).start()
        with socket.create_connection(self.address, timeout=30) as connection:
            connection.recv(10)


def _greet(connection):
    connection.sendall(b"welcome\n")
    read_all(connection)


def test_a_server_that_never_answers_has_no_answer_to_hold_back():
    with tcp_server(read_all) as address:
        results = check_dataset(lambda: Session(address), only=OF_ANSWERS, on_fail=None)
    assert [(False, False)] * len(OF_ANSWERS) == [(each.applies, each.failed) for each in results]
    assert all("no server responded" in each.explanation for each in results)


def test_a_thread_that_listens_does_not_hang_the_dataset():
    with tcp_server(_greet) as address:
        result = result_of(lambda: Listens(address), "connection-hung")
    assert result.passed, result.explanation
    assert result.outcome.fired


class Patient(Numbers):
    """Has a limit of minutes."""

    def _talk(self, index):
        with socket.create_connection(self.address, timeout=300) as connection:
            connection.recv(10)


class Wrong(Patient):
    """Raises an error that tells nothing, at a limit of its own."""

    def _talk(self, index):
        try:
            with socket.create_connection(self.address, timeout=0.2) as connection:
                connection.recv(10)
        except TimeoutError:
            message = "no luck"
            raise ValueError(message) from None


def test_a_timeout_that_was_not_reached_is_noted():
    """The dataset passes since the loader gave up, so nobody saw what the dataset does."""
    with tcp_server(_greet) as address:
        result = result_of(lambda: Patient(address), "connection-hung")
    assert result.passed, result.explanation
    assert "so that timeout was not tested" in result.notes[-1]
    assert result.notes[-1] in result.explanation


def test_advice_for_a_time_limit_is_for_those_without():
    with tcp_server(_greet) as address:
        result = failure_of(lambda: Wrong(address), "connection-hung")
    assert "failed_unclearly" == result.verdict
    assert "timeout=30" not in result.explanation
    assert "include the server's address" in result.explanation


class Alarmed(Numbers):
    """Has a limit by a signal: longer than the first trial waits."""

    def _talk(self, index):
        def late(*_):
            message = "no answer in time"
            raise TimeoutError(message)

        handler = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 1.5)
        try:
            with socket.create_connection(self.address) as connection:
                connection.recv(10)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)


def test_a_hidden_timeout_is_waited_for():
    """The trial that would say hung is run again, and that one counts alone."""
    with tcp_server(_greet) as address:
        result = result_of(lambda: Alarmed(address), "connection-hung")
    assert result.passed, result.explanation
    assert "no answer in time" in result.outcome.exception.text
    assert (True, 1) == (result.reproduced, len(result.trials))


def test_globs_of_files_leave_connections_alone(url):
    address = f"tcp{url.removeprefix('http')}"
    result = failure_of(lambda: ZerosOnError(url), "connect-error", files=address)
    assert address == result.outcome.schedule[0].path


@pytest.mark.slow
def test_sweep_lets_connections_fail(url):
    with pytest.raises(CheckFailedError, match="ConnectError"):
        sweep(lambda: ZerosOnError(url), faults=[ConnectError()])
    results = sweep(lambda: RetriesOnce(url), loader={"num_workers": 1, "batch_size": 8}, samples=2)
    kinds = {each.check.partition("(")[0] for each in results}
    assert kinds == {"ConnectError", "ConnectionReset"}


CHECK, CONNECTION = "workers-agree", "uses a connection that was opened before the fork"


class JoinsLate(ByConnection):
    """One worker uses the connection only once the other one has used it."""

    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        super().__init__(folder, address, in_worker=False)
        self.is_used = multiprocessing.Event()

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info and info.id:
            assert self.is_used.wait(allowed(20))
        sample = super().__getitem__(index)
        if info:
            self.is_used.set()
        return sample


def test_workers_meet_at_a_connection_that_one_uses_later(records):
    with tcp_server(answer_squares) as address:
        result = failure_of(lambda: JoinsLate(records, address), CHECK)

    assert result.cause == CONNECTION
    host, port = address
    assert f"two workers sent requests on a connection to {host}:{port}" in result.explanation


class OnlyReports(ByConnection):
    """Tells a server which samples it reads, and never wants an answer: healthy."""

    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        super().__init__(folder, address, in_worker=False)

    def __getitem__(self, index: int) -> Any:
        self.connection.sendall(b"%8d" % index)
        return index


@pytest.mark.parametrize("make", [OnlyReports, UnderLock])
def test_a_connection_that_no_other_worker_disturbs_is_healthy(records, make):
    """Nobody waits for an answer, or nobody else sends while a worker has the lock."""
    with tcp_server(read_all if make is OnlyReports else answer_squares) as address:
        result = result_of(lambda: make(records, address), CHECK)

    assert result.passed, result.explanation


def test_pipes_to_a_process_from_before_the_fork_are_named(records):
    result = failure_of(lambda: ByProcess(records), CHECK)

    assert result.cause == CONNECTION
    assert "a pipe from another process" in result.explanation


class OwnQueue(Records):
    """Has a queue, whose pipe is for several processes; samples differ in workers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.queue = multiprocessing.Queue()

    def __getitem__(self, index: int) -> Any:
        return index, get_worker_info() is None


def test_a_queue_is_made_to_be_shared(records):
    result = failure_of(lambda: OwnQueue(records), CHECK)

    assert result.verdict == "corrupted"
    assert not result.outcome.of(SharedConnection)
    assert result.cause != CONNECTION


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
    found = find_cause(revised(outcome, notes=_SHARED), Verdict.CORRUPTED, outcome)

    assert (found.phrase if found else "") == cause
