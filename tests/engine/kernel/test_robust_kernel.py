"""What the kernel makes of a path, a descriptor or a mapping is what the engine makes of it."""

import ctypes
import errno
import functools
import mmap
import os
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ClosedDescriptor, ReadError, TruncatedFile
from support.attempts import CONTENT, NEVER, attempt, attempt_followed, error_of
from support.epochs import alone, epoch
from support.tries import WAYS, Tries, in_a_child, look_at, pread

GB = 1 << 30
EIO = os.strerror(errno.EIO)


# Paths.


@pytest.fixture(name="roundabout")
def _roundabout(tmp_path):
    """A path through a linked folder and back up, which is another file if taken by its letters."""
    (tmp_path / "far" / "folder").mkdir(parents=True)
    (tmp_path / "far" / "file.rec").write_bytes(b"the kernel's")
    (tmp_path / "file.rec").write_bytes(b"taken by the letters")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "folder")
    return str(tmp_path / "link" / ".." / "file.rec")


def test_a_way_back_up_from_a_link_is_read_rightly(roundabout):
    """The parent of a linked folder is that of the folder, not that of the link."""
    ways = ["pread", "read", "thread"]
    gave, _ = attempt_followed(ways, lambda way: WAYS[way](roundabout), "*.rec")
    assert [b"the kernel's"] * len(ways) == gave


def test_a_way_back_up_from_a_link_is_shortened_rightly(roundabout):
    (gave,), _ = attempt([roundabout], WAYS["pread"], TruncatedFile("*.rec", keep=3))
    assert b"the" == gave


def _open_in_no_folder(name):
    return os.open(name, os.O_RDONLY, dir_fd=999)


def _open_at_address(address):
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.open(ctypes.c_void_p(address), os.O_RDONLY) == -1
    return os.strerror(ctypes.get_errno())


def test_what_the_kernel_refuses(path):
    ends = ("/", "/.", "/../file.rec")
    refused = [
        *((functools.partial(WAYS["pread"], f"{path}{end}"), errno.ENOTDIR) for end in ends),
        (functools.partial(_open_in_no_folder, "file.rec"), errno.EBADF),
        *((functools.partial(_open_at_address, address), errno.EFAULT) for address in (0, 8)),
    ]
    gave, _ = attempt_followed([call for call, _ in refused], lambda call: call(), "*.rec")
    for text, (_, number) in zip(gave, refused, strict=True):
        assert os.strerror(number) in text


def test_a_descriptor_that_is_opened_again(path):
    def read(path):
        with open(path, "rb") as file, open(f"/proc/self/fd/{file.fileno()}", "rb") as again:
            return again.read()

    (gave,), _ = attempt([path], error_of(read), ReadError("*.rec"))
    assert EIO in gave


# What is held when the worker is armed.


@pytest.fixture(name="unlinked_file")
def _unlinked_file(tmp_path):
    """A file that is open, mapped, and unlinked."""
    path = tmp_path / "gone.rec"
    path.write_bytes(CONTENT)
    with open(path, "rb") as file:
        path.unlink()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            yield file.fileno(), mapping


def test_a_held_file_that_has_no_name_any_more(unlinked_file):
    fd, mapping = unlinked_file
    calls = [functools.partial(pread, fd), functools.partial(look_at, (mapping, 7))]
    with inject(TruncatedFile("*", keep=1 << 40), require_fired=False) as injection:
        results = epoch(alone(Tries(calls, lambda call: call()))).batches
    assert ([CONTENT, CONTENT[7]], 0) == ([each.gave for each in results], injection.fired)


def test_a_glob_for_everything_spares_what_the_worker_prints_to(tmp_path, capfd):
    (tmp_path / "data.rec").write_bytes(CONTENT)

    def read(path):
        with pytest.raises(OSError, match="Bad file descriptor"):
            Path(path).read_bytes()
        return os.write(1, b"out") + os.write(2, b"error")

    (gave,), _ = attempt([str(tmp_path / "data.rec")], read, ClosedDescriptor("*"))
    assert 8 == gave


# Substitutes.


@pytest.fixture(name="sparse")
def _sparse(tmp_path):
    """3 GiB, of which next to nothing is on the disk; b"middle" at 1 GiB."""
    path = tmp_path / "sparse.rec"
    with open(path, "wb") as file:
        file.seek(GB)
        file.write(b"middle")
        file.truncate(3 * GB)
    return str(path)


def test_the_substitute_of_a_sparse_file_is_sparse(sparse):
    def read(path):
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            inside = os.pread(file.fileno(), 8, GB - 1)
            return status.st_size, status.st_blocks * 512 < 1 << 24, inside

    (gave,), _ = attempt([sparse], read, TruncatedFile("*.rec", keep=0.5))
    assert (3 * GB // 2, True, b"\0middle\0") == gave


# What the supervisor shares with a worker.


def test_a_child_that_reads_late(records):
    first_path, *other_paths = sorted(map(str, records.iterdir()))

    def read_late(path):
        opened, go = os.pipe(), os.pipe()

        def open_wait_read():
            with open(path, "rb", buffering=0) as file:
                os.write(opened[1], b".")
                os.read(go[0], 1)
                return file.read()

        def read_many():
            os.read(opened[0], 1)
            assert all(Path(other_path).read_bytes() for other_path in other_paths * 20)
            os.write(go[1], b".")

        return in_a_child(open_wait_read, read_many)

    follow = ReadError("*.rec", nth=NEVER)
    (gave,), injection = attempt(
        [first_path], read_late, ReadError("*/00.rec"), follow, require_fired=False
    )
    assert EIO in str(gave)
    assert 1 == injection.fired
