"""A descriptor's number says nothing once it is closed: whoever has it next is another file."""

import mmap
import os

import pytest
import torch

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.system.proc import descriptors, limit_for_headroom
from pytest_dataloader_faults.faults import ClosedDescriptor, ReadError
from support.attempts import CONTENT, error_of
from support.children import in_its_own_process
from support.epochs import alone, epoch
from support.tries import WAYS, Tries, in_a_child, number_of, pread

LIMIT = 128
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


def _open_until(number, path):
    """Open *path* until it has *number*, and no other."""
    descriptors = []
    while (fd := os.open(path, os.O_RDONLY)) != number:
        descriptors.append(fd)
    for descriptor in descriptors:
        os.close(descriptor)


def _map(fd):
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
        return data[:]


def _duplicate(fd):
    return pread(os.dup(fd))


def _child(fd):
    return in_a_child(lambda: pread(fd))


USES = {"pread": pread, "mmap": _map, "dup": _duplicate, "child": _child}


@in_its_own_process(LIMIT)
def test_a_file_that_has_the_number_of_a_faulted_one(victim, plain):
    def read(use):
        number = number_of(victim)
        _open_until(number, plain)
        return USES[use](number)

    with inject(ReadError("*.bin"), require_fired=False) as injection:
        results = epoch(alone(Tries(list(USES), read))).batches
    assert {b"plain"} == {each.gave for each in results}
    assert injection.fired == 0


@in_its_own_process(LIMIT)
def test_what_is_closed_at_a_sample_is_the_victim(victim, plain):
    def read(paths):
        if not _kept:
            _kept.append(number_of(paths[0]))
            _open_until(_kept[0], paths[1])
        return pread(_kept[0])

    faults = ClosedDescriptor("*.bin", sample=1), ReadError("*.bin", nth=99)
    with inject(*faults, require_fired=False) as injection:
        results = epoch(alone(Tries([(victim, plain)] * 2, read))).batches
    assert [b"plain"] * 2 == [each.gave for each in results]
    assert 0 == injection.fired


class _Tensors(Tries):
    """Samples that torch passes on by shared memory, which each sample opens and maps."""

    def __getitem__(self, index):
        self.read(self.sources[index])
        return torch.ones(1000)


def test_shared_memory_that_has_the_number_of_a_faulted_file(victim):
    """Mapped by torch, which is no mapping of the dataset's."""

    @in_its_own_process(limit_for_headroom(descriptors(os.getpid()), 30))
    def body():
        dataset = _Tensors([victim] * 40, error_of(WAYS["pread"]))
        with inject(ReadError("*.bin")) as injection:
            loader = alone(dataset, batch_size=4, collate_fn=None, num_workers=2)
            assert 10 == sum(1 for _ in loader)  # To keep one is to keep its descriptor.
        calls = {each.call for each in injection.faults[0].firings}
        assert ({"pread64"}, 40) == (calls, injection.fired)

    body()


# What is still the file, under whatever name.
