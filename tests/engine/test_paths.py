"""Which paths a glob means, and paths and files as they are seldom met."""

from __future__ import annotations

import contextlib
import errno
import glob
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ClosedDescriptor, OpenError, ReadError, TruncatedFile
from pytest_dataloader_faults.globs import GlobMatcher, is_excluded
from support.attempts import CONTENT, attempt, error_of, undisturbed
from support.epochs import alone, epoch
from support.rows import rows
from support.tries import ENOUGH, WAYS, Tries, direct, pread


@rows(
    ("globs", "path", "expected"),
    [
        (("*.jpg",), "/data/a/b.jpg", True),
        (("*.jpg",), "/data/a/b.jpg.txt", False),
        (("*.jpg",), "/data/a/B.JPG", False),
        (("/data/*",), "/data/deep/er/file", True),
        (("/data/?.rec",), "/data/1.rec", True),
        (("/data/?.rec",), "/data/12.rec", False),
        (("/data/[0-4]*.rec",), "/data/37.rec", True),
        (("/data/[0-4]*.rec",), "/data/73.rec", False),
        (("b.jpg",), "/data/a/b.jpg", False),
        (("*.png", "*.jpg"), "/data/b.jpg", True),
        (("*",), "/data/with\nnewline", True),
        (("*",), "/data/not utf-8 \udcff", True),
    ],
)
def test_globs(globs, path, expected):
    """As in fnmatch, against the whole absolute path, in its case."""
    assert expected is GlobMatcher(globs)(path)


@rows(
    "path",
    [
        "/proc/self/maps",
        "/sys/devices/system/cpu/online",
        "/dev/shm/torch_1",
        "/dev/shm/torch_1.bin",
        "/dev/shm/psm_0a1b2c3d",
        "/dev/shm/sem.mp-0a1b2c3d",
        "/dev/shm/sem.aB3xYz",
        "/dev/shm/vader_segment.host.0.1a2b",
        "/dev/shm/cuda.shm.0.1.1",
        "/dev/shm/index",
        "/dev/shm/lock.aB3xYz",
        "/dev/shm/code/data.py",
        "/dev/null",
        "/memfd:something",
        "/etc/ld.so.cache",
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/locale/locale-archive",
        "/usr/share/zoneinfo/UTC",
        "/home/me/project/data.py",
        "/home/me/project/__pycache__/data.cpython-311.pyc",
        "/home/me/project/fast.so",
        "/home/me/project/libfast.so.1",
        "/anywhere/site-packages/package/data.bin",
        os.__file__,
        np.__file__,
        f"{sys.prefix}/lib/something.dat",
    ],
)
def test_system_and_code_are_left_alone(path):
    """No dataset means them by "*"."""
    assert is_excluded(path)
    assert not GlobMatcher(("*",))(path)


@rows(
    "path",
    [
        "/data/a.jpg",
        "/tmp/a.rec",
        "/home/me/lib/a.rec",
        "/procession/a.rec",
        "/data/python.pyx",
        "/devices/a.rec",
        "/dev/shm/a.rec",
        "/dev/shm/A.JPG",
        "/dev/shm/train set/a",
        "/dev/shm/torch_data/a\nb.rec",
    ],
)
def test_data_is_not_left_alone(path):
    """Names that only look like a system's are data."""
    assert not is_excluded(path)
    assert GlobMatcher(("*",))(path)


@rows(
    ("glob", "path", "expected"),
    [
        ("/etc/*", "/etc/passwd", True),
        ("/etc/passwd", "/etc/passwd", True),
        ("/dev/shm/*", "/dev/shm/index", True),
        ("/dev/shm/*", "/dev/shm/data/a.rec", True),
        ("/dev/*", "/dev/shm/torch_1", True),
        ("/usr/share/datasets/*", "/usr/share/datasets/a.rec", True),
        ("/usr/share/datasets/*", "/usr/share/other/a.rec", False),
        ("/proc/self/maps", "/proc/self/maps", True),
        ("/opt/x/site-packages/sklearn/*.npy", "/opt/x/site-packages/sklearn/a/b.npy", True),
        ("*/site-packages/*", "/opt/x/site-packages/a.npy", False),
        ("*.py", "/home/me/data.py", False),
        ("/home/me/data.py", "/home/me/data.py", True),
        ("/*", "/etc/passwd", False),
        ("/e*", "/etc/passwd", False),
    ],
)
def test_a_glob_may_ask_for_them_literally(glob, path, expected):
    """By naming the folder, or the very file, before its first wild card."""
    assert expected is GlobMatcher((glob,))(path)


def test_each_glob_asks_for_itself_only():
    """Naming one system folder does not open it to another glob's prefix."""
    matches = GlobMatcher(("/etc/*", "*.dat"))
    asked = {path: matches(path) for path in ("/etc/a", "/usr/share/a.dat", "/data/a.dat")}
    assert {"/etc/a": True, "/usr/share/a.dat": False, "/data/a.dat": True} == asked


EIO = os.strerror(errno.EIO)


def test_a_worker_that_goes_elsewhere(records):
    """Its init function changes the folder; from then on all paths are relative."""
    names = sorted(os.listdir(records))
    gave, injection = attempt(
        names, WAYS["read"], ReadError("*/03.rec"), worker_init_fn=lambda _: os.chdir(records)
    )
    assert [3] == [place for place, each in enumerate(gave) if isinstance(each, str)]
    assert str(records / "03.rec") == injection.faults[0].firings[0].path


def test_a_folder_that_was_open_before_the_fork(records):
    """Names relative to its descriptor are found, and one of them fails."""
    folder = os.open(records, os.O_RDONLY)

    def read(name):
        fd = os.open(name, os.O_RDONLY, dir_fd=folder)
        try:
            return os.read(fd, ENOUGH)
        finally:
            os.close(fd)

    names = sorted(os.listdir(records))
    gave, injection = attempt(names, read, OpenError("*/records/03.rec"))
    os.close(folder)
    assert [3] == [place for place, each in enumerate(gave) if isinstance(each, str)]
    assert str(records / "03.rec") == injection.faults[0].firings[0].path


@pytest.fixture(name="link")
def _link(path, tmp_path):
    """A link to the file, of a name and folder of its own."""
    link = tmp_path / "links" / "alias.lnk"
    link.parent.mkdir()
    link.symlink_to(path)
    return str(link)


@pytest.mark.parametrize("kind", [OpenError, ReadError, TruncatedFile, ClosedDescriptor])
def test_the_name_of_a_link_is_what_globs_match(link, kind):
    """The path that is opened is meant, not the file that it leads to."""
    (gave,), injection = attempt([link], WAYS["read"], kind("*.lnk"))
    assert CONTENT != gave
    assert {link} == {firing.path for firing in injection.faults[0].firings}


@pytest.mark.parametrize("kind", [OpenError, ReadError, TruncatedFile, ClosedDescriptor])
def test_the_name_of_a_links_target_is_not(link, kind):
    """A file that is opened by a link of another name is not reached."""
    with inject(kind("*.rec"), require_fired=False) as injection:
        (result,) = epoch(alone(Tries([link], WAYS["read"]))).batches
    assert (CONTENT, 0) == (result.gave, injection.reached)


def test_a_linked_folder_goes_by_its_real_name_once_entered(path, tmp_path):
    """By chdir(2) or a descriptor of it, since the kernel knows no other name then."""
    folder = tmp_path / "shortcut"
    folder.symlink_to(os.path.dirname(path))
    through = str(folder / "file.rec")
    for way in ("relative path", "dir_fd"):
        (gave,), injection = attempt([through], WAYS[way], ReadError("*/data/*"))
        assert EIO in gave
        assert {path} == {firing.path for firing in injection.faults[0].firings}


NAMES = [
    b"with a space .rec",
    b" [1-2]?*{x}.rec",
    b"two\nlines.rec",
    b"carriage\rreturn\ttab.rec",
    b"back\\slash.rec",
    b"latin \xe9\xff.rec",
    "\N{SNOWMAN} \N{GRINNING FACE}.rec".encode(),
    b"x" * 251 + b".rec",
]


@pytest.fixture(name="odd", scope="module")
def _odd(tmp_path_factory):
    """The paths of files of odd names, in one folder with another one."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "other.rec").write_bytes(b"other")
    paths = [os.path.join(folder, os.fsdecode(name)) for name in NAMES]
    for path in paths:
        Path(path).write_bytes(CONTENT)
    return paths


@pytest.mark.parametrize("kind", [OpenError, ReadError, TruncatedFile, ClosedDescriptor])
def test_odd_names_are_matched_and_told(odd, kind):
    """glob.escape makes a glob of any path; bytes that are no UTF-8 come as os.fsdecode has it."""
    other = os.path.join(os.path.dirname(odd[0]), "other.rec")
    faults = [kind(glob.escape(path)) for path in odd]
    gave, injection = attempt([*odd, other], WAYS["pread"], *faults)
    assert [] == [path for path, each in zip(odd, gave, strict=False) if each == CONTENT]
    assert b"other" == gave[-1]
    told = [{firing.path for firing in facts.firings} for facts in injection.faults]
    assert [{path} for path in odd] == told


def test_odd_names_are_read_rightly(odd):
    """When nothing is due, by bytes as by text."""
    gave, injection = undisturbed([*odd, *map(os.fsencode, odd)], WAYS["pread"], "*.rec")
    assert [CONTENT] * 2 * len(odd) == gave
    opens = {path: each.opens for path, each in injection.workers[0].files.items()}
    assert dict.fromkeys(odd, 2) == opens


def test_a_descriptor_of_an_odd_name_that_is_inherited(odd):
    """It is found by its name too, when it was opened before the fork."""
    with contextlib.ExitStack() as stack:
        fds = [stack.enter_context(open(path, "rb")).fileno() for path in odd]
        gave, _ = attempt(fds, pread, TruncatedFile("*.rec", keep=50))
    assert [CONTENT[:50]] * len(odd) == gave


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
