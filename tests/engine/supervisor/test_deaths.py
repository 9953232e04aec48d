"""Workers that die: between fetches, within a read, and after their first epoch."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import signal

import psutil
import pytest
import torch
from torch.utils.data import IterableDataset, _utils

from pytest_dataloader_faults import check_dataset, inject, run_trial
from pytest_dataloader_faults.exceptions import (
    FaultNotFiredError,
    InjectionError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import ReadError, WorkerKilled
from pytest_dataloader_faults.outcomes import FiringKind
from support.datasets import ManyTensors, Records, RecordStream
from support.epochs import alone, epoch
from support.tries import WAYS, Tries

SIGNALS = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM", "SIGBUS", "SIGHUP")


@pytest.fixture(name="dataset")
def _dataset(records):
    """Sixteen files, one per batch."""
    return Tries([str(path) for path in sorted(records.iterdir())], WAYS["read"])


@pytest.mark.parametrize("name", SIGNALS)
def test_a_worker_dies_by_that_signal(dataset, name):
    """As the kernel reports it, and as the loop is told."""
    number = signal.Signals[name]
    with inject(WorkerKilled(number, at=3)) as injection:
        read = epoch(alone(dataset, worker_init_fn=_die_in_silence))
    assert [-number] == read.exit_codes
    assert [0, 1] == [each.index for each in read.batches]
    assert "DataLoader worker" in read.text
    (firing,) = injection.faults[0].firings
    assert (f"signal {int(number)}", 0, 3) == (firing.call, firing.worker, firing.fetch)
    assert (1, 1) == (injection.fired, injection.surfaced)


@pytest.mark.parametrize("name", SIGNALS)
def test_so_does_one_from_a_fork_server(records, name):
    """The loader is no parent of it: it gets no SIGCHLD, and has no name for the signal."""
    number = signal.Signals[name]
    loader = {"num_workers": 2, "batch_size": 4, "multiprocessing_context": "forkserver"}
    outcome = run_trial(lambda: Records(records), WorkerKilled(number, at=2), loader=loader)
    assert [(each.worker, each.exitcode) for each in outcome.deaths] == [(0, -number)]
    assert "exited unexpectedly" in outcome.exception.text
    (firing,) = outcome.faults[0].firings
    assert (f"signal {int(number)}", 0, 2) == (firing.call, firing.worker, firing.fetch)
    assert [(0, 1, 2, 3), (4, 5, 6, 7)] == [each.indices for each in outcome.passes[0].delivered]
    assert outcome.recovery.complete


def test_a_signal_that_is_ignored_kills_all_the_same(dataset, request):
    """As under nohup(1), which has its program ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    with inject(WorkerKilled(signal.SIGHUP)):
        read = epoch(alone(dataset, worker_init_fn=_die_in_silence))
    assert read.exit_codes == [-signal.SIGHUP]


def test_so_does_one_that_has_a_handler_of_a_library(dataset, request):
    """As SIGHUP has with Debian's torch: Python knows nothing of it, and it does nothing."""
    does_nothing = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _number: None)
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    ctypes.CDLL(None).signal(int(signal.SIGHUP), does_nothing)
    with inject(WorkerKilled(signal.SIGHUP)):
        read = epoch(alone(dataset, worker_init_fn=_die_in_silence))
    assert read.exit_codes == [-signal.SIGHUP]


def _die_in_silence(_worker):
    """Without the stacks that pytest has its forks print."""
    faulthandler.disable()


@pytest.mark.parametrize("at", [1, 4, 8])
@pytest.mark.parametrize("worker", [0, 1])
def test_what_came_before_a_death_is_always_the_same(dataset, at, worker):
    """All batches up to the one that will not come: prefetching makes no difference."""
    with inject(WorkerKilled(at=at, worker=worker)):
        read = epoch(alone(dataset, num_workers=2))
    assert list(range(2 * (at - 1) + worker)) == [each.index for each in read.batches]
    assert -signal.SIGKILL == read.exit_codes[worker]


def test_every_worker_may_die(dataset):
    """When none is named, each one that begins the fetch: the loop ends with the first death."""
    with inject(WorkerKilled(worker=None)) as injection:
        read = epoch(alone(dataset, num_workers=2))
    killed = {worker for worker in range(2) if read.exit_codes[worker] == -signal.SIGKILL}
    assert 0 in killed
    assert killed == {firing.worker for firing in injection.faults[0].firings}
    assert read.batches == []


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_dies_with_half_a_batch_passed(records, method):
    """Nothing more comes, of other workers either, and the loop is told at once."""
    with inject(WorkerKilled(at=2, sending=True)) as injection:
        read = epoch(alone(Records(records), num_workers=2, multiprocessing_context=method))
    assert (2, -signal.SIGKILL) == (len(read.batches), read.exit_codes[0])
    assert "DataLoader worker" in read.text
    assert [(0, 2)] == [(each.worker, each.fetch) for each in injection.faults[0].firings]


@pytest.mark.parametrize("fault", [WorkerKilled(at=17), WorkerKilled(worker=5)])
def test_nobody_dies_before_their_time(dataset, fault):
    """Disarmed by a fetch, or a worker, that there is not: the whole epoch comes."""
    with pytest.raises(FaultNotFiredError, match="worker 0: 16"), inject(fault):
        read = epoch(alone(dataset))
    assert (16, [0], None) == (len(read.batches), read.exit_codes, read.error)


def test_a_spawned_worker_that_is_told_to_end_does_not_abort(monkeypatch):
    """Even in the middle of its queue: the loop breaks while hundreds of tensors are shared."""
    # How long torch waits for a worker, which it then terminates: too short on a busy machine.
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 60.0)
    with inject(ReadError("*.nothing"), require_fired=False):
        loader = alone(ManyTensors(), multiprocessing_context="spawn")
        iterator = iter(loader)
        next(iterator)
        (worker,) = iterator._workers
        iterator._shutdown_workers()
    assert worker.exitcode == 0


def _supervisor():
    """The process that answers the workers' calls."""
    children = psutil.Process().children()
    running = [each for each in children if each.status() != psutil.STATUS_ZOMBIE]
    (found,) = (each for each in running if "_engine.supervisor.server" in " ".join(each.cmdline()))
    return found


def _loop(loader, when):
    """Go over *loader*, and at a moment kill what serves its workers."""
    if when == "before":
        _supervisor().kill()
    for number, _ in enumerate(loader):
        if number == 2 and when == "during":
            _supervisor().kill()
    if when == "after":
        _supervisor().kill()


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("kind", ["strict", "tolerant"])
def test_a_supervisor_that_dies(dataset, records, kind, when):
    """Its workers' calls fail with ENOSYS then, which must not pass for the dataset's fault.

    Whenever it happens, the scope ends with an error of ours, and the next scope works.
    """
    loader = alone(dataset if kind == "tolerant" else Records(records), prefetch_factor=1)
    armed = inject(ReadError("*/15.rec", nth=99), require_fired=False)
    with pytest.raises(InjectionError, match=r"supervisor .* is gone"), armed:
        _loop(loader, when)
    with inject(ReadError("*/15.rec")) as injection:
        epoch(loader)
    assert injection.fired == 1


@pytest.mark.parametrize("prefetch", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_death_in_the_second_epoch(records, prefetch, workers):
    """Fetches are counted over the life of a persistent worker."""
    loader = _persistent(Records(records), workers, prefetch)
    with inject(WorkerKilled(at=16 // workers + 3)):
        first, second = epoch(loader), epoch(loader)
    assert (16, None) == (len(first.batches), first.error)
    assert 2 * workers == len(second.batches)
    assert "DataLoader worker" in second.text


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_a_death_after_an_epoch_that_was_left_early(records, prefetch):
    """What was prefetched for the epoch that was left counts, too."""
    loader = _persistent(Records(records), 1, prefetch)
    with inject(WorkerKilled(at=12)):
        next(iter(loader))
        second = epoch(loader)
    assert 12 - 1 - (1 + prefetch) == len(second.batches)
    assert "DataLoader worker" in second.text


def _persistent(dataset, workers, prefetch):
    return alone(dataset, persistent_workers=True, num_workers=workers, prefetch_factor=prefetch)


class Stream(IterableDataset):
    """Eight samples, which take long to share, each tensor being a segment of its own."""

    def __iter__(self):
        return ([torch.full((1,), number) for _ in range(300)] for number in range(8))


@pytest.mark.parametrize(("prefetch", "epochs"), [(1, 2), (2, 1), (4, 2)])
def test_a_death_in_a_later_epoch_of_a_stream(prefetch, epochs):
    """An epoch of a stream takes one fetch more, which finds its end.

    What the loader asks for beyond that, the worker drops, and is no fetch.
    """
    loader = _persistent(Stream(), 1, prefetch)
    with inject(WorkerKilled(at=9 * epochs + 3)):
        whole = [epoch(loader) for _ in range(epochs)]
        last = epoch(loader)
    assert [(8, None)] * epochs == [(len(each.batches), each.error) for each in whole]
    assert 2 == len(last.batches)
    assert "DataLoader worker" in last.text


@pytest.fixture(name="paths")
def _paths(records):
    return sorted(map(str, records.iterdir()))


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("at", [1, 4, 8])
@pytest.mark.parametrize("worker", [0, 1])
def test_what_came_before_is_always_the_same(paths, at, worker):
    """All batches up to the one whose reading was never finished."""
    fault = WorkerKilled(reading="*.rec", at=at, worker=worker)
    with inject(fault) as injection:
        read = epoch(alone(Tries(paths, WAYS["read"]), num_workers=2))

    place = 2 * (at - 1) + worker
    assert list(range(place)) == [each.index for each in read.batches]
    assert -signal.SIGKILL == read.exit_codes[worker]
    (firing,) = injection.faults[0].firings
    assert (FiringKind.DEATH, "signal 9", paths[place], worker, at) == (
        firing.kind,
        firing.call,
        firing.path,
        firing.worker,
        firing.fetch,
    )
    assert injection.surfaced == 1


@pytest.mark.usefixtures("engine")
def test_the_first_read_of_such_a_file_from_then_on(paths):
    """Others are read before, also in later fetches."""
    with inject(WorkerKilled(reading="*/09.rec", at=2)) as injection:
        read = epoch(alone(Tries(paths, WAYS["read"])))

    assert list(range(9)) == [each.index for each in read.batches]
    assert [10] == [each.fetch for each in injection.faults[0].firings]


@pytest.mark.usefixtures("engine")
def test_no_other_file_will_do(paths):
    """Nobody dies, and that is told."""
    with (
        pytest.raises(FaultNotFiredError, match="never fired"),
        inject(WorkerKilled(reading="*.jpg")),
    ):
        assert len(epoch(alone(Tries(paths, WAYS["read"]))).batches) == len(paths)


@pytest.mark.usefixtures("engine")
def test_one_that_is_stopped_goes_on(paths):
    """In the midst of its read, when the loader ends its workers."""
    with inject(WorkerKilled(signal.SIGSTOP, reading="*/02.rec")) as injection:
        read = epoch(alone(Tries(paths, WAYS["read"]), timeout=1))

    assert [0, 1] == [each.index for each in read.batches]
    assert ([0], 1) == (read.exit_codes, injection.surfaced)


class Mapped(Records):
    """Maps each file, by code that keeps the interpreter lock."""

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return bytes(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@pytest.mark.usefixtures("engine")
def test_a_reader_that_keeps_the_interpreter_lock_dies_too(records):
    """It cannot hand over what it has made, so its death does not wait until that has come."""
    with inject(WorkerKilled(reading="*/05.rec")) as injection:
        read = epoch(alone(Mapped(records), prefetch_factor=8))

    assert len(read.batches) <= 5
    assert ([-signal.SIGKILL], 1) == (read.exit_codes, injection.fired)


@pytest.mark.usefixtures("engine")
def test_the_fault_is_gone_for_the_recovery(records):
    """A trial's fresh pass reads the file that was not finished."""
    outcome = run_trial(lambda: Records(records), WorkerKilled(reading="*/00.rec"))

    assert (outcome.fired, outcome.delivered, outcome.recovery.complete) == (1, (), True)


@pytest.mark.usefixtures("engine")
def test_the_python_engine_refuses(records):
    """It has no hold on a read that has begun."""
    with pytest.raises(InvalidArgumentError, match="a read that has begun is the kernel's"):
        run_trial(lambda: Records(records), WorkerKilled(reading="*.rec"), engine="python")


class ReadsFirst(RecordStream):
    """Has read all of its samples by the time that the first is asked for."""

    def __iter__(self):
        return iter(list(super().__iter__()))


@pytest.mark.usefixtures("engine")
def test_a_stream_dies_in_a_read_before_its_first_fetch(records):
    """What ``__iter__`` reads is read before that."""
    outcome = run_trial(lambda: ReadsFirst(records), WorkerKilled(reading="*.rec"))

    (firing,) = outcome.faults[0].firings
    assert (firing.worker, firing.fetch) == (0, 0)
    assert [str(each) for each in outcome.deaths] == ["worker 0 was killed by SIGKILL"]


@pytest.mark.usefixtures("engine")
def test_a_later_fetch_is_waited_for(records):
    """With another ``at`` than 1 it has to begin."""
    outcome = run_trial(lambda: ReadsFirst(records), WorkerKilled(reading="*.rec", at=2))

    assert outcome.fired == 0


@pytest.mark.usefixtures("engine")
def test_a_stream_that_reads_first_passes_the_check(records):
    """The fault happens, and the loader tells of it."""
    (result,) = check_dataset(lambda: ReadsFirst(records), only="worker-killed-reading")

    assert (result.verdict, result.outcome.fired) == ("failed_cleanly", 1)
