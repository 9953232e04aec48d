"""Descriptors that a dataset loses, and those of the supervisor itself."""

import errno
import itertools
import os

import pytest
from torch.utils.data import Dataset

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.system.proc import descriptors
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    ReadError,
)
from support.attempts import NEVER, epoch_of, error_of
from support.children import in_its_own_process
from support.epochs import alone, epoch
from support.tries import WAYS, Tries, pread

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
CONTENT = bytes(range(200))
SAMPLES = 8


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(CONTENT)
    return str(path)


class Lazy(Dataset):
    """Opens its file when it is first asked, and keeps it; tells what each sample gave."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int):
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDONLY)
        try:
            return index, os.pread(self.fd, 4, index)
        except OSError as error:
            return index, error.errno


def _expected(lost_from):
    return [
        (index, CONTENT[index : index + 4] if index < lost_from else errno.EBADF)
        for index in range(SAMPLES)
    ]


def _flatten(batches):
    return [sample for each in batches for sample in (each if isinstance(each, list) else [each])]


def test_a_kept_file_is_closed_at_a_sample(tmp_path):
    samples = [1, 3, 7]
    paths = [tmp_path / f"{sample}.bin" for sample in samples]
    for path in paths:
        path.write_bytes(CONTENT)
    faults = [
        ClosedDescriptor(str(path), sample=sample)
        for path, sample in zip(paths, samples, strict=True)
    ]
    with inject(*faults) as injection:
        for place, size in itertools.product(range(len(samples)), (None, 1, 4)):
            path, sample = str(paths[place]), samples[place]
            read, facts = epoch_of(injection, alone(Lazy(path), batch_size=size))
            assert _expected(sample) == _flatten(read.batches)
            (firing,) = facts[place].firings
            fetch = sample // (size or 1) + 1
            assert ("close", path, fetch) == (firing.call, firing.path, firing.fetch)


def test_a_log_is_left_open(tmp_path):
    """Of ``pytest >log`` every worker has the log; closing it would tell nothing of a dataset."""
    cells = list(itertools.product((os.O_WRONLY, os.O_RDWR), (None, 2)))
    paths = [f"{tmp_path}/{mode}-{sample}" for mode, sample in cells]
    faults = [ClosedDescriptor(path, sample=at) for path, (_, at) in zip(paths, cells, strict=True)]
    descriptors = [
        os.open(path, mode | os.O_CREAT) for path, (mode, _) in zip(paths, cells, strict=True)
    ]
    try:
        with inject(*faults, require_fired=False) as injection:
            epoch(alone(Tries(["", "", "", ""], len)))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert [0, 0, 1, 1] == [each.fired for each in injection.faults]


LIMIT = 256
WORKERS = 4
NOBODY = 65534
EIO = os.strerror(errno.EIO)


@pytest.fixture(name="paths")
def _paths(tmp_path):
    """More files than a process can have open."""
    paths = [tmp_path / f"{number:03}.bin" for number in range(400)]
    for path in paths:
        path.write_bytes(b"contents")
    return list(map(str, paths))


def _read(paths, *faults, read=WAYS["read"], workers=WORKERS):
    with inject(*faults) as injection:
        results = epoch(alone(Tries(paths, read), num_workers=workers)).batches
    return [each.gave for each in results], injection


@in_its_own_process(LIMIT, LIMIT)
def test_a_fault_of_every_file_happens_in_every_file(paths):
    """Four workers open more in all than the supervisor can: it forgets what they have closed."""
    gave, injection = _read(paths, ReadError("*.bin"), read=error_of(WAYS["read"]))
    assert len(paths) == injection.fired
    assert {f"[Errno 5] {EIO}"} == set(gave)


@in_its_own_process(LIMIT, LIMIT)
def test_files_that_workers_keep_open(paths):
    """More in all than the supervisor can have: it needs no descriptor of them."""
    kept = []

    def keep(path):
        kept.append(os.open(path, os.O_RDONLY))
        return error_of(pread)(kept[-1])

    gave, injection = _read(paths, ReadError("*.bin"), read=keep)
    assert {f"[Errno 5] {EIO}"} == set(gave)
    assert len(paths) == injection.fired


@in_its_own_process(LIMIT, LIMIT)
def test_nothing_is_kept_of_workers_that_have_ended(paths):
    loader = alone(Tries(paths[:40], WAYS["read"]), num_workers=2)
    with inject(ReadError("*.bin", nth=NEVER), require_fired=False) as injection:
        usages = [_count_after_epoch(epoch(loader), injection) for _ in range(4)]
    assert [usages[0]] * 4 == usages


def _count_after_epoch(read, injection):
    """How many descriptors the supervisor has once the workers of an epoch have ended."""
    assert [b"contents"] * 40 == [each.gave for each in read.batches]
    injection.refresh()
    return len(descriptors(injection._client.pid))


@in_its_own_process()
def test_a_dead_process_that_no_process_has_waited_for():
    """Has no descriptors, though /proc refuses to list them to all but root."""
    if not os.getuid():
        os.setuid(NOBODY)
    child = fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert set() == descriptors(child)
    os.waitpid(child, 0)
