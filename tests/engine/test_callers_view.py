"""A worker opens what its own view of the file system shows it, under faults and without."""

import ctypes
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    CorruptedFile,
    ReadError,
    TruncatedFile,
)
from support.attempts import attempt, attempt_followed, error_of
from support.children import NOBODY, become_nobody, in_its_own_process
from support.epochs import alone, epoch
from support.tries import ENOUGH, Tries

_DROP = 24
OVERRIDE = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, which let root read any file."""
libc = ctypes.CDLL(None, use_errno=True)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
OTHER_RIGHTS = "open as a different user, or with different groups or capabilities"
ELSEWHERE = "open with a different root folder or different mounts"


@pytest.fixture(name="folder")
def _folder():
    """A folder that everybody can enter, with two more in it that have a file of the same name."""
    folder = Path(tempfile.mkdtemp())
    yield _fill_folder(folder)
    shutil.rmtree(folder)


def _fill_folder(folder):
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "x.bin").write_bytes(f"in {name}".encode())
    return folder


def _read(path, flags=os.O_RDONLY, **place):
    fd = os.open(path, flags, **place)
    try:
        return os.read(fd, ENOUGH)
    finally:
        os.close(fd)


def _check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _drop_capabilities(*capabilities):
    """As root: give up *capabilities*, here and in the programs that follow."""
    for capability in capabilities:
        _check(libc.prctl(_DROP, capability, 0, 0, 0))
    header, now = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    _check(libc.capget(header, now))
    effective, permitted, *inheritable = struct.unpack("=6I", now.raw)
    remaining = ~sum(1 << capability for capability in capabilities)
    _check(
        libc.capset(
            header, struct.pack("=6I", effective & remaining, permitted & remaining, *inheritable)
        )
    )


def _private(folder):
    path = folder / "a" / "x.bin"
    path.chmod(0o600)
    return path


def _other_user(folder):
    path = _private(folder)

    def read():
        become_nobody()
        return _read(path)

    return read


def _fewer_capabilities(folder):
    """Dropped from the bounding set, they are gone with the next program."""
    path = folder / "a" / "x.bin"
    path.chmod(0o000)
    os.chown(path, NOBODY, NOBODY)

    def read():
        for capability in OVERRIDE:
            _check(libc.prctl(_DROP, capability, 0, 0, 0))
        process = subprocess.run(["/bin/cat", path], capture_output=True, check=False)
        return process.stdout, process.returncode

    return read


def _new_root(folder):
    path = folder / "a" / "x.bin"
    inside = folder / "b" / str(path).lstrip("/")
    inside.parent.mkdir(parents=True)
    inside.write_bytes(b"in the new root")

    def read():
        os.chroot(folder / "b")
        os.chdir("/")
        return _read(path)

    return read


IDENTITIES = {
    "setuid": (_other_user, OTHER_RIGHTS),
    "capabilities": (_fewer_capabilities, OTHER_RIGHTS),
    "chroot": (_new_root, ELSEWHERE),
}


many_workers = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning"  # More than processors, which is meant.
)


def _as_bare(prepare, folder, glob):
    """Each gives what it gives without us; what was hidden in its worker, and the injection.

    *prepare*: for each name what makes the way to read, of a folder of its own. Each has a worker
    of its own, which it may change.
    """
    ways = {
        name: make(_fill_folder(folder / str(number)))
        for number, (name, make) in enumerate(prepare.items())
    }
    names, options = list(ways), {"num_workers": len(ways)}
    read = error_of(lambda name: ways[name]())
    bare = [each.gave for each in epoch(alone(Tries(names, read), **options)).batches]
    gave, injection = attempt_followed(names, read, glob, **options)
    assert dict(zip(names, bare, strict=True)) == dict(zip(names, gave, strict=True))
    return {names[each.worker]: each.unobserved for each in injection.workers}, injection


@as_root
@many_workers
def test_what_another_identity_opens(folder):
    prepare = {name: each for name, (each, _) in IDENTITIES.items()}
    hidden, injection = _as_bare(prepare, folder, "*.bin")
    opens = {name: {why: 1} for name, (_, why) in IDENTITIES.items()}
    reads = {name: {ELSEWHERE.replace("open", "read"): 1} for name in ["chroot"]}
    assert hidden == {name: each | reads.get(name, {}) for name, each in opens.items()}
    assert 0 == injection.matched


def _through_link(target):
    """A link to *target*, which may name the folder, or the folder b by the worker's own."""

    def prepare(folder):
        (folder / "way").symlink_to(target.format(folder=folder))

        def read():
            os.chdir(folder / "b")
            return _read(folder / "way")

        return read

    return prepare


def _by_proc_link(way):
    """The path itself begins with *way*, a link of the worker's own in /proc."""

    def prepare(folder):
        def read():
            os.chdir(folder / "b")
            fd = os.open(folder / "b", os.O_RDONLY)
            try:
                return _read(way.format(fd=fd, folder=folder))
            finally:
                os.close(fd)

        return read

    return prepare


DIRECT = ("/proc/self/cwd/x.bin", "/proc/self/root{folder}/b/x.bin", "/proc/self/fd/{fd}/x.bin")


def _through_proc_fd(folder):
    (folder / "way").symlink_to("/proc/self/fd")

    def read():
        fd = os.open(folder / "b" / "x.bin", os.O_RDONLY)
        try:
            return _read(folder / "way" / str(fd))
        finally:
            os.close(fd)

    return read


PROC = (
    _through_link("/proc/self/cwd/x.bin"),
    _through_link("/proc/self/root{folder}/a/x.bin"),
    _through_proc_fd,
    *map(_by_proc_link, DIRECT),
)


@many_workers
def test_faults_through_links_of_proc(folder):
    """They lead elsewhere for each process: the worker gets a copy of its own file."""
    ways = [each(_fill_folder(folder / str(number))) for number, each in enumerate(PROC)]
    gave, _ = attempt(ways, lambda way: way(), TruncatedFile(f"{folder}/*", keep=2))
    assert [b"in"] * len(PROC) == gave


UNREADABLE = [TruncatedFile, CorruptedFile, ReadError, ClosedDescriptor]


@in_its_own_process()
def test_a_file_that_the_worker_may_not_read(folder):
    closed = folder / "a" / "x.bin"
    closed.chmod(0o000)
    if os.geteuid() == 0:
        _drop_capabilities(*OVERRIDE)
    (gave,), injection = attempt(
        [closed], error_of(_read), *(kind("*.bin") for kind in UNREADABLE), require_fired=False
    )
    assert "Errno 13" in gave
    assert (0, {}) == (injection.matched, injection.workers[0].unobserved)
