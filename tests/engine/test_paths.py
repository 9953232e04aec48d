"""Which paths a glob means, and paths and files as they are seldom met."""

import contextlib
import errno
import functools
import glob
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ClosedDescriptor, OpenError, ReadError, TruncatedFile
from pytest_dataloader_faults.faults.globs import GlobMatcher, is_excluded
from support.attempts import CONTENT, attempt
from support.contracts.paths import NAMES
from support.epochs import alone, epoch
from support.rows import rows
from support.tries import WAYS, Tries, look_at, pread


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


def test_each_glob_matches_itself_only():
    matches = GlobMatcher(("/etc/*", "*.dat"))
    matched = {path: matches(path) for path in ("/etc/a", "/usr/share/a.dat", "/data/a.dat")}
    assert {"/etc/a": True, "/usr/share/a.dat": False, "/data/a.dat": True} == matched


EIO = os.strerror(errno.EIO)


KINDS = (OpenError, ReadError, TruncatedFile, ClosedDescriptor)


def test_the_name_of_a_link_is_what_globs_match(tmp_path):
    places = range(2 * len(KINDS))
    links, targets = ([str(tmp_path / f"{at}.{end}") for at in places] for end in ("lnk", "rec"))
    for link, target in zip(links, targets, strict=True):
        Path(target).write_bytes(CONTENT)
        os.symlink(target, link)
    meant = [*links[: len(KINDS)], *targets[len(KINDS) :]]
    faults = [kind(path) for kind, path in zip(KINDS * 2, meant, strict=True)]
    with inject(*faults, require_fired=False) as injection:
        gave = [each.gave for each in epoch(alone(Tries(links, WAYS["read"]))).batches]
    assert [place >= len(KINDS) for place in places] == [each == CONTENT for each in gave]
    paths = [{firing.path for firing in facts.firings} for facts in injection.faults]
    assert [*({link} for link in links[: len(KINDS)]), *[set()] * len(KINDS)] == paths
    assert {0} == {facts.matched for facts in injection.faults[len(KINDS) :]}


def test_a_linked_folder_goes_by_its_real_name_once_entered(path, tmp_path):
    """By chdir(2) or a descriptor of it, since the kernel knows no other name then."""
    folder = tmp_path / "shortcut"
    folder.symlink_to(os.path.dirname(path))
    ways = [WAYS[name] for name in ("relative path", "dir_fd")]
    gave, injection = attempt(
        ways, lambda way: way(str(folder / "file.rec")), ReadError("*/data/*")
    )
    assert all(EIO in each for each in gave)
    assert {path} == {firing.path for firing in injection.faults[0].firings}


def _write_odd_files(folder):
    """The paths of files of odd names."""
    folder.mkdir()
    paths = [os.path.join(folder, os.fsdecode(name)) for name in NAMES]
    for path in paths:
        Path(path).write_bytes(CONTENT)
    return paths


@pytest.fixture(name="odd")
def _odd(tmp_path):
    return _write_odd_files(tmp_path / "odd")


def test_what_is_inherited_of_odd_names(odd):
    """/proc/self/maps writes some names in a way of its own."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(path, "rb")) for path in odd]
        calls = [functools.partial(pread, file.fileno()) for file in files]
        for file in files:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            calls.append(functools.partial(look_at, (stack.enter_context(mapping), 7)))
        faults = [TruncatedFile(glob.escape(path), keep=50) for path in odd]
        gave, injection = attempt(calls, lambda call: call(), *faults)
    assert [CONTENT[:50]] * len(odd) + [CONTENT[7]] * len(odd) == gave
    assert [{path} for path in odd] == [
        {firing.path for firing in facts.firings} for facts in injection.faults
    ]


def test_files_that_are_replaced_between_epochs(tmp_path):
    paths = [str(tmp_path / f"{name}.rec") for name in ("counted", "shorter")]
    loader = alone(Tries(paths, WAYS["pread"]), persistent_workers=True)
    contents = zip((b"1", b"22", b"333"), (b"1111", b"2222", b"33"), strict=True)
    faults = ReadError("*/counted.rec", nth=3), TruncatedFile("*/shorter.rec", keep=2)
    with inject(*faults) as injection:
        epochs = [_epoch_of_new_contents(loader, paths, each) for each in contents]
    loader._iterator._shutdown_workers()
    counted, shorter = zip(*epochs, strict=True)
    assert (b"1", b"22") == counted[:2]
    assert EIO in counted[2]
    assert (b"11", b"22", b"33") == shorter
    assert 3 == injection.faults[0].matched


def _epoch_of_new_contents(loader, paths, contents):
    for path, content in zip(paths, contents, strict=True):
        Path(f"{path}.new").write_bytes(content)
        os.utime(f"{path}.new", (1, 1))  # As archives are unpacked.
        os.replace(f"{path}.new", path)
    return [each.gave for each in epoch(loader).batches]
