"""What befalls a process of the harness, or its own code, is never a verdict on the dataset."""

import contextlib
import functools
import os
import signal
import sys
import time
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._engine import client
from pytest_dataloader_faults._engine.arm import WorkerSession
from pytest_dataloader_faults._engine.supervisor.server import Supervisor
from pytest_dataloader_faults._trial import driver, take_reference, warden
from pytest_dataloader_faults._trial.journal import ProcessesStarted
from pytest_dataloader_faults._trial.process import surroundings
from pytest_dataloader_faults._trial.process.clock import OVERDUE
from pytest_dataloader_faults.exceptions import HarnessError, LostProcessError, UnusableDatasetError
from pytest_dataloader_faults.faults import ReadError
from support import troublemakers
from support.datasets import Records
from support.troublemakers import Trouble
from support.waiting import allowed, until

pytestmark = pytest.mark.usefixtures("engine")

LONG = 60.0
"""A deadline that is not meant to be waited for."""
SHORT = 2.0
SOON = 30.0
IN_A_WORKER = {"num_workers": 1, "batch_size": 4}
MUCH = 1 << 20
"""Bytes: more than a pipe takes."""


SUPERVISOR = r"supervisor \(pid \d+\).*"
WARDEN = r"enforces the trial's deadline \(pid \d+\)"
HARM = {
    "killed supervisor": (
        "worker",
        signal.SIGKILL,
        troublemakers.supervisor,
        f"{SUPERVISOR} was killed by SIGKILL",
    ),
    "ended supervisor": (
        *("loader", signal.SIGTERM, troublemakers.supervisor),
        f"{SUPERVISOR} was terminated by SIGTERM",
    ),
    "stopped supervisor": (
        *("worker", signal.SIGSTOP, troublemakers.supervisor, f"{SUPERVISOR} was stopped"),
    ),
    "stopped main process": (
        *("loader", signal.SIGSTOP, psutil.Process, r"main process \(pid \d+\).* was stopped"),
    ),
    "killed warden": (
        *("loader", signal.SIGKILL, troublemakers.warden),
        f"{WARDEN} was killed by SIGKILL before the trial",
    ),
    "ended warden": (
        *("worker", signal.SIGTERM, troublemakers.warden),
        "SIGTERM was sent to the process that enforces",
    ),
    "stopped warden": ("loader", signal.SIGSTOP, troublemakers.warden, f"{WARDEN} was stopped"),
}
SEEN_AT_THE_DEADLINE = ("stopped supervisor", "stopped main process")


@pytest.mark.parametrize("name", HARM)
def test_a_signal_to_a_process_of_the_harness_shows_nothing(records, left_behind, name):
    """The process to which it comes reads a file again and again, or waits for such a worker."""
    where, number, whom, message = HARM[name]
    trouble = functools.partial(troublemakers.send, number, whom)
    began = time.monotonic()
    with pytest.raises(HarnessError, match=message):
        run_trial(
            lambda: Trouble(records, trouble, where),
            ReadError("*.none"),
            loader={"num_workers": int(where == "worker"), "batch_size": 4},
            deadline=SHORT if name in SEEN_AT_THE_DEADLINE else LONG,
        )
    assert time.monotonic() - began < allowed(SOON)
    assert left_behind() == []


_REGISTER = Supervisor._register_worker


def _fail_with_much_output(supervisor, hello, descriptors):
    if hello.bystander:  # The main process.
        _REGISTER(supervisor, hello, descriptors)
        return
    sys.stderr.write("its beginning" + "." * MUCH)
    raise RuntimeError("a defect of the supervisor")


def _print_and_read(records):
    sys.stderr.write("made\n")
    return Records(records)


def test_what_a_supervisor_printed_is_reported(records, left_behind, monkeypatch):
    monkeypatch.setattr(Supervisor, "_register_worker", _fail_with_much_output)
    with pytest.raises(HarnessError, match="exited with status 70") as caught:
        run_trial(lambda: _print_and_read(records), ReadError("*.none"), loader=IN_A_WORKER)
    text, _, of_the_trial = str(caught.value).partition("The trial printed:")
    assert text.endswith("RuntimeError: a defect of the supervisor\n ")
    assert "its beginning" not in text
    assert len(text) < 6000
    assert of_the_trial.startswith("\nmade")
    assert "a defect of the supervisor" not in of_the_trial
    assert left_behind() == []


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def _interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def _once(action, note):
    if not note.exists():
        note.touch()
        action()


@pytest.mark.parametrize("action", [_interrupt, _die])
def test_a_reference_that_is_ended_once_is_repeated(records, reference, tmp_path, action):
    trouble = functools.partial(_once, action, tmp_path / "note")
    assert take_reference(lambda: Trouble(records, trouble, "loader")) == reference


def test_a_reference_that_is_interrupted_each_time_names_the_signal(records):
    with pytest.raises(
        UnusableDatasetError, match=r"died \(signal 2 \(SIGINT\), sent by"
    ) as caught:
        take_reference(lambda: Trouble(records, _interrupt, "loader"))
    assert "find out what kills processes on this machine" in str(caught.value)
    assert "KeyboardInterrupt" not in str(caught.value)
    assert "threads or locks" not in str(caught.value)


SERVED = {**IN_A_WORKER, "multiprocessing_context": "forkserver"}


@pytest.fixture(name="served")
def _served(records):
    """The facts of a healthy trial. The process that it has started to fork servers stays."""
    return run_trial(lambda: Records(records), loader=SERVED)


def test_a_fork_server_that_is_killed_shows_nothing(records, served, left_behind):
    assert served.exception is None
    kill = functools.partial(troublemakers.send, signal.SIGKILL, troublemakers.fork_server)
    with pytest.raises(LostProcessError, match=r"fork server \(pid \d+\).* was killed by SIGKILL"):
        run_trial(lambda: Trouble(records, kill, "worker"), loader=SERVED)
    assert left_behind() == []


def test_a_stopped_supervisor_is_an_error_of_inject(records, monkeypatch):
    monkeypatch.setattr(client, "_PATIENCE", 1.0)
    stopped = []
    with pytest.raises(HarnessError, match=r"supervisor \(pid \d+\) is stopped"):
        _stop_after_an_epoch(records, stopped)
    assert until(lambda: _has_ended(*stopped))


def _stop_after_an_epoch(records, stopped):
    with inject(ReadError("*/00.rec", nth=99), require_fired=False) as injection:
        list(DataLoader(Records(records), num_workers=1))
        stopped.append(psutil.Process(injection._client.pid))
        stopped[0].suspend()


def _has_ended(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def _fail_once_workers_start(self, _child):
    assert until(lambda: any(self.around.facts.of(ProcessesStarted)))
    raise RuntimeError("a defect of the warden")


def test_a_warden_whose_own_code_fails_leaves_no_process(records, left_behind, monkeypatch):
    monkeypatch.setattr(warden._Warden, "_wait_until_over", _fail_once_workers_start)
    with pytest.raises(HarnessError, match="a defect of the warden"):
        run_trial(lambda: Trouble(records, troublemakers.hang_forever, "worker"))
    assert left_behind() == []


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_worker_that_still_starts_ends_with_a_killed_warden(
    records, served, left_behind, is_ready
):
    """A loader in the options has the preloaded server; for a ready one, torch starts another."""
    assert served.exception is None

    def make_dataset():
        dataset = troublemakers.KillsWardenOnArrival(records)
        return DataLoader(dataset, **SERVED) if is_ready else dataset

    with pytest.raises(HarnessError, match="was killed by SIGKILL"):
        run_trial(make_dataset, loader=None if is_ready else SERVED)
    assert left_behind() == []


def test_complete_texts(golden):
    texts = {
        "a warden that was killed": str(surroundings.lost_warden_error(7, -signal.SIGKILL)),
        "a warden that exited": str(surroundings.lost_warden_error(7, None)),
        "a stopped main process": warden.describe_stop(7),
        "its own work takes too long": OVERDUE,
    }
    golden("harness", texts)


def _broken() -> Any:
    names: dict[str, Any] = {}
    exec(compile("def broken(*args): [][0]", driver.__file__, "exec"), names)  # noqa: S102
    return names["broken"]


class Numbers(IterableDataset[Any]):
    """A stream whose iterator is of C, and raises a ValueError there."""

    def __iter__(self) -> Any:
        return map(int, ["0", "1", "x", "3"])


class ForC(DataLoader[Any]):
    """A loader whose iterator is of C, and raises a ValueError there."""

    def __iter__(self) -> Any:
        return zip(super().__iter__(), [1], strict=True)


class Wrapping(DataLoader[Any]):
    """A loader that raises an error of its own for each error of its iterator."""

    def __iter__(self) -> Any:
        try:
            yield from super().__iter__()
        except Exception as error:
            message = "no batch"
            raise RuntimeError(message) from error


USERS = {
    "an index of a list": (lambda: DataLoader([torch.ones(1)], sampler=[0, 7]), "IndexError"),
    "an iterator of C": (lambda: DataLoader(Numbers(), num_workers=1), "ValueError"),
    "a loader of C": (lambda: ForC([torch.ones(1)] * 3), "ValueError"),
    "a collate_fn of C": (lambda: DataLoader([1, 2], num_workers=1, collate_fn=int), "TypeError"),
    "a batch sampler of C": (
        lambda: DataLoader([1, 2], batch_sampler=map(len, [[0], 1])),
        "TypeError",
    ),
}


@pytest.mark.parametrize("factory", USERS.values(), ids=USERS)
def test_an_error_that_c_raises_for_the_dataset(factory):
    make, kind = factory
    assert kind == run_trial(make, loader=None).exception.type


@pytest.mark.parametrize(
    ("owner", "name", "kind"),
    [
        (driver.LoaderDriver, "on_batch", Wrapping),
        (driver.LoaderDriver, "_write_batch", DataLoader),
        (WorkerSession, "begin", DataLoader),
    ],
)
def test_an_error_of_the_package(records, monkeypatch, owner, name, kind):
    monkeypatch.setattr(owner, name, _broken())
    with pytest.raises(HarnessError, match=r"own code failed(?s:.*)IndexError"):
        run_trial(lambda: kind(Records(records), batch_size=4, num_workers=2))
