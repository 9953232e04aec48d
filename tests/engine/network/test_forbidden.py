"""Where the supervisor cannot do what a fault needs, the run ends in an error that says so."""

from __future__ import annotations

import errno

import pytest
import torch
from torch.utils.data import Dataset

from pytest_dataloader_faults import run_trial
from pytest_dataloader_faults._engine.kernel import caller
from pytest_dataloader_faults._engine.supervisor.answers.network import Relayed
from pytest_dataloader_faults.exceptions import InjectionError
from pytest_dataloader_faults.faults import ConnectError, ConnectionReset
from support.network_datasets import ByHttp, write_samples
from support.servers import http_server

ALONE = {"num_workers": 1, "batch_size": 8}


@pytest.fixture(name="_forbidden")
def _forbidden_fixture(monkeypatch):
    """As in containers of Docker. A trial's supervisor is a fork of this process."""

    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, "pidfd_getfd: Operation not permitted")

    monkeypatch.setattr(caller, "duplicate", refuse)


@pytest.fixture(name="url", scope="module")
def _url(tmp_path_factory):
    with http_server(write_samples(tmp_path_factory.mktemp("served"))) as url:
        yield url


@pytest.mark.usefixtures("_forbidden")
def test_connections_are_counted_and_can_fail(url):
    """What a socket is, its extended attribute tells."""
    outcome = run_trial(lambda: ByHttp(url), ConnectError(nth=2), loader=ALONE)
    assert "refused" in outcome.exception.message
    assert (1, [2]) == (outcome.fired, [*outcome.workers[0].connections.values()])


@pytest.mark.usefixtures("_forbidden")
def test_faults_of_answers_are_an_error_of_the_run(url):
    """It names the call that is missing, and what to do."""
    with pytest.raises(InjectionError, match=r"pidfd_getfd\(2\).*--cap-add SYS_PTRACE"):
        run_trial(lambda: ByHttp(url), ConnectionReset())


def test_a_failure_of_the_relay_is_an_error_of_the_run(url, monkeypatch):
    """The supervisor goes on, and says what failed."""

    def fail(*_):
        raise OSError(errno.ENOBUFS, "no room")

    monkeypatch.setattr(Relayed, "_under_faults", fail)
    with pytest.raises(InjectionError, match="no room"):
        run_trial(lambda: ByHttp(url), ConnectionReset())


class Idle(Dataset):
    """Connects to nothing."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.tensor(index)


@pytest.mark.usefixtures("_forbidden")
def test_a_dataset_without_connections_is_no_error():
    """The fault did not happen, and nothing else is wrong."""
    outcome = run_trial(Idle, ConnectionReset())
    assert (0, None) == (outcome.fired, outcome.exception)
