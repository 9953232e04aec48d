"""What a worker inherits meets its faults, and so do the processes and threads that it starts."""

import contextlib
import errno
import mmap
import os
import signal
import subprocess
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    OpenError,
    ReadError,
    ShortRead,
    TruncatedFile,
)
from pytest_dataloader_faults.outcomes import FiringKind
from support.attempts import CONTENT, attempt, error_of
from support.epochs import alone, epoch
from support.tries import (
    WAYS,
    Tries,
    child,
    in_threads,
    look_at,
    pread,
    read_on,
)

PAGES = 4
BYTES = b"".join(bytes([number]) * mmap.PAGESIZE for number in range(PAGES))


@pytest.fixture(name="held_path")
def _held_path(tmp_path):
    """A file of 4 pages; page *n* holds *n* only."""
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
