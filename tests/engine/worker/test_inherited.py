"""What a forked worker inherits, open or mapped before its filter was there, meets the fault."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ClosedDescriptor, ReadError, TruncatedFile
from pytest_dataloader_faults.outcomes import FiringKind
from support.epochs import alone, epoch
from support.tries import Tries, look_at, pread, read_on

PAGES = 4
BYTES = b"".join(bytes([number]) * mmap.PAGESIZE for number in range(PAGES))


@pytest.fixture(name="path")
def _path(tmp_path):
    """A file of 4 pages; page *n* holds *n* only."""
    path = tmp_path / "held.bin"
    path.write_bytes(BYTES)
    return str(path)


@pytest.fixture(name="held")
def _held(path):
    """A descriptor of it, open in this process."""
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(name="mapped", params=["MAP_SHARED", "MAP_PRIVATE"])
def _mapped(request, held):
    """A mapping of it, made in this process."""
    with mmap.mmap(held, 0, flags=getattr(mmap, request.param), prot=mmap.PROT_READ) as mapping:
        yield mapping


@pytest.mark.parametrize(
    ("fault", "number", "call"),
    [(ReadError("*.bin"), errno.EIO, "pread64"), (ClosedDescriptor("*.bin"), errno.EBADF, "close")],
)
def test_a_held_descriptor_fails(path, held, fault, number, call):
    """In the worker only: this process's own stays as it is."""
    with inject(fault) as injection:
        (result,) = epoch(alone(Tries([held], pread))).batches
        assert BYTES == os.pread(held, len(BYTES), 0)
    assert f"OSError: [Errno {number}] {os.strerror(number)}" == result.gave
    (firing,) = injection.faults[0].firings
    assert (call, path) == (firing.call, firing.path)


def test_a_held_descriptor_is_of_a_shorter_file(held):
    """At the same offset, with the right bytes up to the new end."""
    os.lseek(held, 2, os.SEEK_SET)
    with inject(TruncatedFile("*.bin", keep=10)) as injection:
        (result,) = epoch(alone(Tries([held], read_on))).batches
    assert (10, BYTES[2:10]) == result.gave
    assert [FiringKind.REPLACED] == [each.kind for each in injection.faults[0].firings]
    assert (len(BYTES), 2) == (os.fstat(held).st_size, os.lseek(held, 0, os.SEEK_CUR))


def test_a_held_descriptor_whose_name_leads_nowhere_is_left_alone(tmp_path):
    """As one that was opened outside of a container: no fault of files is about it."""
    (tmp_path / "mounted").mkdir()
    place = str(tmp_path / "mounted")
    if subprocess.run(["/bin/mount", "-t", "tmpfs", "none", place], check=False).returncode:
        pytest.skip("this process may not mount a file system")
    (tmp_path / "mounted" / "nowhere.dat").write_bytes(BYTES)
    with open(tmp_path / "mounted" / "nowhere.dat", "rb") as file:
        subprocess.run(["/bin/umount", "--lazy", place], check=True)
        assert not os.path.exists(os.readlink(f"/proc/self/fd/{file.fileno()}"))
        with inject(ReadError("*"), require_fired=False):
            (result,) = epoch(alone(Tries([file.fileno()], pread))).batches
    assert BYTES == result.gave


def test_a_held_descriptor_of_another_file_is_left_alone(tmp_path, held):
    """The glob names one of two files that are open."""
    (tmp_path / "spared.rec").write_bytes(b"spared")
    with open(tmp_path / "spared.rec", "rb") as spared, inject(ReadError("*.bin")):
        first, second = epoch(alone(Tries([held, spared.fileno()], pread))).batches
    assert ("OSError: [Errno 5] Input/output error", b"spared") == (first.gave, second.gave)


def test_more_held_descriptors_than_a_filter_lists(tmp_path):
    """A hundred files, open before the fork: each one fails."""
    files = []
    for number in range(100):
        (tmp_path / f"{number}.rec").write_bytes(b"record")
        files.append(os.open(tmp_path / f"{number}.rec", os.O_RDONLY))
    try:
        with inject(ReadError("*.rec")) as injection:
            results = epoch(alone(Tries(files, pread))).batches
    finally:
        for fd in files:
            os.close(fd)
    assert ["OSError: [Errno 5] Input/output error"] * 100 == [each.gave for each in results]
    assert 100 == injection.fired


def test_every_worker_meets_its_copy(held):
    """Each has the descriptor; each one's counts are its own."""
    with inject(ReadError("*.bin", nth=2, times=1)) as injection:
        results = epoch(alone(Tries([held] * 6, pread), num_workers=2)).batches
    assert [2, 3] == [each.index for each in results if isinstance(each.gave, str)]
    assert [(0, 2), (1, 2)] == sorted((f.worker, f.fetch) for f in injection.faults[0].firings)


def test_a_held_mapping_raises_sigbus(path, mapped):
    """Reading it is no system call; the signal comes with the access."""
    with inject(ReadError("*.bin")) as injection:
        read = epoch(alone(Tries([(mapped, 0)], look_at)))
        assert (0, PAGES - 1) == (mapped[0], mapped[-1])
    assert {signal.SIGBUS} == read.signals
    (firing,) = injection.faults[0].firings
    assert ("mmap", path) == (firing.call, firing.path)


def test_a_held_mapping_is_of_a_shorter_file(mapped):
    """Its first page is there, its second is not."""
    sources = [(mapped, 0), (mapped, mmap.PAGESIZE - 1), (mapped, mmap.PAGESIZE)]
    with inject(TruncatedFile("*.bin", keep=mmap.PAGESIZE)) as injection:
        read = epoch(alone(Tries(sources, look_at)))
    assert {signal.SIGBUS} == read.signals
    assert injection.workers[0].fetches == len(sources)
    assert mapped[-1] == PAGES - 1


@pytest.mark.parametrize("kind", [ReadError, ClosedDescriptor, TruncatedFile])
def test_what_is_held_works_under_a_fault_on_nothing(held, mapped, kind):
    """Disarmed by a glob that matches no file."""
    with inject(kind("*.nothing"), require_fired=False) as injection:
        (read,) = epoch(alone(Tries([held], pread))).batches
        (looked,) = epoch(alone(Tries([(mapped, mmap.PAGESIZE)], look_at))).batches
    assert (BYTES, 1) == (read.gave, looked.gave)
    assert (0, 0) == (injection.reached, injection.fired)
