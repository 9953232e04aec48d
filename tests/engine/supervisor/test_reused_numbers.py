"""A descriptor's number says nothing once it is closed: whoever has it next is another file."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import socket
import threading
from pathlib import Path

import pytest
import torch

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.system.proc import descriptors, room_below
from pytest_dataloader_faults.faults import ClosedDescriptor, ReadError
from support.attempts import CONTENT, NEVER, attempt, error_of
from support.children import in_a_process
from support.epochs import alone, epoch
from support.tries import WAYS, Tries, in_a_child, pread
from support.troublemakers import take_every_descriptor
from support.waiting import until

LIMIT = 128
EIO = os.strerror(errno.EIO)
_kept: list[int] = []


@pytest.fixture(name="victim")
def _victim(tmp_path):
    """A file that faults are about."""
    path = tmp_path / "victim.bin"
    path.write_bytes(CONTENT)
    return str(path)


@pytest.fixture(name="plain")
def _plain(tmp_path):
    """A file that no fault is about."""
    path = tmp_path / "plain.txt"
    path.write_bytes(b"plain")
    return str(path)


def _under_a_limit(body, limit=LIMIT):
    """Do *body* in a process that has few descriptors, as have its workers."""

    def limited():
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        body()

    assert not (told := in_a_process(limited)), told


def _number_of(path):
    """The number at which *path* was open."""
    fd = os.open(path, os.O_RDONLY)
    os.close(fd)
    return fd


def _take(number, path):
    """Open *path* until it has *number*, and no other."""
    others = []
    while (fd := os.open(path, os.O_RDONLY)) != number:
        others.append(fd)
    for each in others:
        os.close(each)


def _way(use):
    """Have the victim's number belong to the plain file, and use it."""

    def read(paths):
        victim, plain = paths
        number = _number_of(victim)
        _take(number, plain)
        return use(number)

    return read


def _map(fd):
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
        return data[:]


def _duplicate(fd):
    return pread(os.dup(fd))


def _child(fd):
    return in_a_child(lambda: pread(fd))


USES = {"pread": pread, "mmap": _map, "dup": _duplicate, "child": _child}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_file_that_has_the_number_of_a_faulted_one(victim, plain, use):
    """It is read rightly, and no fault is said to have happened."""

    def body():
        with inject(ReadError("*.bin"), require_fired=False) as injection:
            (result,) = epoch(alone(Tries([(victim, plain)], _way(use)))).batches
        assert (b"plain", 0) == (result.gave, injection.fired)

    _under_a_limit(body)


def test_every_file_that_is_kept_open(victim, plain):
    """As many as the limit allows, after the victim was read and had failed."""

    def read(paths):
        failed = error_of(WAYS["read"])(paths[0])
        room = LIMIT - len(os.listdir("/proc/self/fd"))
        fds = [os.open(paths[1], os.O_RDONLY) for _ in range(room)]
        return failed, {pread(fd) for fd in fds}

    def body():
        (gave,), injection = attempt([(victim, plain)], read, ReadError("*.bin"))
        assert (f"[Errno 5] {EIO}", {b"plain"}) == gave
        assert 1 == injection.fired

    _under_a_limit(body)


def test_a_number_that_nobody_has(victim):
    """Is refused by the kernel, as it is without the engine."""

    def read(path):
        return pread(_number_of(path))

    with inject(ReadError("*.bin"), require_fired=False) as injection:
        (result,) = epoch(alone(Tries([victim], read))).batches
    assert (f"OSError: [Errno 9] {os.strerror(errno.EBADF)}", 0) == (result.gave, injection.fired)


def test_what_is_closed_at_a_sample_is_the_victim(victim, plain):
    """And not the file that has its number by then."""

    def read(paths):
        if not _kept:
            _kept.append(_number_of(paths[0]))
            _take(_kept[0], paths[1])
        return pread(_kept[0])

    def body():
        faults = ClosedDescriptor("*.bin", sample=1), ReadError("*.bin", nth=99)
        with inject(*faults, require_fired=False) as injection:
            results = epoch(alone(Tries([(victim, plain)] * 2, read))).batches
        assert [b"plain"] * 2 == [each.gave for each in results]
        assert 0 == injection.fired

    _under_a_limit(body)


class _Tensors(Tries):
    """Samples that torch passes on by shared memory, which each sample opens and maps."""

    def __getitem__(self, index):
        self.read(self.sources[index])
        return torch.ones(1000)


@pytest.mark.parametrize("free", [26, 30, 34])
def test_shared_memory_that_has_the_number_of_a_faulted_file(victim, free):
    """Mapped by torch, which is no mapping of the dataset's."""

    def body():
        dataset = _Tensors([victim] * 40, error_of(WAYS["pread"]))
        with inject(ReadError("*.bin")) as injection:
            loader = alone(dataset, batch_size=4, collate_fn=None, num_workers=2)
            assert 10 == sum(1 for _ in loader)  # To keep one is to keep its descriptor.
        calls = {each.call for each in injection.faults[0].firings}
        assert ({"pread64"}, 40) == (calls, injection.fired)

    _under_a_limit(body, room_below(descriptors(os.getpid()), free))


# Numbers that are taken, and do not show.


def _await(server):
    """Have a thread wait in accept(2), which takes the one number that is free."""
    threading.Thread(target=server.accept, daemon=True).start()

    def is_full():
        try:
            os.close(os.dup(0))
        except OSError:
            return True
        return False

    assert until(is_full)


def _beside_waiting_threads(path):
    """Read the file while threads wait that have the first and the last of the high numbers."""
    ends = {LIMIT // 2, LIMIT - 1}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("")
        server.listen()
        taken = take_every_descriptor()
        for number in ends:
            os.close(number)
            _await(server)
        for each in set(taken) - ends:
            os.close(each)
        return WAYS["pread"](path)


def test_a_number_that_a_thread_waits_with(victim):
    """It is none that a file can have: the next one is given, and the fault happens there."""

    def body():
        (gave,), injection = attempt([victim], _beside_waiting_threads, ReadError("*.bin"))
        assert EIO in gave
        assert 1 == injection.fired

    _under_a_limit(body)


# What is still the file, under whatever name.


def test_a_file_that_is_removed_while_it_is_open(victim):
    """It is the same file, and its reads fail."""

    def read(path):
        with open(path, "rb", buffering=0) as file:
            os.unlink(path)
            return file.read()

    (gave,), _ = attempt([victim], read, ReadError("*.bin"))
    assert EIO in gave


def test_a_file_that_is_open_twice(victim):
    """The second number fails when the first one is closed, too."""

    def read(path):
        with open(path, "rb", buffering=0) as second:
            return error_of(WAYS["read"])(path), error_of(lambda file: file.read())(second)

    (gave,), injection = attempt([victim], read, ReadError("*.bin"))
    assert [f"[Errno 5] {EIO}"] * 2 == list(gave)
    assert 2 == injection.fired


def test_a_file_that_was_mapped_and_is_read(victim):
    """What was put under its number for the mapping's sake is not another file's."""

    def read(path):
        fd = os.open(path, os.O_RDONLY)
        mmap.mmap(fd, 0, access=mmap.ACCESS_READ).close()
        return pread(fd)

    (gave,), injection = attempt([victim], read, ReadError("*.bin"))
    assert EIO in gave
    assert ["mmap", "pread64"] == [each.call for each in injection.faults[0].firings]


def test_a_held_file_that_gets_another_name(victim):
    """The worker has it from before; its reads fail under the new name, too."""

    def read(fd):
        os.rename(victim, f"{victim}.old")
        return pread(fd)

    with open(victim, "rb") as file:
        (gave,), _ = attempt([file.fileno()], read, ReadError("*.bin"))
    assert EIO in gave


def test_a_file_that_is_kept_open_beside_many_that_are_closed(victim, plain):
    """A look at which are closed does not take the open one for closed."""

    def read(paths):
        with open(paths[0], "rb", buffering=0) as file:
            assert all(Path(paths[1]).read_bytes() for _ in range(1000))
            return file.read()

    faults = ReadError("*.bin"), ReadError("*.txt", nth=NEVER)
    with inject(*faults, require_fired=False) as injection:
        (result,) = epoch(alone(Tries([(victim, plain)], read))).batches
    assert EIO in result.gave
    assert 1 == injection.fired
