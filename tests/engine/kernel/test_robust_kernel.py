"""What the kernel makes of a path, a descriptor or a mapping is what the engine makes of it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import mmap
import os
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ClosedDescriptor, ReadError, TruncatedFile
from support.attempts import CONTENT, NEVER, attempt, error_of, undisturbed
from support.epochs import alone, epoch
from support.tries import WAYS, Tries, in_a_child, look_at, pread

GB = 1 << 30
EIO = os.strerror(errno.EIO)


def left_alone(sources, way, *globs):
    """What the way gives under a TruncatedFile of those files that leaves them as long."""
    with inject(TruncatedFile(globs, keep=1 << 40), require_fired=False) as injection:
        results = epoch(alone(Tries(sources, way))).batches
    assert 0 == injection.fired
    return [each.gave for each in results]


# Paths.


@pytest.fixture(name="roundabout")
def _roundabout(tmp_path):
    """A path through a linked folder and back up, which is another file if taken by its letters."""
    (tmp_path / "far" / "folder").mkdir(parents=True)
    (tmp_path / "far" / "file.rec").write_bytes(b"the kernel's")
    (tmp_path / "file.rec").write_bytes(b"taken by the letters")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "folder")
    return str(tmp_path / "link" / ".." / "file.rec")


@pytest.mark.parametrize("way", ["pread", "read", "thread"])
def test_a_way_back_up_from_a_link_is_read_rightly(roundabout, way):
    """The parent of a linked folder is that of the folder, not that of the link."""
    assert [b"the kernel's"] == undisturbed([roundabout], WAYS[way], "*.rec")[0]


def test_a_way_back_up_from_a_link_is_shortened_rightly(roundabout):
    """What is kept is of the file that the kernel would open."""
    (gave,), _ = attempt([roundabout], WAYS["pread"], TruncatedFile("*.rec", keep=3))
    assert b"the" == gave


@pytest.mark.parametrize("end", ["/", "/.", "/../file.rec"])
def test_a_file_that_is_taken_for_a_folder_is_refused(tmp_path, end):
    """By the kernel's ENOTDIR, as it is without the engine."""
    path = tmp_path / "file.rec"
    path.write_bytes(CONTENT)
    (gave,), _ = undisturbed([f"{path}{end}"], WAYS["pread"], "*.rec")
    assert os.strerror(errno.ENOTDIR) in str(gave)


def test_a_descriptor_of_a_folder_that_is_none(tmp_path):
    """Is the dataset's error, EBADF, and none of the engine's."""

    def read(name):
        return os.open(name, os.O_RDONLY, dir_fd=999)

    (gave,), _ = undisturbed(["file.rec"], read, "*.rec")
    assert os.strerror(errno.EBADF) in gave


def test_an_address_that_is_none():
    """Is the dataset's error, EFAULT, and none of the engine's."""

    def read(address):
        libc = ctypes.CDLL(None, use_errno=True)
        return libc.open(ctypes.c_void_p(address), os.O_RDONLY), ctypes.get_errno()

    assert [(-1, errno.EFAULT)] * 2 == undisturbed([0, 8], read, "*.rec")[0]


def test_a_descriptor_that_is_opened_again(tmp_path):
    """By way of /proc it is the same file, and so are its reads."""
    path = tmp_path / "file.rec"
    path.write_bytes(CONTENT)

    def read(path):
        with open(path, "rb") as file, open(f"/proc/self/fd/{file.fileno()}", "rb") as again:
            return again.read()

    (gave,), _ = attempt([str(path)], error_of(read), ReadError("*.rec"))
    assert EIO in gave


# What is held when the worker is armed.


@pytest.fixture(name="gone")
def _gone(tmp_path):
    """A file that is open, mapped, and unlinked."""
    path = tmp_path / "gone.rec"
    path.write_bytes(CONTENT)
    with open(path, "rb") as file:
        path.unlink()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            yield file.fileno(), mapping


def test_a_held_file_that_has_no_name_any_more(gone):
    """It is read rightly, whatever the globs; nothing breaks down."""
    fd, mapping = gone
    assert [CONTENT] == left_alone([fd], pread, "*")
    assert [CONTENT[7]] == left_alone([(mapping, 7)], look_at, "*")


def test_a_glob_for_everything_spares_what_the_worker_prints_to(tmp_path, capfd):
    """Standard output and error are no data, even where they are redirected into files."""
    (tmp_path / "data.rec").write_bytes(CONTENT)

    def read(path):
        with pytest.raises(OSError, match="Bad file descriptor"):
            Path(path).read_bytes()
        return os.write(1, b"out") + os.write(2, b"error")

    (gave,), _ = attempt([str(tmp_path / "data.rec")], read, ClosedDescriptor("*"))
    assert 8 == gave


NAMES = [b"two\nlines.rec", b"carriage\rreturn.rec", b"back\\slash.rec", b"latin \xe9.rec"]


@pytest.fixture(name="mapped", params=NAMES, ids=repr)
def _mapped(request, tmp_path):
    """A file of an odd name: its path, and a mapping of it."""
    path = os.path.join(tmp_path, os.fsdecode(request.param))
    Path(path).write_bytes(CONTENT)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield path, data


def test_a_mapping_of_a_file_of_an_odd_name(mapped):
    """/proc/self/maps writes some names in a way of its own; they are told apart all the same."""
    path, data = mapped
    gave, injection = attempt([(data, 7)], look_at, TruncatedFile(glob.escape(path), keep=50))
    assert CONTENT[7:8] == bytes(gave)
    assert {path} == {firing.path for firing in injection.faults[0].firings}


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
    """Half of 3 GiB of nothing takes no gigabyte of memory, and holds what it should."""

    def read(path):
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            inside = os.pread(file.fileno(), 8, GB - 1)
            return status.st_size, status.st_blocks * 512 < 1 << 24, inside

    (gave,), _ = attempt([sparse], read, TruncatedFile("*.rec", keep=0.5))
    assert (3 * GB // 2, True, b"\0middle\0") == gave


def test_a_replaced_file_of_the_same_age(tmp_path):
    """Unpacked archives are full of them: what is kept is of the new one."""
    path = tmp_path / "file.rec"
    loader = alone(Tries([str(path)], WAYS["pread"]), persistent_workers=True)
    with inject(TruncatedFile("*.rec", keep=2)):
        came = [_epoch_of(loader, path, text) for text in (b"1111", b"2222")]
    loader._iterator._shutdown_workers()
    assert [b"11", b"22"] == came


def _epoch_of(loader, path, text):
    fresh = path.with_suffix(".new")
    fresh.write_bytes(text)
    os.utime(fresh, (1, 1))
    fresh.replace(path)
    ((_, _, gave),) = epoch(loader).batches
    return gave


# What the supervisor shares with a worker.


def test_a_lock_goes_with_its_descriptor(tmp_path):
    """flock(2) locks an open file until its last descriptor is closed, which is the worker's."""
    path = tmp_path / "file.rec"
    path.write_bytes(CONTENT)

    def read(path):
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file.read()

    gave, injection = undisturbed([str(path)] * 3, read, "*.rec")
    assert [CONTENT] * 3 == gave
    assert injection.reached


def test_a_child_that_reads_late(records):
    """It keeps a file open while its worker opens hundreds: its read still fails."""
    first, *others = sorted(map(str, records.iterdir()))

    def late(path):
        opened, go = os.pipe(), os.pipe()

        def open_wait_read():
            with open(path, "rb", buffering=0) as file:
                os.write(opened[1], b".")
                os.read(go[0], 1)
                return file.read()

        def read_many():
            os.read(opened[0], 1)
            assert all(Path(other).read_bytes() for other in others * 20)
            os.write(go[1], b".")

        return in_a_child(open_wait_read, read_many)

    follow = ReadError("*.rec", nth=NEVER)
    with inject(ReadError("*/00.rec"), follow, require_fired=False) as injection:
        (result,) = epoch(alone(Tries([first], late))).batches
    assert EIO in str(result.gave)
    assert 1 == injection.fired
