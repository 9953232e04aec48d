"""Datasets that read from a network: checks of files do not apply, and say why."""

from __future__ import annotations

import socket
import threading

import pytest
import torch
from torch.utils.data import Dataset

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults.faults import ReadError

COUNT = 8


class Served(Dataset):
    """Asks a server for each sample."""

    def __init__(self, family, address):
        self.family = family
        self.address = address

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        with socket.socket(self.family) as connection:
            connection.connect(self.address)
            connection.sendall(bytes([index]))
            return torch.tensor(list(connection.recv(1)))


def _serve(listening):
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            connection.sendall(connection.recv(1))


@pytest.fixture(name="serve")
def _serve_fixture():
    """A function that starts a server at an address, and tells that address."""
    started = []

    def serve(family, address):
        listening = socket.create_server(address, family=family)
        thread = threading.Thread(target=_serve, args=(listening,))
        thread.start()
        started.append((listening, thread))
        return listening.getsockname()

    yield serve
    for listening, thread in started:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()


def test_checks_of_files_say_that_sockets_have_no_faults(serve):
    """Instead of that no file is read, as if there were nothing to read."""
    address = serve(socket.AF_INET, ("127.0.0.1", 0))
    (result,) = check_dataset(lambda: Served(socket.AF_INET, address), only="read-error-first")
    assert not result.applies
    assert "read no data file; they connect to a network, and what comes" in result.explanation


def test_connections_are_counted(serve):
    """One for each sample; the recovery is not watched."""
    address = serve(socket.AF_INET, ("127.0.0.1", 0))
    outcome = run_trial(lambda: Served(socket.AF_INET, address), ReadError("*.none"))
    assert outcome.unobserved == {"connect to a network": COUNT}


class Local(Served):
    """Looks for a service of this machine, which is not there."""

    def __getitem__(self, index):
        with socket.socket(socket.AF_UNIX) as connection, pytest.raises(OSError, match="Err"):
            connection.connect("/nowhere")
        return torch.tensor(index)


def test_a_socket_of_this_machine_is_no_network():
    """As that of a name service is."""
    (result,) = check_dataset(lambda: Local(socket.AF_UNIX, ""), only="read-error-first")
    assert result.explanation.endswith("its workers read no data file")
