"""Workers that die, supervisors that die, and what the fork of a supervisor keeps of the test."""

import ctypes
import faulthandler
import gc
import mmap
import os
import select
import signal
import threading
import warnings

import psutil
import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.supervisor.start import NAME
from pytest_dataloader_faults.exceptions import HarnessError
from pytest_dataloader_faults.faults import ReadError, SlowRead, WorkerKilled
from pytest_dataloader_faults.outcomes import FiringKind
from support.attempts import epoch_of
from support.datasets import Records, write_records
from support.epochs import alone, epoch
from support.supervisors import running_supervisors
from support.tries import WAYS, Tries
from support.waiting import until

pytestmark = pytest.mark.usefixtures("engine")

SIGNALS = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM", "SIGBUS", "SIGHUP")


@pytest.fixture(name="dataset")
def _dataset(paths):
    return Tries(paths, WAYS["read"])


def test_a_worker_dies_by_each_signal(dataset):
    numbers = [signal.Signals[name] for name in SIGNALS]
    faults = [WorkerKilled(number, sample=sample) for sample, number in enumerate(numbers)]
    with inject(*faults) as injection:
        for sample, number in enumerate(numbers):
            order = [8, 9, sample, 10]
            loader = alone(dataset, sampler=order, worker_init_fn=_disable_stacks)
            read, facts = epoch_of(injection, loader)
            assert [-number] == read.exit_codes
            assert [8, 9] == [each.index for each in read.batches]
            assert "DataLoader worker" in read.text
            (firing,) = facts[sample].firings
            assert (f"signal {int(number)}", 0, 3) == (firing.call, firing.worker, firing.fetch)
            assert [place == sample for place in range(len(faults))] == [
                bool(each.fired and each.mentioned) for each in facts
            ]


def _do_nothing_in_c():
    """As SIGHUP has with Debian's torch: Python knows nothing of such a handler."""
    ctypes.CDLL(None).signal(int(signal.SIGHUP), DOES_NOTHING)


DOES_NOTHING = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _number: None)


@pytest.mark.parametrize(
    "prepare",
    [lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN), _do_nothing_in_c],
    ids=["ignored", "handled by a library"],
)
def test_a_signal_kills_whatever_handles_it(dataset, request, prepare):
    """As under nohup(1), which has its program ignore SIGHUP."""
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    prepare()
    with inject(WorkerKilled(signal.SIGHUP)):
        read = epoch(alone(dataset, worker_init_fn=_disable_stacks))
    assert read.exit_codes == [-signal.SIGHUP]


def _disable_stacks(_worker):
    """Without the stacks that pytest has its forks print."""
    faulthandler.disable()


def test_a_worker_dies_with_half_a_batch_passed(records):
    with inject(WorkerKilled(at=2, sending=True)) as injection:
        read = epoch(alone(Records(records), num_workers=2))
    assert (2, -signal.SIGKILL) == (len(read.batches), read.exit_codes[0])
    assert "DataLoader worker" in read.text
    assert [(0, 2)] == [(each.worker, each.fetch) for each in injection.faults[0].firings]


def _supervisor():
    assert until(lambda: len(running_supervisors()) == 1)  # That of an earlier scope may end late.
    return running_supervisors().pop()


def _loop(loader, when):
    """Go over *loader*, and at a moment kill what serves its workers."""
    if when == "before":
        _supervisor().kill()
    for number, _ in enumerate(loader):
        if number == 2 and when == "during":
            _supervisor().kill()
    if when == "after":
        _supervisor().kill()


@pytest.mark.parametrize(
    ("kind", "when"), [("strict", "before"), ("tolerant", "during"), ("tolerant", "after")]
)
def test_a_supervisor_that_dies(dataset, records, kind, when):
    loader = alone(dataset if kind == "tolerant" else Records(records), prefetch_factor=1)
    armed = inject(ReadError("*/15.rec", nth=99), require_fired=False)
    with pytest.raises(HarnessError, match=r"supervisor .* fail with ENOSYS"), armed:
        _loop(loader, when)
    with inject(ReadError("*/15.rec")) as injection:
        epoch(loader)
    assert injection.fired == 1


def test_what_was_delivered_before_is_always_the_same(tmp_path):
    cells = [(1, 0), (4, 1), (8, 0)]
    faults = [
        WorkerKilled(reading=f"*/{at}-{worker}/*.rec", at=at, worker=worker) for at, worker in cells
    ]
    with inject(*faults) as injection:
        for cell, (at, worker) in enumerate(cells):
            folder = write_records(tmp_path / f"{at}-{worker}")
            paths = sorted(map(str, folder.iterdir()))
            read, facts = epoch_of(injection, alone(Tries(paths, WAYS["read"]), num_workers=2))

            place = 2 * (at - 1) + worker
            assert list(range(place)) == [each.index for each in read.batches]
            assert -signal.SIGKILL == read.exit_codes[worker]
            (firing,) = facts[cell].firings
            assert (firing.kind, firing.call) == (FiringKind.DEATH, "signal 9")
            assert (firing.path, firing.worker, firing.fetch) == (paths[place], worker, at)
            assert [1] == [each.mentioned for each in facts if each.fired]


class Mapped(Records):
    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return bytes(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def test_a_reader_that_keeps_the_interpreter_lock_dies_too(records):
    """It cannot hand over what it has made, so its death does not wait until that has come."""
    with inject(WorkerKilled(reading="*/05.rec")) as injection:
        read = epoch(alone(Mapped(records), prefetch_factor=8))

    assert len(read.batches) <= 5
    assert ([-signal.SIGKILL], 1) == (read.exit_codes, injection.fired)


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


def test_signals_do_not_run_handlers_of_the_test(records):
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
    "os.readlink": lambda *_: "/a.jpg",
    "os.kill": lambda *_: None,
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
