"""Writes that no fault is about, deaths within a write, and containers that forbid much."""

import logging
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from pytest_dataloader_faults import Verdict, inject, run_trial
from pytest_dataloader_faults._engine.kernel import syscalls
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import run_trial_job, take_reference
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults.faults import ShortRead, ShortWrite, WorkerKilled, WriteError
from pytest_dataloader_faults.steps import TrialOptions
from support.attempts import attempt, epoch_of
from support.contracts.writes import CONTENT, WRITING
from support.datasets import CopiedRecords, Records
from support.epochs import alone
from support.judging import judge_trial
from support.surroundings import refuse_duplicate
from support.tries import Tries

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture(name="path")
def _path(tmp_path):
    """Where a worker writes; there is no file yet."""
    return str(tmp_path / "written.bin")


def test_pipes_sockets_and_standard_output_are_left_alone(path, capfd):
    def write(_path):
        read, written = os.pipe()
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("memory")
        with ours, theirs, tempfile.TemporaryFile() as nameless:
            count = os.write(written, b"pipe") + os.write(ours.fileno(), b"socket")
            count += os.write(memory, b"memory") + nameless.write(b"nameless")
            nameless.flush()
        for fd in (read, written, memory):
            os.close(fd)
        sys.stderr.write("printed")
        logging.getLogger("written").error("logged")
        return count

    (gave,), injection = attempt([path], write, WriteError("*"), require_fired=False)

    assert gave == 4 + 6 + 6 + 8
    assert (injection.matched, injection.workers[0].unobserved) == (0, {})
    assert "printed" in capfd.readouterr().err


def test_a_file_that_was_open_before_is_left_alone_and_reported(path):
    with open(path, "wb", buffering=0) as log:
        (gave,), injection = attempt(
            [path], lambda _path: log.write(b"a line"), WriteError("*"), require_fired=False
        )

    assert gave == 6
    reason = "write to a file that was open before the worker started"
    assert injection.workers[0].unobserved == {reason: 1}
    assert f"Not visible to the engine: {reason} (1)" in str(injection.explain_unfired())


def test_a_mapping_is_reported(path):
    """The kernel writes it back later, without a call."""

    def write(path):
        mapped = np.memmap(path, np.uint8, "w+", shape=99)
        mapped[:] = 7

    _, injection = attempt([path], write, WriteError("*", nth=99), require_fired=False)

    assert injection.workers[0].unobserved == {"write through a mapping": 1}
    assert Path(path).read_bytes() == b"\7" * 99


def test_a_death_leaves_half_of_a_write(tmp_path):
    cells = [(worker, at) for worker in range(2) for at in (1, 3)]
    faults = [
        WorkerKilled(writing=f"*/{worker}-{at}/*", worker=worker, at=at) for worker, at in cells
    ]
    with inject(*faults) as injection:
        for cell, (worker, at) in enumerate(cells):
            folder = tmp_path / f"{worker}-{at}"
            folder.mkdir()
            paths = [str(folder / f"{number}.bin") for number in range(8)]
            loader = alone(Tries(paths, WRITING["write"]), num_workers=2)
            read, facts = epoch_of(injection, loader)

            place = 2 * (at - 1) + worker
            assert list(range(place)) == [each.index for each in read.batches]
            assert -signal.SIGKILL == read.exit_codes[worker]
            (firing,) = facts[cell].firings
            assert ("signal 9", paths[place]) == (firing.call, firing.path)
            assert facts[cell].mentioned == 1
            assert Path(paths[place]).read_bytes() == CONTENT[: len(CONTENT) // 2]


def test_a_fault_free_run_counts_writes(records):
    job = Job(
        make_dataset=lambda folder: CopiedRecords(records, folder),
        settings=Settings(loader={"num_workers": 1}),
        options=TrialOptions(watch_files=True),
    )

    (worker,) = run_trial_job(job).workers
    written = {os.path.basename(path): each.writes for path, each in worker.files.items()}
    assert written == {f"{n:02}.copy": 1 for n in range(16)} | {f"{n:02}.rec": 0 for n in range(16)}


class Looping(Records):
    """Copies each record in as many writes as it takes, and gives what is in the copy then."""

    def __init__(self, folder, copies):
        super().__init__(folder)
        self.copies = copies

    def __getitem__(self, index):
        way = ("writev", "pwrite", "append")[index % 3]
        data = self.paths[index].read_bytes()
        path = self.copies / f"{index}.copy"
        flags = os.O_APPEND if way == "append" else 0
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o600)
        offset = 0
        while offset < len(data):
            remaining = data[offset:]
            is_pwrite = way == "pwrite"
            offset += (
                os.pwrite(fd, remaining, offset)
                if is_pwrite
                else os.writev(fd, [remaining[:5], remaining[5:]])
            )
        os.close(fd)
        return list(path.read_bytes()), index


@pytest.mark.parametrize(
    ("fault", "fired"),
    [
        (ShortWrite("*.copy", max_bytes=9), 16 * 7),
        (ShortRead("*.rec", max_bytes=9), 16 * 7),
        (WorkerKilled(writing="*/0.copy"), 1),
    ],
    ids=["short write", "short read", "death"],
)
def test_a_container_may_forbid_duplicates(records, monkeypatch, fault, fired):
    """Docker's profile refuses pidfd_getfd(2); the supervisor of a trial is forked from here."""
    monkeypatch.setattr(syscalls, "duplicate", refuse_duplicate)

    def make(folder):
        return Looping(records, folder)

    outcome = run_trial(make, fault, loader={"num_workers": 1})
    assert (outcome.fired, outcome.recovery.complete) == (fired, True)
    if fired > 1:
        assert judge_trial(outcome, take_reference(make)).verdict is Verdict.SURVIVED
