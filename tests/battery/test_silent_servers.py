"""Answers that never come, and which no sample waits for: no dataset fails for them."""

from __future__ import annotations

import logging.handlers
import socket
import threading

import pytest
import torch
from torch.utils.data import Dataset

from pytest_dataloader_faults import check_dataset
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
        "no server answered on one that the engine sees" in each.explanation for each in results
    )


def test_a_thread_that_listens_does_not_hang_the_dataset():
    """Only the thread that fetches counts; that one has a limit."""
    with tcp_server(_greet) as address:
        (result,) = check_dataset(lambda: Listens(address), only="connection-hung", on_fail=None)
    assert result.passed, result.explanation
    assert result.outcome.fired
