"""What befalls a process of the harness is never a verdict on the dataset."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._engine.loader import client
from pytest_dataloader_faults._engine.supervisor.server import Supervisor
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults._trial.journal import WorkersStarting
from pytest_dataloader_faults._trial.process import harness, warden
from pytest_dataloader_faults._trial.process.deadline import OVERDUE
from pytest_dataloader_faults._trial.resources import end_session
from pytest_dataloader_faults.exceptions import HarnessError, LostProcessError, UnusableDatasetError
from pytest_dataloader_faults.faults import ReadError
from support import troublemakers
from support.datasets import COUNT, Records
from support.judging import judge_trial
from support.killed import KilledFactory
from support.rows import slow
from support.troublemakers import Trouble
from support.waiting import allowed, until

LONG = 60.0
"""A deadline that is not meant to be waited for."""
SHORT = 2.0
SOON = 30.0
IN_A_WORKER = {"num_workers": 1, "batch_size": 4}
MUCH = 1 << 20
"""Bytes: more than a pipe takes."""
_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def _trouble(records, where, number, whom):
    """A dataset in which that signal comes to that process, and which then tries forever."""
    return Trouble(records, functools.partial(troublemakers.send, number, whom), where)


@pytest.mark.parametrize(
    ("where", "number", "phrase"),
    [
        ("worker", signal.SIGKILL, "was killed by SIGKILL"),
        ("loader", signal.SIGTERM, "was terminated by SIGTERM"),
    ],
)
def test_a_supervisor_that_ends_too_early_ends_the_trial(
    records, left_behind, where, number, phrase
):
    began = time.monotonic()
    loader = {"num_workers": int(where == "worker")}
    with pytest.raises(HarnessError, match=rf"supervisor \(pid \d+\).* {phrase}"):
        run_trial(
            lambda: _trouble(records, where, number, troublemakers.supervisor),
            ReadError("*.none"),
            loader=loader,
            deadline=LONG,
        )
    assert time.monotonic() - began < allowed(SOON)
    assert left_behind() == []


_REGISTER = Supervisor._register_worker


def _fail_with_much_output(supervisor, handshake, channel):
    if handshake.hello.bystander:  # The main process.
        _REGISTER(supervisor, handshake, channel)
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


@pytest.mark.parametrize("where", ["worker", slow("loader")])
def test_a_supervisor_that_is_stopped_is_reported_at_the_deadline(records, left_behind, where):
    loader = {"num_workers": int(where == "worker")}
    with pytest.raises(HarnessError, match=r"supervisor \(pid \d+\).* was stopped"):
        run_trial(
            lambda: _trouble(records, where, signal.SIGSTOP, troublemakers.supervisor),
            ReadError("*.none"),
            loader=loader,
            deadline=SHORT,
        )
    assert left_behind() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGINT)])
def test_a_trial_that_is_ordered_to_end_shows_nothing(records, left_behind, number):
    with pytest.raises(HarnessError, match=f"{number.name} was sent to the process that enforces"):
        run_trial(
            lambda: _trouble(records, "worker", number, troublemakers.warden), loader=IN_A_WORKER
        )
    assert left_behind() == []


def test_a_reference_that_is_ordered_to_end_shows_nothing(records, left_behind):
    with pytest.raises(HarnessError, match="SIGTERM was sent to the process that enforces"):
        take_reference(lambda: _trouble(records, "loader", signal.SIGTERM, troublemakers.warden))
    assert left_behind() == []


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_sigkill_of_the_loaders_process_may_come_from_outside(records, reference):
    """The dataset may have sent it itself, so it is a verdict; but one that says who else may."""
    outcome = run_trial(lambda: Trouble(records, _die, "loader"), loader={"num_workers": 0})
    assert outcome.died == "signal 9 (SIGKILL)"
    judgement = judge_trial(outcome, reference)
    assert judgement.verdict == "crashed"
    assert "out of memory" in judgement.sentence


def test_sigkill_of_a_reference_may_come_from_outside(records):
    with pytest.raises(UnusableDatasetError, match="out of memory"):
        take_reference(lambda: Trouble(records, _die, "loader"))


def _interrupt(note=None):
    """Send SIGINT to this process; with *note*, unless that file is there."""
    if note is None or not note.exists():
        if note is not None:
            note.touch()
        os.kill(os.getpid(), signal.SIGINT)


def test_a_reference_that_is_interrupted_once_is_repeated(records, reference, tmp_path):
    interrupt = functools.partial(_interrupt, tmp_path / "note")
    assert take_reference(lambda: Trouble(records, interrupt, "loader")) == reference


@pytest.mark.parametrize("where", ["make_dataset", "sample"])
def test_a_reference_that_is_interrupted_each_time_names_the_signal(records, tmp_path, where):
    make_dataset = lambda: Trouble(records, _interrupt, "loader")  # noqa: E731
    if where == "make_dataset":
        make_dataset = KilledFactory(
            tmp_path / "calls", Records, records, calls=(1, 2), number=signal.SIGINT
        )
    with pytest.raises(
        UnusableDatasetError, match=r"died \(signal 2 \(SIGINT\), sent by"
    ) as caught:
        take_reference(make_dataset)
    assert "find out what kills processes on this machine" in str(caught.value)
    assert "KeyboardInterrupt" not in str(caught.value)
    assert "threads or locks" not in str(caught.value)


def test_a_trial_that_is_interrupted_has_died(records):
    """The signal is no error of the loader's, so that no check passes by it."""
    outcome = run_trial(lambda: Trouble(records, _interrupt, "loader"), loader={"num_workers": 0})
    assert (outcome.died, outcome.exception) == ("signal 2 (SIGINT)", None)


def _catch_interrupt():
    with contextlib.suppress(KeyboardInterrupt):
        _interrupt()
        signal.pause()


def test_code_may_catch_an_interrupt(records, reference):
    assert take_reference(lambda: Trouble(records, _catch_interrupt, "loader")) == reference


SERVED = {**IN_A_WORKER, "multiprocessing_context": "forkserver"}


@pytest.fixture(name="served")
def _served(records):
    """The facts of a healthy trial. The process that it has started to fork servers stays."""
    return run_trial(lambda: Records(records), loader=SERVED)


@pytest.mark.parametrize("ranks", [None, slow(2)])
def test_a_fork_server_that_is_killed_shows_nothing(records, served, left_behind, ranks):
    assert served.exception is None
    kill = functools.partial(troublemakers.send, signal.SIGKILL, troublemakers.fork_server)
    with pytest.raises(LostProcessError, match=r"fork server \(pid \d+\).* was killed by SIGKILL"):
        run_trial(lambda: Trouble(records, kill, "worker"), loader=SERVED, ranks=ranks)
    assert left_behind() == []


def test_a_stopped_supervisor_is_an_error_of_inject(records, monkeypatch):
    monkeypatch.setattr(client, "_PATIENCE", 1.0)
    stopped = []
    with pytest.raises(HarnessError, match=r"supervisor \(pid \d+\) is stopped"):
        _stop_after_an_epoch(records, stopped)
    assert until(lambda: _has_ended(*stopped))


@pytest.mark.slow
def test_a_loop_of_inject_ends_when_the_supervisor_is_stopped(records):
    """Torch itself would wait forever for workers that wait for the supervisor."""
    with pytest.raises(HarnessError, match=r"supervisor \(pid \d+\) is stopped"):
        _stop_within_an_epoch(records)


def _stop_within_an_epoch(records):
    with inject(ReadError("*/00.rec", nth=99), require_fired=False) as injection:
        iterator = iter(DataLoader(Records(records), num_workers=1, batch_size=1))
        next(iterator)
        psutil.Process(injection._client.pid).suspend()
        list(iterator)


def test_an_injection_that_cannot_begin_leaves_nothing(monkeypatch):
    monkeypatch.setattr(client, "_PATIENCE", 0.5)
    started = []
    start = client._start

    def start_and_stop():
        process, handle = start()
        started.append(psutil.Process(process.pid))
        started[0].suspend()
        return process, handle

    monkeypatch.setattr(client, "_start", start_and_stop)
    scope = inject(ReadError("*.none"), require_fired=False)
    with pytest.raises(HarnessError, match=r"supervisor \(pid \d+\) is stopped"):
        scope.__enter__()
    assert until(lambda: _has_ended(*started))


def _stop_after_an_epoch(records, stopped):
    with inject(ReadError("*/00.rec", nth=99), require_fired=False) as injection:
        list(DataLoader(Records(records), num_workers=1))
        stopped.append(psutil.Process(injection._client.pid))
        stopped[0].suspend()


def _has_ended(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def test_a_stopped_loaders_process_shows_nothing(records, left_behind):
    with pytest.raises(HarnessError, match=r"main process \(pid \d+\).* was stopped"):
        run_trial(
            lambda: _trouble(records, "loader", signal.SIGSTOP, psutil.Process),
            loader={"num_workers": 0},
            deadline=SHORT,
        )
    assert left_behind() == []


def _die_once(note):
    if not note.exists():
        note.touch()
        _die()


def test_a_reference_that_was_killed_is_taken_once_more(records, tmp_path):
    die = functools.partial(_die_once, tmp_path / "note")

    assert len(take_reference(lambda: Trouble(records, die, "loader")).samples) == COUNT


def test_a_warden_that_is_killed_is_named(records, left_behind):
    message = r"enforces the trial's deadline \(pid \d+\) was killed by SIGKILL before the trial"
    with pytest.raises(HarnessError, match=message):
        run_trial(
            lambda: _trouble(records, "loader", signal.SIGKILL, troublemakers.warden),
            loader={"num_workers": 0},
        )
    assert left_behind() == []


def test_a_supervisor_that_is_stopped_ends_with_a_killed_warden(records, left_behind):
    with pytest.raises(HarnessError, match="was killed by SIGKILL"):
        run_trial(
            lambda: Trouble(records, troublemakers.stop_supervisor_and_kill_warden, "loader"),
            loader={"num_workers": 0},
        )
    assert left_behind() == []


def _fail_once_workers_start(_watched, _clock, journal):
    assert until(lambda: any(journal.of(WorkersStarting)))
    raise RuntimeError("a defect of the warden")


def test_a_warden_whose_own_code_fails_leaves_no_process(records, left_behind, monkeypatch):
    monkeypatch.setattr(warden, "_wait_until_over", _fail_once_workers_start)
    with pytest.raises(HarnessError, match="a defect of the warden"):
        run_trial(lambda: Trouble(records, troublemakers.hang_forever, "worker"))
    assert left_behind() == []


def test_a_warden_that_is_stopped_ends_the_trial(records, left_behind):
    began = time.monotonic()
    with pytest.raises(
        HarnessError, match=r"enforces the trial's deadline \(pid \d+\) was stopped"
    ):
        run_trial(
            lambda: _trouble(records, "loader", signal.SIGSTOP, troublemakers.warden),
            loader={"num_workers": 0},
            deadline=LONG,
        )
    assert time.monotonic() - began < allowed(SOON)
    assert left_behind() == []


def test_a_worker_that_still_starts_ends_with_a_killed_warden(records, left_behind):
    with pytest.raises(HarnessError, match="was killed by SIGKILL"):
        run_trial(
            lambda: troublemakers.KillsWardenOnArrival(records),
            loader={"num_workers": 1, "multiprocessing_context": "spawn"},
        )
    assert left_behind() == []


@pytest.mark.parametrize("is_preloaded", [True, False])
def test_a_worker_that_a_fork_server_starts_ends_with_a_killed_warden(
    records, served, left_behind, is_preloaded
):
    """A loader in the options has the preloaded server; for a ready one, torch starts another."""
    assert served.exception is None

    def make_dataset():
        dataset = troublemakers.KillsWardenOnArrival(records)
        return dataset if is_preloaded else DataLoader(dataset, **SERVED)

    with pytest.raises(HarnessError, match="was killed by SIGKILL"):
        run_trial(make_dataset, loader=SERVED if is_preloaded else None)
    assert left_behind() == []


def _start_session(pid: int | None = None) -> subprocess.Popen:
    """A process in a session of its own; its pid is *pid*, if that is given and free."""
    if pid is not None:
        _LAST_PID.write_text(str(pid - 1), encoding="ascii")
    return subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True
    )


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


@pytest.mark.skipif(
    not os.access(_LAST_PID, os.W_OK), reason=f"{_LAST_PID} (who may choose pids) is not writable"
)
def test_a_process_with_the_pid_of_a_dead_one_is_ended():
    dead = _start_session()
    list(psutil.process_iter())  # psutil keeps an object for the process.
    _end(dead)
    with contextlib.ExitStack() as scope:
        for _ in range(100):  # Another process may be faster.
            process = _start_session(dead.pid)
            scope.callback(_end, process)
            if process.pid == dead.pid:
                break
        assert process.pid == dead.pid
        end_session(process.pid, 10.0)
        assert process.poll() == -signal.SIGKILL


def test_complete_texts(golden):
    texts = {
        "a warden that was killed": harness.lost_warden_message(7, -signal.SIGKILL, "nothing"),
        "a warden that exited": harness.lost_warden_message(7, None, "nothing"),
        "a stopped main process": warden._describe_stop(7),
        "its own work takes too long": OVERDUE,
    }
    golden("harness", texts)
