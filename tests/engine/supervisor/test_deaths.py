"""Workers that die: between fetches, within a read, and after their first epoch."""

import ctypes
import faulthandler
import mmap
import signal

import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, _utils

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults.exceptions import HarnessError
from pytest_dataloader_faults.faults import OpenError, ReadError, WorkerKilled
from pytest_dataloader_faults.outcomes import FiringKind
from pytest_dataloader_faults.outcomes.fault_facts import explain_unfired
from support.attempts import epoch_of
from support.datasets import ManyTensors, Records, RecordStream, write_records
from support.epochs import alone, epoch
from support.supervisors import running_supervisors
from support.tries import WAYS, Tries, number_of

pytestmark = pytest.mark.usefixtures("engine")
SIGNALS = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM", "SIGBUS", "SIGHUP")


@pytest.fixture(name="dataset")
def _dataset(paths):
    """Sixteen files, one per batch."""
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


def test_so_does_one_from_a_fork_server(records):
    """The loader is no parent of it: it gets no SIGCHLD, and has no name for the signal."""
    number = signal.SIGKILL
    loader = {"num_workers": 2, "batch_size": 4, "multiprocessing_context": "forkserver"}
    outcome = run_trial(lambda: Records(records), WorkerKilled(number, at=2), loader=loader)
    assert [(each.worker, each.exitcode) for each in outcome.deaths] == [(0, -number)]
    assert "exited unexpectedly" in outcome.exception.text
    (firing,) = outcome.faults[0].firings
    assert (f"signal {int(number)}", 0, 2) == (firing.call, firing.worker, firing.fetch)
    assert [(0, 1, 2, 3), (4, 5, 6, 7)] == [each.keys for each in outcome.epochs[0].delivered]
    assert outcome.recovery.complete


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


@pytest.mark.parametrize(("at", "worker"), [(1, 1), (8, 1)])
def test_what_was_delivered_before_a_death_is_always_the_same(dataset, at, worker):
    with inject(WorkerKilled(at=at, worker=worker)):
        read = epoch(alone(dataset, num_workers=2))
    assert list(range(2 * (at - 1) + worker)) == [each.index for each in read.batches]
    assert -signal.SIGKILL == read.exit_codes[worker]


def test_a_worker_dies_with_half_a_batch_passed(records):
    with inject(WorkerKilled(at=2, sending=True)) as injection:
        read = epoch(alone(Records(records), num_workers=2))
    assert (2, -signal.SIGKILL) == (len(read.batches), read.exit_codes[0])
    assert "DataLoader worker" in read.text
    assert [(0, 2)] == [(each.worker, each.fetch) for each in injection.faults[0].firings]


def test_no_process_dies_before_their_time(dataset):
    times = ({"at": 17}, {"worker": 5}, {"sample": 16}, {"reading": "*.jpg"})
    with inject(*(WorkerKilled(**each) for each in times), require_fired=False) as injection:
        read = epoch(alone(dataset))
    assert (16, [0], None) == (len(read.batches), read.exit_codes, read.error)
    for facts in injection.faults:
        message = explain_unfired([facts], injection.workers)
        assert f"{facts.fault!r} never fired" in message
        assert "worker 0: 16" in message or "*.jpg" in message


@pytest.mark.slow
def test_a_spawned_worker_that_is_ordered_to_end_does_not_abort(records, monkeypatch):
    """The loop breaks while hundreds of tensors are shared."""
    # How long torch waits for a worker, which it then terminates: too short on a busy machine.
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 60.0)
    read = Tries([str(records / "00.rec")], number_of)
    with inject(OpenError("*/00.rec")):
        loader = alone(ConcatDataset([read, ManyTensors()]), multiprocessing_context="spawn")
        iterator = iter(loader)
        assert "Errno 5" in next(iterator).gave
        next(iterator)
        (worker,) = iterator._workers
        iterator._shutdown_workers()
    assert worker.exitcode == 0


def _supervisor():
    """The process that answers the workers' calls."""
    (supervisor,) = running_supervisors()
    return supervisor


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
    ("kind", "when"),
    [
        ("strict", "before"),
        ("tolerant", "during"),
        ("tolerant", "after"),
    ],
)
def test_a_supervisor_that_dies(dataset, records, kind, when):
    loader = alone(dataset if kind == "tolerant" else Records(records), prefetch_factor=1)
    armed = inject(ReadError("*/15.rec", nth=99), require_fired=False)
    with pytest.raises(HarnessError, match=r"supervisor .* fail with ENOSYS"), armed:
        _loop(loader, when)
    with inject(ReadError("*/15.rec")) as injection:
        epoch(loader)
    assert injection.fired == 1


PREFETCH = (1, 4)


def test_a_death_after_an_epoch_that_was_left_early(records):
    """What was prefetched for the epoch that was left counts, too."""
    with inject(WorkerKilled(at=12)):
        for prefetch in PREFETCH:
            loader = _persistent_loader(Records(records), 1, prefetch)
            next(iter(loader))
            second_epoch = epoch(loader)
            assert 12 - 1 - (1 + prefetch) == len(second_epoch.batches)
            assert "DataLoader worker" in second_epoch.text


def _persistent_loader(dataset, workers, prefetch):
    return alone(dataset, persistent_workers=True, num_workers=workers, prefetch_factor=prefetch)


class Stream(IterableDataset):
    """Eight samples, which take long to share, each tensor being a segment of its own."""

    def __iter__(self):
        return ([torch.full((1,), number) for _ in range(100)] for number in range(8))


def test_a_death_in_a_later_epoch_of_a_stream():
    """An epoch of a stream takes one fetch more, which finds its end.

    What the loader asks for beyond that, the worker drops, and is no fetch.
    """
    with inject(WorkerKilled(at=9 + 3)):
        loader = _persistent_loader(Stream(), 1, prefetch=4)
        complete_epoch, last_epoch = epoch(loader), epoch(loader)
    assert (8, None) == (len(complete_epoch.batches), complete_epoch.error)
    assert 2 == len(last_epoch.batches)
    assert "DataLoader worker" in last_epoch.text


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


def test_the_first_read_of_such_a_file_from_then_on(paths):
    with inject(WorkerKilled(reading="*/09.rec", at=2)) as injection:
        read = epoch(alone(Tries(paths, WAYS["read"])))

    assert list(range(9)) == [each.index for each in read.batches]
    assert [10] == [each.fetch for each in injection.faults[0].firings]


class Mapped(Records):
    """Maps each file, by code that keeps the interpreter lock."""

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return bytes(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def test_a_reader_that_keeps_the_interpreter_lock_dies_too(records):
    """It cannot hand over what it has made, so its death does not wait until that has come."""
    with inject(WorkerKilled(reading="*/05.rec")) as injection:
        read = epoch(alone(Mapped(records), prefetch_factor=8))

    assert len(read.batches) <= 5
    assert ([-signal.SIGKILL], 1) == (read.exit_codes, injection.fired)


class ReadsFirst(RecordStream):
    """Has read all of its samples by the time that the first is asked for."""

    def __iter__(self):
        return iter(list(super().__iter__()))


def test_a_later_fetch_is_waited_for(records):
    outcome = run_trial(lambda: ReadsFirst(records), WorkerKilled(reading="*.rec", at=2))

    assert outcome.fired == 0


def test_a_stream_dies_in_a_read_before_its_first_fetch(records):
    """What ``__iter__`` reads is read before that."""
    fault = WorkerKilled(reading="*", worker=0)
    outcome = run_trial(lambda: ReadsFirst(records), fault)

    (firing,) = outcome.faults[0].firings
    assert (firing.worker, firing.fetch) == (0, 0)
    assert [str(each) for each in outcome.deaths] == ["worker 0 was killed by SIGKILL"]
    assert outcome.fired == 1
    assert (outcome.delivered, outcome.recovery.complete) == ((), True)
