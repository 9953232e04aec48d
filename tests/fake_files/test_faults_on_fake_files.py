"""What faults do to fake files, by each way of reading them."""

import mmap
import resource
import sys

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults.exceptions import FaultNotFiredError, InvalidArgumentError
from pytest_dataloader_faults.faults import (
    DescriptorExhaustion,
    HungRead,
    ReadError,
    ShortRead,
    StrayEntry,
    TruncatedFile,
    WorkerKilled,
)
from support.epochs import epoch
from support.fake_datasets import (
    COUNT,
    SIZE,
    FakeRecords,
    by_modules_of_its_own,
    write_modules,
)
from support.readers.libraries import builtin_open
from support.rows import slow


def _epoch(read=builtin_open, **options):
    return list(DataLoader(FakeRecords(read=read), batch_size=2, num_workers=1, **options))


@pytest.fixture(name="modules")
def _modules(tmp_path, monkeypatch):
    """Modules on the real disk, which a reader is the first to import."""
    monkeypatch.setattr(sys, "path", [*write_modules(tmp_path), *sys.path])


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("method", ["fork", slow("forkserver")])
def test_a_worker_imports_from_the_real_disk(files, method):
    loader = {"num_workers": 1, "multiprocessing_context": method}
    reader = FakeRecords(read=by_modules_of_its_own)
    outcome = run_trial(lambda: reader, ShortRead("*", max_bytes=3), loader=loader)
    assert outcome.exception is None
    assert outcome.fired >= COUNT * (SIZE // 3)


def test_a_hung_read_ends_with_the_scope(files):
    loader = DataLoader(FakeRecords(read=builtin_open), batch_size=2, num_workers=1, timeout=60)
    with inject(HungRead("*/03.rec")) as injection:
        result = epoch(loader, hang=(injection, 1, 2.0))
        assert injection.fired == 1
    assert "timed out" in result.text


def test_the_size_is_that_of_the_truncated_file(files):
    with inject(TruncatedFile("*/03.rec", keep=SIZE - 4)):
        sizes = [int(size) for (_, size) in DataLoader(FakeRecords(read=_padded), num_workers=1)]
    assert sizes == [SIZE - 4 if number == 3 else SIZE for number in range(COUNT)]


def _padded(path: str) -> bytes:
    return builtin_open(path).ljust(SIZE, b"\0")


def _held(path: str) -> bytes:
    """Opens one file after the other, and closes none."""
    files = []
    try:
        for _ in range(100):
            files.append(open(path, "rb"))  # noqa: PERF401  # its length is told if it fails
    except OSError as error:
        message = f"{len(files)} were open"
        raise RuntimeError(message) from error
    return b""


def test_held_fake_files_count_against_the_limit(files):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with inject(DescriptorExhaustion(headroom=5)):
        with pytest.raises(RuntimeError, match="5 were open") as caught:
            _epoch(_held)
        assert "Errno 24" in str(caught.value)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


class HoldsOpen(FakeRecords):
    """Opens its files where it is made."""

    def __init__(self) -> None:
        super().__init__(read=self.of_open)
        self.files = {path: open(path, "rb") for path in self.paths}

    def of_open(self, path: str) -> bytes:
        self.files[path].seek(0)
        return self.files[path].read()


def test_no_fault_reaches_a_file_that_was_open_before(files):
    dataset = HoldsOpen()
    with pytest.raises(FaultNotFiredError), inject(ReadError("*/03.rec")):
        list(DataLoader(dataset, num_workers=1))


def mapped(path: str) -> bytes:
    """Through a mapping."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        return mapping[:]


def test_a_mapped_file_is_truncated(files):
    with inject(TruncatedFile("*/03.rec", keep=5)), pytest.raises(ValueError, match="5 bytes"):
        _epoch(mapped)


def test_a_death_inside_a_read_happens(files):
    outcome = run_trial(FakeRecords, WorkerKilled(reading="*/02.rec"))
    assert outcome.fired
    assert outcome.deaths


def test_a_stray_entry_is_refused(fake_dataset_fs):
    message = "cannot happen while pyfakefs replaces the files"
    with pytest.raises(InvalidArgumentError, match=message), inject(StrayEntry("*")):
        pass


def test_fake_files_are_never_damaged_before_the_dataset(files):
    with pytest.raises(InvalidArgumentError, match="before_init=True needs real files"):
        run_trial(FakeRecords, TruncatedFile("*"), before_init=True)
