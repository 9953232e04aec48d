"""A worker: what it imports late, the end of its parent, and faults at a certain sample."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection, Pipe

import pytest
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker as torch_worker

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._engine.worker.arm import end_with_parent
from pytest_dataloader_faults._engine.worker.sockets import use_sockets_unseen
from pytest_dataloader_faults.faults import ReadError, WorkerExited, WorkerHung, WorkerKilled
from pytest_dataloader_faults.outcomes import FiringKind
from support.attempts import epoch_of
from support.epochs import alone
from support.served import SharesTensors
from support.tries import Reads


def test_sharing_a_tensor_imports_nothing(records):
    loader = {"multiprocessing_context": "forkserver", "num_workers": 1}
    outcome = run_trial(lambda: SharesTensors(records), loader=loader)
    assert outcome.epochs[0].exception is None
    assert outcome.epochs[0].complete


def test_sharing_a_tensor_under_faults_imports_nothing(records):
    """Nor in a loop of the user's own: an import would meet the faults."""
    loader = DataLoader(SharesTensors(records), num_workers=1)
    with inject(ReadError("*.rec"), require_fired=False):
        assert len(list(loader)) == len(loader)


def _report_life(starter: int, tell: int, *, at_once: bool) -> None:
    """In a worker: wait until *starter* is gone, look, and tell if this process still runs."""
    while os.getppid() == starter:
        time.sleep(0.01)
    end_with_parent(at_once=at_once)
    os.write(tell, b"it runs")


def _start_and_die(tell: int, *, at_once: bool) -> None:
    context = multiprocessing.get_context("fork")
    keywords = {"at_once": at_once}
    context.Process(target=_report_life, args=(os.getpid(), tell), kwargs=keywords).start()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("at_once", [True, False], ids=["in a trial", "elsewhere"])
def test_a_parent_that_is_dead_already_is_missed(at_once):
    listen, tell = os.pipe()
    keywords = {"at_once": at_once}
    starter = multiprocessing.Process(target=_start_and_die, args=(tell,), kwargs=keywords)
    starter.start()
    os.close(tell)
    with open(listen, "rb") as pipe:  # Read to its end, which comes when both are gone.
        assert pipe.read() == b""
    starter.join()
    assert starter.exitcode == -signal.SIGKILL


def _parent(_source):
    """The pid that torch's loop takes for the parent's."""
    return torch_worker.ManagerWatchdog().manager_pid


def test_torch_looks_for_the_parent_that_the_worker_began_with():
    with inject(ReadError("*.none"), require_fired=False):
        (pid,) = alone(Reads([0], _parent))
    assert pid == os.getpid()


SAMPLES = 12
SAMPLE = 5
KINDS = [
    pytest.param(WorkerKilled(sample=SAMPLE), f"signal {signal.SIGKILL}", id="killed"),
    pytest.param(WorkerExited(3, sample=SAMPLE), "exit 3", id="exited"),
    pytest.param(WorkerHung(sample=SAMPLE), "hang", id="hung"),
]


class Batches(Dataset):
    """The same numbers, asked for whole batches."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


@pytest.mark.parametrize(("fault", "call"), KINDS)
def test_whichever_worker_begins_it(fault, call):
    kind = FiringKind.HANG if call == "hang" else FiringKind.DEATH
    with inject(fault) as injection:
        numbers = [*range(SAMPLES)]
        for dataset, size in ((numbers, None), (numbers, 1), (numbers, 4), (Batches(), 4)):
            place = SAMPLE // (size or 1)
            read, (facts,) = _epoch(injection, call, place, dataset, size)
            expected = numbers if size is None else _batches(size)
            assert expected[:place] == read.batches
            assert [(place % 2, place // 2 + 1, call, kind)] == [
                (firing.worker, firing.fetch, firing.call, firing.kind) for firing in facts.firings
            ]
            assert facts.mentioned == 1


def _epoch(injection, call, place, dataset, size):
    """An epoch of two workers, in which the batch at that place does not come."""
    hang = (injection, place) if call == "hang" else None
    return epoch_of(injection, alone(dataset, batch_size=size, num_workers=2), hang)


def _batches(size):
    return [[*range(start, start + size)] for start in range(0, SAMPLES, size)]


@pytest.mark.parametrize("duplex", [True, False], ids=["sockets", "pipe"])
def test_connections_pass_messages_unseen(monkeypatch, duplex):
    for method in (Connection._recv, Connection._send):
        monkeypatch.setattr(method, "__defaults__", method.__defaults__)
    use_sockets_unseen()
    near, far = Pipe(duplex=duplex)
    for size in (0, 1, 40_000):
        far.send_bytes(bytes(size))
        assert near.recv_bytes() == bytes(size)
    far.close()
    with pytest.raises(EOFError):
        near.recv_bytes()
    near.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        Connection._recv.__defaults__[0](1 << 20, 1)
