"""Connections and pipes from before the fork: which are shared, and which are healthy."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import get_worker_info

from pytest_dataloader_faults import Verdict
from pytest_dataloader_faults.battery.checks.network.rules import SharedConnection, find_cause
from pytest_dataloader_faults.outcomes import Pass, WorkerDeath
from support.datasets import Records
from support.facts import EIO, EPOCH_1, fired, ordinary, revised
from support.network_datasets import ByConnection, ByProcess, UnderLock, answer_squares
from support.results import failure_of, result_of
from support.rows import rows
from support.servers import read_all, tcp_server
from support.waiting import allowed

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
    """Has a queue, whose pipe is for several processes, and makes each sample differently."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.queue = multiprocessing.Queue()

    def __getitem__(self, index: int) -> Any:
        return index, os.getpid()


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
