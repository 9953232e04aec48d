"""What a forked worker inherits, open or mapped before its filter was there, meets the fault."""

import contextlib
import errno
import mmap
import os
import signal
import subprocess
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ClosedDescriptor, ReadError, TruncatedFile
from pytest_dataloader_faults.outcomes import FiringKind
from support.attempts import attempt
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


@pytest.fixture(name="held_fd")
def _held_fd(path):
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(
    name="mapped", params=["MAP_SHARED", pytest.param("MAP_PRIVATE", marks=pytest.mark.slow)]
)
def _mapped(request, held_fd):
    with mmap.mmap(held_fd, 0, flags=getattr(mmap, request.param), prot=mmap.PROT_READ) as mapping:
        yield mapping


def test_held_descriptors_meet_faults(tmp_path):
    """In the worker only: this process's own stay as they are, and so does another file's.

    The shorter file is at the same offset, with the right bytes up to its new end.
    """
    faults = {
        "failing": ReadError("*/failing.bin"),
        "closed": ClosedDescriptor("*/closed.bin"),
        "shorter": TruncatedFile("*/shorter.bin", keep=10),
    }
    paths = [str(tmp_path / f"{name}.bin") for name in (*faults, "spared")]
    with contextlib.ExitStack() as stack:
        for path in paths:
            Path(path).write_bytes(BYTES)
        files = [stack.enter_context(open(path, "rb", buffering=0)) for path in paths]
        failing, closed, shorter, spared = (each.fileno() for each in files)
        os.lseek(shorter, 2, os.SEEK_SET)
        sources = [(pread, failing), (pread, closed), (read_on, shorter), (pread, spared)]
        gave, injection = attempt(sources, lambda source: source[0](source[1]), *faults.values())
        assert [BYTES] * len(files) == [pread(each.fileno()) for each in files]
        assert 2 == files[2].tell()
    errors = [f"OSError: [Errno {each}] {os.strerror(each)}" for each in (errno.EIO, errno.EBADF)]
    assert [*errors, (10, BYTES[2:10]), BYTES] == gave
    (failed,), (lost,), (replaced,) = (each.firings for each in injection.faults)
    assert [("pread64", paths[0]), ("close", paths[1])] == [
        (each.call, each.path) for each in (failed, lost)
    ]
    assert (FiringKind.REPLACED, paths[2]) == (replaced.kind, replaced.path)


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


def test_more_held_descriptors_than_a_filter_lists(tmp_path):
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


def test_every_worker_meets_its_copy(held_fd):
    with inject(ReadError("*.bin", nth=2, times=1)) as injection:
        results = epoch(alone(Tries([held_fd] * 6, pread), num_workers=2)).batches
    assert [2, 3] == [each.index for each in results if isinstance(each.gave, str)]
    assert [(0, 2), (1, 2)] == sorted((f.worker, f.fetch) for f in injection.faults[0].firings)


def test_a_held_mapping_raises_sigbus(path, mapped):
    with inject(ReadError("*.bin")) as injection:
        read = epoch(alone(Tries([(mapped, 0)], look_at)))
        assert (0, PAGES - 1) == (mapped[0], mapped[-1])
    assert {signal.SIGBUS} == read.signals
    (firing,) = injection.faults[0].firings
    assert ("mmap", path) == (firing.call, firing.path)


def test_a_held_mapping_is_of_a_shorter_file(mapped):
    sources = [(mapped, 0), (mapped, mmap.PAGESIZE - 1), (mapped, mmap.PAGESIZE)]
    with inject(TruncatedFile("*.bin", keep=mmap.PAGESIZE)) as injection:
        read = epoch(alone(Tries(sources, look_at)))
    assert {signal.SIGBUS} == read.signals
    assert injection.workers[0].fetches == len(sources)
    assert mapped[-1] == PAGES - 1


def test_what_is_held_works_under_faults_on_nothing(held_fd, mapped):
    faults = [kind("*.nothing") for kind in (ReadError, ClosedDescriptor, TruncatedFile)]
    with inject(*faults, require_fired=False) as injection:
        (read,) = epoch(alone(Tries([held_fd], pread))).batches
        (looked,) = epoch(alone(Tries([(mapped, mmap.PAGESIZE)], look_at))).batches
    assert (BYTES, 1) == (read.gave, looked.gave)
    assert (0, 0) == (injection.matched, injection.fired)
