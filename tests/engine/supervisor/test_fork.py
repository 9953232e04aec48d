"""The supervisor of a scope is a copy of the process that drives the loader, with nothing of it."""

import fcntl
import gc
import os
import select
import signal
import threading
import warnings

import psutil
import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults._engine.supervisor.start import NAME
from pytest_dataloader_faults.faults import ReadError, SlowRead
from pytest_dataloader_faults.injection import inject
from support.datasets import Records
from support.epochs import alone, epoch

pytestmark = pytest.mark.usefixtures("engine")


def _has_error(records):
    with inject(ReadError("*/00.rec")):
        return "Errno 5" in epoch(alone(Records(records))).text


def _started(injection):
    injection.refresh()
    return psutil.Process(injection._client.pid)


def test_it_keeps_no_file_folder_or_number_of_the_test(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    reading, writing = os.pipe()
    with open(tmp_path / "open", "w", encoding="utf-8") as file:
        os.set_inheritable(file.fileno(), True)
        with inject(ReadError("*.none"), require_fired=False) as injection:
            supervisor = _started(injection)
            assert (supervisor.cwd(), supervisor.open_files(), supervisor.name()) == ("/", [], NAME)
            assert supervisor.ppid() == os.getpid()
            os.close(writing)
            assert [(reading, select.POLLHUP)] == _poll(reading)
    os.close(reading)
    assert not supervisor.is_running()


def _poll(descriptor):
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll.poll(10_000)


def test_a_lock_of_the_test_stays_locked(tmp_path):
    path = tmp_path / "lock"
    with open(path, "w", encoding="utf-8") as ours, open(path, "w", encoding="utf-8") as theirs:
        fcntl.flock(ours, fcntl.LOCK_EX)
        with inject(ReadError("*.none"), require_fired=False) as injection:
            _started(injection)
            with pytest.raises(BlockingIOError):
                fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)


class _Finalized:
    def __init__(self, descriptor):
        self.itself, self._descriptor = self, descriptor

    def __del__(self):
        os.write(self._descriptor, b"%d\n" % os.getpid())


def test_nothing_of_the_test_is_finalized_there(records, tmp_path):
    """Not even an iterator that waits for the garbage collector, and would end its workers."""
    running = iter(DataLoader(Records(records), num_workers=1, batch_size=1))
    next(running)
    _Finalized(os.open(tmp_path / "finalized", os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    with inject(ReadError("*/00.rec")) as injection:
        assert "Errno 5" in epoch(alone(Records(records))).text
        supervisor = str(injection._client.pid)
    assert len(list(running)) > 0
    gc.collect()
    assert supervisor not in (tmp_path / "finalized").read_text(encoding="utf-8").split()


def test_it_is_forked_while_threads_hold_locks(records):
    lock, over = threading.RLock(), threading.Event()

    def hold():
        with lock:
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # From Python 3.12 on, os.fork() warns of threads.
            with inject(ReadError("*/00.rec"), require_fired=False) as injection:
                _started(injection)
        assert _has_error(records)
    finally:
        over.set()
        thread.join()


def test_signals_do_not_run_handlers_of_the_test(records, tmp_path):
    """Nor do they write to what a loop of the test's waits for."""
    reading, writing = os.pipe2(os.O_NONBLOCK)
    before = signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG))
    wakeup = signal.set_wakeup_fd(writing)
    try:
        with inject(ReadError("*/00.rec")) as injection:
            supervisor = _started(injection)
            supervisor.send_signal(signal.SIGCHLD)
            supervisor.send_signal(signal.SIGINT)
            assert "Errno 5" in epoch(alone(Records(records))).text
            assert supervisor.is_running()
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGCHLD, before)
        os.close(reading)
        os.close(writing)


REPLACED = {
    "os.listdir": lambda *_: ["a.jpg"],
    "os.readlink": lambda *_: "/a.jpg",
    "os.unlink": lambda *_: None,
    "os.kill": lambda *_: None,
    "os.path.exists": lambda _: True,
    "time.monotonic": lambda: 0.0,
}


@pytest.mark.parametrize("name", REPLACED)
def test_functions_that_a_test_has_replaced_are_not_the_supervisors(records, monkeypatch, name):
    """The clock may also stand still by freezegun."""
    dataset, slow = Records(records), SlowRead("*/00.rec", seconds=0.05, times=1)
    with monkeypatch.context() as replacing:
        replacing.setattr(name, REPLACED[name])
        with inject(slow, ReadError("*/00.rec", nth=2)) as injection:
            read = epoch(alone(dataset))
    assert "Errno 5" in read.text
    assert [1, 1] == [each.fired for each in injection.faults]
