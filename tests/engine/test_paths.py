"""Which paths a glob means, and paths and files as they are seldom met."""

import os
import sys
from pathlib import Path

import numpy as np

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ClosedDescriptor, OpenError, ReadError, TruncatedFile
from pytest_dataloader_faults.faults.globs import GlobMatcher, is_excluded
from support.attempts import CONTENT
from support.epochs import alone, epoch
from support.rows import rows
from support.tries import WAYS, Tries


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
