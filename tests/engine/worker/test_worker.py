"""A worker: what it imports late and what it inherits, its parent and its children."""

import contextlib
import errno
import mmap
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.arm import end_with_parent
from pytest_dataloader_faults._engine.c_library import use_sockets_unseen
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    OpenError,
    ReadError,
    ShortRead,
    TruncatedFile,
    WorkerExited,
    WorkerHung,
    WorkerKilled,
)
from pytest_dataloader_faults.outcomes import FiringKind
from support.attempts import CONTENT, attempt, epoch_of, error_of
from support.epochs import alone, epoch
from support.served import SharesTensors
from support.tries import WAYS, Tries, child, in_threads, look_at, pread, read_on


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


SAMPLES = 12
SAMPLE = 5
KINDS = [
    pytest.param(WorkerKilled(sample=SAMPLE), f"signal {signal.SIGKILL}", id="killed"),
    pytest.param(WorkerExited(3, sample=SAMPLE), "exit 3", id="exited"),
    pytest.param(WorkerHung(sample=SAMPLE), "hang", id="hung"),
]


class Batches(Dataset):
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


PAGES = 4
BYTES = b"".join(bytes([number]) * mmap.PAGESIZE for number in range(PAGES))


@pytest.fixture(name="held_path")
def _held_path(tmp_path):
    path = tmp_path / "held.bin"
    path.write_bytes(BYTES)
    return str(path)


@pytest.fixture(name="held_fd")
def _held_fd(held_path):
    fd = os.open(held_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(name="mapped")
def _mapped(held_fd):
    with mmap.mmap(held_fd, 0, prot=mmap.PROT_READ) as mapping:
        yield mapping


def test_held_descriptors_meet_faults(tmp_path):
    """In the worker only: this process's own stay as they are, and so does another file's.

    The shorter file is at the same offset, with the right bytes up to its new end.
    """
    faults = {
        "failing": ReadError("*/failing.bin"),
        "closed": ClosedDescriptor("*/closed.bin"),
        "shorter": TruncatedFile("*/shorter.bin", keep=10),
        "short": ShortRead("*/short.bin", max_bytes=7),
    }
    paths = [str(tmp_path / f"{name}.bin") for name in (*faults, "spared")]
    with contextlib.ExitStack() as stack:
        for path in paths:
            Path(path).write_bytes(BYTES)
        files = [stack.enter_context(open(path, "rb", buffering=0)) for path in paths]
        failing, closed, shorter, short, spared = (each.fileno() for each in files)
        os.lseek(shorter, 2, os.SEEK_SET)
        sources = [(pread, failing), (pread, closed), (read_on, shorter), (pread, short)]
        sources.append((pread, spared))
        gave, injection = attempt(sources, lambda source: source[0](source[1]), *faults.values())
        assert [BYTES] * len(files) == [pread(each.fileno()) for each in files]
        assert 2 == files[2].tell()
    errors = [f"OSError: [Errno {each}] {os.strerror(each)}" for each in (errno.EIO, errno.EBADF)]
    assert [*errors, (10, BYTES[2:10]), BYTES[:7], BYTES] == gave
    (failed,), (lost,), (replaced,), _ = (each.firings for each in injection.faults)
    assert [("pread64", paths[0]), ("close", paths[1])] == [
        (each.call, each.path) for each in (failed, lost)
    ]
    assert (FiringKind.REPLACED, paths[2]) == (replaced.kind, replaced.path)


def test_a_held_mapping_raises_sigbus(held_path, mapped):
    with inject(ReadError("*.bin")) as injection:
        read = epoch(alone(Tries([(mapped, 0)], look_at)))
        assert (0, PAGES - 1) == (mapped[0], mapped[-1])
    assert {signal.SIGBUS} == read.signals
    (firing,) = injection.faults[0].firings
    assert ("mmap", held_path) == (firing.call, firing.path)


def test_a_held_mapping_is_of_a_shorter_file(mapped):
    sources = [(mapped, 0), (mapped, mmap.PAGESIZE - 1), (mapped, mmap.PAGESIZE)]
    with inject(TruncatedFile("*.bin", keep=mmap.PAGESIZE)) as injection:
        read = epoch(alone(Tries(sources, look_at)))
    assert {signal.SIGBUS} == read.signals
    assert injection.workers[0].fetches == len(sources)
    assert mapped[-1] == PAGES - 1


EIO = os.strerror(errno.EIO)


def test_children_are_counted_with_their_worker(path):
    def read(path):
        return [each(path) for each in (WAYS["pread"], error_of(child), WAYS["pread"])]

    ((first_read, child_read, last_read),), injection = attempt(
        [path], read, OpenError("*.rec", nth=2, times=1)
    )
    assert (CONTENT, CONTENT) == (first_read, last_read)
    assert EIO in child_read
    (firing,) = injection.faults[0].firings
    assert firing.pid != injection.workers[0].pid


def test_threads_of_a_worker_share_its_count(records):
    paths = sorted(map(str, records.iterdir())) * 8
    contents = [Path(path).read_bytes() for path in paths]
    fault = OpenError("*.rec", nth=50, times=3)
    (gave,), injection = attempt([paths], in_threads, fault)
    failed = [place for place, each in enumerate(gave) if isinstance(each, str)]
    assert 3 == len(failed)
    assert all(EIO in gave[place] for place in failed)
    spared = [place for place in range(len(paths)) if place not in failed]
    assert [contents[place] for place in spared] == [gave[place] for place in spared]
    assert (len(paths), 3) == (injection.matched, injection.fired)
