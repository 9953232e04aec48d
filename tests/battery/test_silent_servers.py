"""Answers that never come, and which no sample waits for: no dataset fails for them."""

from __future__ import annotations

import logging.handlers
import signal
import socket
import threading

import pytest
import torch
from torch.utils.data import Dataset

from pytest_dataloader_faults import check_dataset
from support.datasets import Records
from support.servers import read_all, tcp_server

COUNT = 4
OF_ANSWERS = ["connection-reset", "connection-closed", "connection-hung"]


class Numbers(Dataset):
    """Gives the indices, and talks to a server besides."""

    def __init__(self, address):
        self.address = address
        self.other = None

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        self._talk(index)
        return torch.tensor(index)

    def _talk(self, index):
        """What it says for each sample."""


class Logs(Numbers):
    """Sends a record of its log for each sample."""

    def _talk(self, index):
        if self.other is None:
            self.other = logging.Logger("sent")  # noqa: LOG001  # for no other test
            self.other.addHandler(logging.handlers.SocketHandler(*self.address))
        self.other.info("sample %d", index)


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


@pytest.mark.parametrize("kind", [Logs, Session])
def test_a_server_that_never_answers_has_no_answer_to_hold_back(kind):
    """A log, and a session that the engine does not see: the checks of answers do not apply."""
    with tcp_server(read_all) as address:
        results = check_dataset(lambda: kind(address), only=OF_ANSWERS, on_fail=None)
    assert [(False, False)] * len(OF_ANSWERS) == [(each.applies, each.failed) for each in results]
    assert all(
        "no server answered on a connection that the engine can see" in each.explanation
        for each in results
    )


def test_a_thread_that_listens_does_not_hang_the_dataset():
    """Only the thread that fetches counts; that one has a limit."""
    with tcp_server(_greet) as address:
        (result,) = check_dataset(lambda: Listens(address), only="connection-hung", on_fail=None)
    assert result.passed, result.explanation
    assert result.outcome.fired


class Alarmed(Numbers):
    """Has a limit by a signal: longer than the first trial waits."""

    def _talk(self, index):
        def late(*_):
            message = "no answer in time"
            raise TimeoutError(message)

        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 1.5)
        try:
            with socket.create_connection(self.address) as connection:
                connection.recv(10)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def test_a_limit_that_nobody_sees_is_waited_for():
    """The trial that would say hung is run again, and that one counts alone."""
    with tcp_server(_greet) as address:
        (result,) = check_dataset(lambda: Alarmed(address), only="connection-hung", on_fail=None)
    assert result.passed, result.explanation
    assert "no answer in time" in result.outcome.exception.text
    assert (True, 1) == (result.reproduced, len(result.trials))


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


def test_a_limit_that_was_not_reached_is_told():
    """The dataset passes since the loader gave up, so nobody saw what the dataset does."""
    with tcp_server(_greet) as address:
        (result,) = check_dataset(lambda: Patient(address), only="connection-hung", on_fail=None)
    assert result.passed, result.explanation
    assert "so that limit was not tested" in result.notes[-1]
    assert result.notes[-1] in result.explanation


def test_advice_for_a_time_limit_is_for_those_without():
    """An error with the wrong words at a limit is no hang."""
    with tcp_server(_greet) as address:
        (result,) = check_dataset(lambda: Wrong(address), only="connection-hung", on_fail=None)
    assert "failed_unclearly" == result.verdict
    assert "time limit" not in result.explanation
    assert "put the server's address there" in result.explanation


def test_a_limit_of_reads_that_was_not_reached_is_told(records):
    """In the explanation alone: hardly a reader of files has one, and each summary would say so."""
    (result,) = check_dataset(lambda: Records(records), only="hung-read")
    assert "so that limit was not tested" in result.explanation
    assert not result.notes
