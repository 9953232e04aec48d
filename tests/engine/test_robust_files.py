"""Unusual files: read directly, huge, replaced while they are used, or very many."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ClosedDescriptor, OpenError, ReadError, TruncatedFile
from support.attempts import attempt, error_of, undisturbed
from support.epochs import alone, epoch
from support.tries import WAYS, Tries, direct

EIO = os.strerror(errno.EIO)
GB = 1 << 30


@pytest.fixture(name="aligned")
def _aligned(tmp_path):
    """A file of two pages, which O_DIRECT can read."""
    path = tmp_path / "aligned.rec"
    path.write_bytes(b"a" * 4096 + b"b" * 4096)
    try:
        direct(str(path))
    except OSError as error:
        pytest.skip(f"the file system of {tmp_path} has no O_DIRECT: {error}")
    return path


@pytest.mark.parametrize(
    "fault", [OpenError("*.rec"), ReadError("*.rec"), ClosedDescriptor("*.rec")], ids=repr
)
def test_direct_reads_fail(aligned, fault):
    """Past the page cache there is a system call like any other."""
    (gave,), _ = attempt([str(aligned)], direct, fault)
    assert "OSError" in gave


def test_direct_reads_see_the_shorter_file(aligned):
    """Of whatever length: the substitute asks for no alignment."""
    (gave,), _ = attempt([str(aligned)], direct, TruncatedFile("*.rec", keep=5000))
    assert aligned.read_bytes()[:5000] == gave


def test_direct_reads_are_right(aligned):
    """As long as nothing is due."""
    gave, injection = undisturbed([str(aligned)] * 3, direct, "*.rec")
    assert [aligned.read_bytes()] * 3 == gave
    assert injection.reached


@pytest.fixture(name="huge")
def _huge(tmp_path):
    """5 GiB, of which next to nothing is on the disk: b"middle" at 1 GiB, b"end" at the end."""
    path = tmp_path / "huge.rec"
    with open(path, "wb") as file:
        file.seek(GB)
        file.write(b"middle")
        file.seek(5 * GB - 3)
        file.write(b"end")
    assert 1 << 20 > path.stat().st_blocks * 512
    return str(path)


def last_by_pread(path):
    """Its last three bytes, and its size."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, 100, 5 * GB - 3), os.fstat(fd).st_size
    finally:
        os.close(fd)


def last_by_mmap(path):
    """The same, of a mapping that begins beyond 4 GiB."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = size - 65536
        with mmap.mmap(file.fileno(), 65536, access=mmap.ACCESS_READ, offset=offset) as data:
            return data[-3:], size


@pytest.mark.parametrize("way", [last_by_pread, last_by_mmap])
def test_files_beyond_4_gib_are_read_rightly(huge, way):
    """Offsets and sizes are 64 bits wide all the way."""
    gave, injection = undisturbed([huge] * 2, way, "*.rec")
    assert [(b"end", 5 * GB)] * 2 == gave
    assert injection.reached


def test_reads_beyond_4_gib_fail(huge):
    """Like any other."""
    (gave,), injection = attempt([huge], last_by_pread, ReadError("*.rec"))
    assert EIO in gave
    assert 1 == injection.fired


def test_a_file_that_is_replaced_between_epochs(path):
    """Persistent workers read the new one, and the counts go on."""
    loader = alone(Tries([path], WAYS["pread"]), persistent_workers=True)
    with inject(ReadError("*.rec", nth=3)) as injection:
        came = [_epoch_of_new_content(loader, path, text) for text in (b"1", b"22", b"333")]
    loader._iterator._shutdown_workers()
    assert [b"1", b"22"] == came[:2]
    assert EIO in came[2]
    assert 3 == injection.reached


def test_a_shorter_file_that_is_replaced_between_epochs(path):
    """What is kept is of the new one."""
    loader = alone(Tries([path], WAYS["pread"]), persistent_workers=True)
    with inject(TruncatedFile("*.rec", keep=2)):
        came = [_epoch_of_new_content(loader, path, text) for text in (b"1111", b"2222", b"33")]
    loader._iterator._shutdown_workers()
    assert [b"11", b"22", b"33"] == came


def _epoch_of_new_content(loader, path, text):
    Path(f"{path}.new").write_bytes(text)
    os.replace(f"{path}.new", path)
    ((_, _, gave),) = epoch(loader).batches
    return gave


@pytest.fixture(name="many", scope="module")
def _many(tmp_path_factory):
    """Ten thousand files; each holds its name."""
    folder = tmp_path_factory.mktemp("many")
    paths = [str(folder / f"{number:05}.rec") for number in range(10_000)]
    for path in paths:
        Path(path).write_bytes(path[-9:].encode())
    return paths


@pytest.mark.parametrize(
    "fault",
    [
        ReadError("*/09999.rec"),
        ReadError("*.rec", nth=10_000),
        pytest.param(OpenError("*.rec", nth=10_000), marks=pytest.mark.slow),
        pytest.param(TruncatedFile("*/09999.rec", keep=3), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_the_last_of_ten_thousand_files(many, fault):
    """In turn in one worker: its numbers do not run out, and all others are read rightly."""
    (gave,), injection = attempt([many], _all_of, fault)
    assert [path[-9:].encode() for path in many[:-1]] == gave[:-1]
    assert b"099" == gave[-1] or EIO in gave[-1]
    assert 1 == injection.fired


def _all_of(paths):
    return [error_of(WAYS["pread"])(path) for path in paths]
