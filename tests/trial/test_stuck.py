"""A loader whose worker is in a read that nothing ends is told so before its own timeout."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._settings.jobs import TrialJob, TrialOptions
from pytest_dataloader_faults._trial import run_trial_job
from pytest_dataloader_faults.faults import HungRead
from pytest_dataloader_faults.steps import Epoch, arm_workers
from support.datasets import Records
from support.rows import slow

LIMIT, PATIENCE = 0.5, 20
TIMED_OUT = f"DataLoader timed out after {PATIENCE} seconds"
"""What torch says however long it waited."""


class InThread(Records):
    """Has a time limit of its own: another thread reads."""

    def __getitem__(self, index):
        with ThreadPoolExecutor(1) as executor:
            reading = executor.submit(super().__getitem__, index)
            try:
                return reading.result(LIMIT)
            except TimeoutError:
                # The thread that hangs would be waited for, here and at the end of the worker.
                os._exit(3)


class WithWatchdog(Records):
    """Has a thread that ends the worker where a sample takes too long."""

    def __getitem__(self, index):
        watchdog = threading.Timer(LIMIT, os._exit, [3])
        watchdog.start()
        try:
            return super().__getitem__(index)
        finally:
            watchdog.cancel()


class WithHelper(Records):
    """Has a process that ends the worker where a sample takes too long."""

    def __getitem__(self, index):
        kill = f"import os, time; time.sleep({LIMIT}); os.kill({os.getpid()}, {signal.SIGKILL:d})"
        with subprocess.Popen([sys.executable, "-Sc", kill]) as helper:
            try:
                return super().__getitem__(index)
            finally:
                helper.kill()


class WithAlarm(Records):
    """Waits in its main thread for another one that reads, and has a timer end that."""

    def __getitem__(self, index):
        signal.signal(signal.SIGALRM, lambda *_: os._exit(3))
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        return self._read_in_thread(index)

    def _read_in_thread(self, index):
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(super().__getitem__, index).result()


class WithDaemon(WithAlarm):
    """The same, and a process that is not the worker's child sends a signal."""

    def __getitem__(self, index):
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
        worker = os.getpid()
        if not os.fork():
            if not os.fork():
                time.sleep(LIMIT)
                os.kill(worker, signal.SIGUSR1)
            os._exit(0)
        os.wait()
        return self._read_in_thread(index)


class _Watch:
    """Ends the workers that a look finds where the look before has found them: in a held call."""

    def __init__(self):
        self._seen = {}

    def __call__(self, *_):
        for pid in list(proc.family(os.getpid()))[1:]:
            with contextlib.suppress(OSError):
                state = proc.waits_in(pid), proc.runs(pid, str(pid))
                if state[0].startswith("seccomp") and self._seen.get(pid) == state:
                    os.kill(pid, signal.SIGKILL)
                self._seen[pid] = state


def watched_by_thread(folder):
    """Has a thread of the loader's process end workers that hang."""
    watch = _Watch()

    def look_again():
        while True:
            time.sleep(LIMIT)
            watch()

    threading.Thread(target=look_again, daemon=True).start()
    return Records(folder)


def watched_by_timer(folder):
    """Has a timer of the loader's process end workers that hang."""
    signal.signal(signal.SIGALRM, _Watch())
    signal.setitimer(signal.ITIMER_REAL, LIMIT, LIMIT)
    return Records(folder)


def hang(make_dataset, **loader):
    """The loader's error where reads hang, and the seconds of the trial."""
    job = TrialJob(
        make_dataset=make_dataset,
        faults=[HungRead()],
        settings=Settings(loader=loader),
        options=TrialOptions(processes=arm_workers(Epoch(patience=PATIENCE))),
    )
    began = time.monotonic()
    outcome = run_trial_job(job)
    assert outcome.fired
    return outcome, time.monotonic() - began


@pytest.mark.parametrize("workers", [slow(1), 2])
def test_the_loader_does_not_wait_for_a_read_that_nothing_ends(records, workers):
    outcome, seconds = hang(lambda: Records(records), num_workers=workers)

    assert TIMED_OUT in outcome.exception.message
    assert seconds < PATIENCE


@pytest.mark.parametrize("kind", [InThread, WithWatchdog, WithHelper, WithAlarm, WithDaemon])
def test_a_limit_of_the_datasets_own_is_waited_for(records, kind):
    outcome, _ = hang(lambda: kind(records), num_workers=1)

    assert "exited unexpectedly" in outcome.exception.text or outcome.deaths, outcome.exception
    assert TIMED_OUT not in outcome.exception.message


@pytest.mark.parametrize("make_dataset", [watched_by_thread, watched_by_timer])
def test_what_the_loaders_process_does_is_waited_for(records, make_dataset):
    outcome, _ = hang(lambda: make_dataset(records), num_workers=1)

    assert TIMED_OUT not in outcome.exception.message
    assert [death.exitcode for death in outcome.deaths] == [-signal.SIGKILL]
