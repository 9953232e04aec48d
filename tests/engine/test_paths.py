"""Which files a glob means, and which are left alone unless one asks for them."""

from __future__ import annotations

import os
import sys

import numpy as np

from pytest_dataloader_faults.globs import GlobMatcher, is_excluded
from support.rows import rows


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
