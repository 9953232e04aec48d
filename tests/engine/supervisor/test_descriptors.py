"""Descriptors that workers bring along, lose and use again, and those of the supervisor itself."""

import errno
import itertools
import mmap
import os
from collections import defaultdict
from types import SimpleNamespace

import pytest
from torch.utils.data import Dataset

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.supervisor.events import Timers
from pytest_dataloader_faults._engine.supervisor.races import Rendezvous, share_description
from pytest_dataloader_faults.faults import ClosedDescriptor, ReadError, TruncatedFile
from support.attempts import CONTENT, epoch_of, error_of
from support.children import in_its_own_process
from support.epochs import alone, epoch
from support.tries import WAYS, Tries, in_a_child, number_of, pread

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

BYTES = bytes(range(200))
SAMPLES = 8


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(BYTES)
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
        (index, BYTES[index : index + 4] if index < lost_from else errno.EBADF)
        for index in range(SAMPLES)
    ]


def _flatten(batches):
    return [sample for each in batches for sample in (each if isinstance(each, list) else [each])]


def test_a_kept_file_is_closed_at_a_sample(tmp_path):
    samples = [1, 3, 7]
    paths = [tmp_path / f"{sample}.bin" for sample in samples]
    for path in paths:
        path.write_bytes(BYTES)
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
EIO = os.strerror(errno.EIO)


@pytest.fixture(name="paths")
def _paths(tmp_path):
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


FEW = 128
_kept: list[int] = []


@pytest.fixture(name="victim")
def _victim(tmp_path):
    path = tmp_path / "victim.bin"
    path.write_bytes(CONTENT)
    return str(path)


@pytest.fixture(name="plain")
def _plain(tmp_path):
    path = tmp_path / "plain.txt"
    path.write_bytes(b"plain")
    return str(path)


def _open_until(number, path):
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


@in_its_own_process(FEW)
def test_a_file_that_has_the_number_of_a_faulted_one(victim, plain):
    def read(use):
        number = number_of(victim)
        _open_until(number, plain)
        return USES[use](number)

    with inject(ReadError("*.bin"), require_fired=False) as injection:
        results = epoch(alone(Tries(list(USES), read))).batches
    assert {b"plain"} == {each.gave for each in results}
    assert injection.fired == 0


@in_its_own_process(FEW)
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


SIZE = 64
MANY = 260
"""Beyond the 253 that the kernel takes in one message (unix(7))."""


class Sizes(Dataset):
    """Opens every file as it is made, and tells how much of each there is, or the errno."""

    def __init__(self, folder):
        self.files = [os.open(path, os.O_RDONLY) for path in sorted(folder.iterdir())]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        try:
            return len(os.pread(self.files[index], SIZE, 0))
        except OSError as error:
            return -error.errno

    def __del__(self):
        for file in self.files:
            os.close(file)


def _fill_folder(folder, count):
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number:03}.bin").write_bytes(bytes([number % 256]) * SIZE)
    return folder


HELD = {
    "shorter": (TruncatedFile, SIZE // 2),
    "closed": (ClosedDescriptor, -errno.EBADF),
    "closed at a sample": (lambda glob: ClosedDescriptor(glob, sample=0), -errno.EBADF),
}
"""Faults, and what a read of a file gives then."""
CELLS = [
    *itertools.product([MANY], HELD),
    *((60, "shorter"), (61, "shorter"), (70, "closed")),  # A message of ours has 60.
]


def test_each_of_many_held_files_meets_the_fault(tmp_path):
    faults = [make(f"*/{name}/*.bin") for name, (make, _) in HELD.items()]
    with inject(*faults) as injection:
        for count, name in CELLS:
            dataset = Sizes(_fill_folder(tmp_path / str(count) / name, count))
            read, facts = epoch_of(injection, alone(dataset))
            assert [int(each) for each in read.batches] == [HELD[name][1]] * count
            assert facts[[*HELD].index(name)].fired == count
            del dataset  # It closes its files.


def test_duplicates_are_one_description_and_two_opens_are_not(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with open(path) as first_file, open(path) as second_file:
        duplicate = os.dup(first_file.fileno())
        try:
            assert share_description(first_file.fileno(), duplicate)
            assert not share_description(first_file.fileno(), second_file.fileno())
            assert os.get_blocking(duplicate)
        finally:
            os.close(duplicate)


def test_workers_at_two_files_take_turns_until_they_meet():
    """Whoever waits is relieved by the next one to come to another file."""
    events: list[str] = []
    meeting = Rendezvous(Timers())
    for worker, path in (("A", "x"), ("B", "y"), ("A", "z"), ("B", "z")):
        meeting.hold_read(_worker(), path, lambda text=f"{worker} read {path}": events.append(text))

    assert events == ["A read x", "B read y", "A read z", "B read z"]


def _worker():
    return SimpleNamespace(notes=defaultdict(set))


@pytest.mark.parametrize("meets", [True, False])
def test_the_first_vain_wait_is_noted_unless_workers_meet(meets):
    timers, worker = Timers(), _worker()
    barrier = Rendezvous(timers)
    for path in ("x", "y"):
        barrier.hold_read(worker, path, lambda: None)
        timers.expire(everything=path == "x" or not meets)
    if meets:
        barrier.hold_read(_worker(), "y", lambda: None)

    assert worker.notes["vain_waits"] == (set() if meets else {"x"})


def test_no_worker_waits_at_a_file_that_is_left_out():
    events: list[str] = []
    barrier = Rendezvous(Timers(), ("x",))
    for path in ("x", "y"):
        barrier.hold_read(_worker(), path, lambda path=path: events.append(path))

    assert events == ["x"]
