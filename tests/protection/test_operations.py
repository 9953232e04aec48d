"""Each way to destroy a file, after a fault: it is refused, and nothing is lost."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import mmap
import os
import re
import shutil
import sqlite3
import struct
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from support.protection import (
    AT_FDCWD,
    CONTENT,
    OTHER,
    VICTIM,
    check,
    libc,
    perform,
    perform_as_expected,
    refused,
    run,
    with_descriptor,
    write_tree,
)
from support.surroundings import mount_overlay, mounts_are_refused, traceback_under

pytestmark = pytest.mark.usefixtures("engine")

ROFS = "Read-only file system"
NEW = b"another content"


def in_folder(use):
    """A deed that calls *use* with the name of the victim, and a descriptor of its folder."""

    def do(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return use(VICTIM, fd)
        finally:
            os.close(fd)

    return do


def in_current_folder(use):
    def do(folder):
        previous = Path.cwd()
        os.chdir(folder)
        try:
            return use(VICTIM)
        finally:
            os.chdir(previous)

    return do


def victim(use, name=VICTIM):
    """A deed that calls *use* with the path of one file."""
    return lambda folder: use(folder / name)


def new_file(folder, name="new.png"):
    (folder / name).write_bytes(NEW)
    return folder / name


def new_folder(folder):
    (folder / "new").mkdir()
    new_file(folder / "new")
    return folder / "new"


def copied(copy):
    """A deed that copies the content of another file into the victim, by two descriptors."""

    def do(folder):
        with open(folder / OTHER, "rb") as source, open(folder / VICTIM, "r+b") as target:
            return copy(source.fileno(), target.fileno())

    return do


def exchange(folder):
    paths = [os.fsencode(path) for path in (new_file(folder), folder / VICTIM)]
    exchanges = 2
    check(libc.renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], exchanges))


def replace_by_temporary(folder):
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(NEW)
    os.replace(file.name, folder / VICTIM)


def linked(folder):
    os.link(folder / VICTIM, folder / "second")
    return folder / "second"


def open_by_openat2(folder):
    how = struct.pack("QQQ", os.O_WRONLY | os.O_TRUNC, 0, 0)
    path = os.fsencode(folder / VICTIM)
    os.close(check(libc.syscall(437, AT_FDCWD, path, how, len(how))))


def fallocate(mode):
    """Keeping the size, of which the other *mode* bits need some, the first half of the file."""
    half = ctypes.c_long(len(CONTENT) // 2)
    keep_size = 1
    return with_descriptor(
        lambda fd: check(libc.fallocate(fd, mode | keep_size, ctypes.c_long(0), half))
    )


def splice(source_fd, target_fd):
    read, write = os.pipe()
    try:
        os.splice(source_fd, write, len(CONTENT))
        os.splice(read, target_fd, len(CONTENT))
    finally:
        os.close(read)
        os.close(write)


def unreserve(fd):
    """Punch a hole by the older request of XFS, which all file systems know."""
    fcntl.ioctl(fd, 0x4030582B, struct.pack("=hhiqqiI16x", 0, 0, 0, 0, len(CONTENT), 0, 0))


def write_asynchronously(fd):
    """By io_submit(2), which is older than io_uring."""
    setup, submit, get_events = {"x86_64": (206, 209, 208)}.get(os.uname().machine, (0, 2, 4))
    context = ctypes.c_ulong()
    check(libc.syscall(setup, 1, ctypes.byref(context)))
    data = ctypes.create_string_buffer(NEW)
    address, pwrite = ctypes.addressof(data), 1
    block = struct.pack("=QIIHhIQQqQII", 0, 0, 0, pwrite, 0, fd, address, len(NEW), 0, 0, 0, 0)
    buffer = ctypes.create_string_buffer(block)
    blocks, events = ctypes.c_void_p(ctypes.addressof(buffer)), ctypes.create_string_buffer(32)
    check(libc.syscall(submit, context, ctypes.c_long(1), ctypes.byref(blocks)))
    check(libc.syscall(get_events, context, ctypes.c_long(1), ctypes.c_long(1), events, None))
    result = struct.unpack("=QQqq", events.raw[:32])[2]
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def write_duplicate(fd):
    copy = os.dup(fd)
    try:
        os.write(copy, NEW)
    finally:
        os.close(copy)


def overwrite_mapping(fd):
    with mmap.mmap(fd, len(CONTENT)) as mapped:
        mapped[: len(NEW)] = NEW


def by_name(path):
    np.memmap(path, np.uint8, "r+")[:] = 0


def by_torch(path):
    torch.from_file(str(path), shared=True, size=len(CONTENT), dtype=torch.uint8).fill_(0)


def write_in_place(path):
    with open(path, "r+b", buffering=0) as file:
        file.write(NEW)


def append(path):
    with open(path, "ab", buffering=0) as file:
        file.write(NEW)


def empty(path):
    open(path, "wb").close()


def by_own_descriptor(fd):
    """Open the same file again, by the link in /proc."""
    empty(f"/proc/self/fd/{fd}")


def python(code):
    """A deed by another interpreter, in which ``path`` is the victim."""
    text = f"import os, sys; path = sys.argv[1]\ntry: {code}\nexcept OSError as e: print(e)"
    return victim(functools.partial(run, sys.executable, "-ISc", text))


DAEMON = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
try:
    os.remove(sys.argv[1])
except OSError as error:
    print(error)
"""


def in_a_thread(path):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(os.remove, path).result()


def print_over(path):
    """A program that has the file as its standard output."""
    with open(path, "r+b") as file:
        run("echo", "hello", stdout=file)


def through_h5py(path):
    import h5py

    h5py.File(path, "w").close()


def through_cv2(path):
    import cv2

    if not cv2.imwrite(str(path), np.zeros((2, 2, 3), np.uint8)):
        raise RuntimeError("not written")


def write_table(folder):
    with sqlite3.connect(folder / "table.db") as connection:
        connection.execute("create table t (x)")
        connection.execute("insert into t values (1)")
    connection.close()


def through_sqlite(path):
    connection = sqlite3.connect(path)
    try:
        with connection:
            connection.execute("update t set x = 2")
    finally:
        connection.close()


FAMILIES = {
    "removals": {
        "remove": refused(victim(os.remove), "unlink"),
        "Path.unlink": refused(victim(Path.unlink), "unlink"),
        "unlink by a folder's descriptor": refused(
            in_folder(lambda name, fd: os.unlink(name, dir_fd=fd)), "unlink"
        ),
        "unlink a link": refused(victim(os.unlink, "link"), "unlink", "link"),
        "unlink the link to a folder": refused(
            victim(os.unlink, "inner-link"), "unlink", "inner-link"
        ),
        "unlink through the link to a folder": refused(
            victim(os.unlink, "inner-link/a.txt"), "unlink", "inner/a.txt"
        ),
        "unlink after a hard link": refused(
            lambda folder: linked(folder) and os.unlink(folder / VICTIM), "unlink"
        ),
        "unlink in the current folder": refused(in_current_folder(os.unlink), "unlink"),
        "rmdir": refused(victim(os.rmdir, "empty"), "rmdir", "empty"),
        "rmtree": refused(victim(shutil.rmtree, "inner"), "unlink", "inner/a.txt"),
        "rmtree of everything": refused(shutil.rmtree, "unlink"),
    },
    "renames": {
        "rename away": refused(
            victim(lambda path: path.rename(path.with_name("elsewhere"))), "rename"
        ),
        "rename by a folder's descriptor": refused(
            in_folder(lambda name, fd: os.rename(name, "new", src_dir_fd=fd, dst_dir_fd=fd)),
            "rename",
        ),
        "rename a folder": refused(
            lambda folder: (folder / "inner").rename(folder / "new"), "rename", "inner"
        ),
        "rename the folder of all": refused(
            lambda folder: folder.rename(folder.with_name(f"{folder.name}-new")), "rename", "."
        ),
        "rename a link": refused(
            lambda folder: (folder / "link").rename(folder / "new"), "rename", "link"
        ),
        "replace": refused(lambda folder: new_file(folder).replace(folder / VICTIM), "replace"),
        "replace a link": refused(
            lambda folder: new_file(folder).replace(folder / "link"), "replace", "link"
        ),
        "replace an empty folder": refused(
            lambda folder: new_folder(folder).rename(folder / "empty"), "replace", "empty"
        ),
        "replace by a temporary file": refused(replace_by_temporary, "replace"),
        "exchange": refused(exchange, "rename"),
        "shutil.move": refused(
            lambda folder: shutil.move(folder / OTHER, folder / "inner"),
            "rename",
            OTHER,
        ),
    },
    "opens": {
        "open w": refused(victim(empty), "truncate"),
        "open O_CREAT | O_TRUNC": refused(
            with_descriptor(id, os.O_RDWR | os.O_CREAT | os.O_TRUNC), "truncate"
        ),
        "open O_RDONLY | O_TRUNC": refused(
            with_descriptor(id, os.O_RDONLY | os.O_TRUNC), "truncate"
        ),
        "open by a folder's descriptor": refused(
            in_folder(lambda name, fd: os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=fd)),
            "truncate",
        ),
        "openat2": refused(open_by_openat2, "truncate"),
        "creat": refused(
            victim(lambda path: check(libc.creat(os.fsencode(path), 0o600))), "truncate"
        ),
        "open w through a link": refused(victim(empty, "link"), "truncate"),
        "open w through the link to a folder": refused(
            victim(empty, "inner-link/a.txt"), "truncate", "inner/a.txt"
        ),
        "open w through a new link": refused(
            lambda folder: (folder / "new").symlink_to(VICTIM) or empty(folder / "new"), "truncate"
        ),
        "open w of a new hard link": refused(
            lambda folder: empty(linked(folder)), "truncate", f"{VICTIM}|second"
        ),
        "open w in the current folder": refused(in_current_folder(empty), "truncate"),
        "open w of /proc/self/fd": refused(
            with_descriptor(by_own_descriptor, os.O_RDONLY), "truncate"
        ),
        "open w of /proc/self/root": refused(
            victim(lambda path: empty(f"/proc/self/root{path}")), "truncate"
        ),
        "copyfile": refused(
            lambda folder: shutil.copyfile(folder / OTHER, folder / VICTIM), "truncate"
        ),
    },
    "sizes": {
        "truncate": refused(victim(lambda path: os.truncate(path, 9)), "truncate"),
        "ftruncate": refused(with_descriptor(lambda fd: os.ftruncate(fd, 9)), "truncate"),
        "posix_fallocate": refused(
            with_descriptor(lambda fd: os.posix_fallocate(fd, 0, 4096)), "write"
        ),
        "punch a hole": refused(fallocate(0x02), "write"),
        "zero a range": refused(fallocate(0x10), "write"),
        "punch a hole by ioctl": refused(with_descriptor(unreserve), "write"),
    },
    "writes": {
        "write": refused(victim(write_in_place), "write"),
        "write through a link": refused(victim(write_in_place, "link"), "write"),
        "write by a duplicate": refused(with_descriptor(write_duplicate), "write"),
        "pwrite": refused(with_descriptor(lambda fd: os.pwrite(fd, NEW, 3)), "write"),
        "writev": refused(with_descriptor(lambda fd: os.writev(fd, [NEW, NEW])), "write"),
        "pwritev": refused(with_descriptor(lambda fd: os.pwritev(fd, [NEW], 3)), "write"),
        "pwritev2": refused(
            with_descriptor(lambda fd: os.pwritev(fd, [NEW], 3, os.RWF_DSYNC)), "write"
        ),
        "append": refused(victim(append), "write"),
    },
    "copies and mappings": {
        "copy_file_range": refused(
            copied(lambda source, target: os.copy_file_range(source, target, 9)), "write"
        ),
        "sendfile": refused(
            copied(lambda source, target: os.sendfile(target, source, 0, 9)), "write"
        ),
        "splice": refused(copied(splice), "write"),
        "mmap": refused(with_descriptor(overwrite_mapping, name=OTHER), "map", OTHER),
        "np.memmap": refused(victim(by_name, OTHER), "map", OTHER),
        "torch.from_file": refused(victim(by_torch, OTHER), "map", OTHER, ROFS),
    },
    "processes": {
        "rm": refused(victim(functools.partial(run, "rm", "-f")), "unlink", says=ROFS),
        "rm -r": refused(
            victim(functools.partial(run, "rm", "-rf"), "inner"), "unlink", "inner/a.txt", ROFS
        ),
        "mv": refused(
            lambda folder: run("mv", new_file(folder), folder / VICTIM), "replace", says=ROFS
        ),
        "sh": refused(victim(lambda path: run("sh", "-c", f"> {path}")), "truncate", says=ROFS),
        "truncate -s 0": refused(
            victim(functools.partial(run, "truncate", "-s", "0")), "truncate", says=ROFS
        ),
        "dd": refused(
            lambda folder: run(
                *("dd", "status=none", "conv=notrunc", f"if={folder}/{OTHER}"),
                f"of={folder}/{VICTIM}",
            ),
            "write",
            says=ROFS,
        ),
        "standard output": refused(victim(print_over), "write", says=ROFS),
        "interpreter": refused(python("os.remove(path)"), "unlink", says=ROFS),
        "daemon": refused(
            victim(functools.partial(run, sys.executable, "-ISc", DAEMON)), "unlink", says=ROFS
        ),
        "thread": refused(victim(in_a_thread), "unlink"),
    },
    "libraries": {
        "h5py": refused(victim(through_h5py), "truncate"),
        "cv2.imwrite": refused(victim(through_cv2), "truncate", says="not written"),
        "torch.save": refused(
            victim(lambda path: torch.save(torch.zeros(3), path)), "truncate", says=ROFS
        ),
        "tofile": refused(victim(lambda path: np.zeros(3).tofile(path)), "truncate"),
        "sqlite3": refused(
            victim(through_sqlite, "table.db"),
            *("write", "table.db", "disk I/O error", write_table),
        ),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_lost(family, tmp_path):
    perform_as_expected(FAMILIES[family], tmp_path)


def clone(source_fd, target_fd):
    fcntl.ioctl(target_fd, 0x40049409, source_fd)


IN_SOME_WAY = {
    "clone": refused(copied(clone), "write", says="^(EROFS|ENOTSUP)$"),
    "io_submit": refused(with_descriptor(write_asynchronously), "write", says="^(EROFS|EPERM)$"),
}
"""Only some file systems have FICLONE, such as Btrfs and XFS. Of io_submit(2) and io_uring, a
filter does not see which files they write, so that it can only refuse them all."""


def test_nothing_is_lost_by_calls_that_fail_in_some_way(tmp_path):
    _, performed = perform(IN_SOME_WAY, tmp_path)

    assert [result.changes for result in performed.values()] == [[], []]
    for name, deed in IN_SOME_WAY.items():
        assert re.search(deed.says, performed[name].answer)


def claim(folder):
    """Give a file another name, as a program does that alone may use it."""
    os.link(folder / OTHER, folder / "claimed")
    os.unlink(folder / OTHER)


def test_the_last_name_of_a_file_in_its_folder_stays(tmp_path):
    """It may have others elsewhere, as the files of a copy by links have."""
    copy = tmp_path / "copy"
    deed = refused(
        victim(os.remove, "claimed"),
        *("unlink", "claimed"),
        prepare=lambda folder: os.link(folder / OTHER, copy),
    )
    _, performed = perform({"remove": deed._replace(begin=claim)}, tmp_path)

    assert performed["remove"].answer == "EROFS"
    assert (tmp_path / "0" / "claimed").samefile(copy)


def remove(path):
    os.remove(path)


def test_a_refusal_says_who_wanted_to_change_what(tmp_path):
    outcome, _ = perform({"remove": refused(victim(remove), "unlink")}, tmp_path)
    (refusal,) = outcome.refusals

    assert refusal.path == str(tmp_path.resolve() / "0" / VICTIM)
    assert (refusal.change, refusal.call, refusal.worker) == ("unlink", "unlink", 0)
    assert refusal.is_read
    assert re.search(rf"{Path(__file__).name}:\d+ in remove$", refusal.place)


OVERLAY = {
    "remove": refused(victim(os.remove), "unlink"),
    "remove what was opened for writing": refused(victim(os.remove), "unlink")._replace(
        begin=with_descriptor(id)
    ),
    "open w of what was opened for writing": refused(victim(empty), "truncate")._replace(
        begin=with_descriptor(id)
    ),
}


def test_files_of_an_overlay_stay(tmp_path):
    """A file that is opened for writing there is a new one, below another folder."""
    reason = mounts_are_refused()
    if reason:
        pytest.skip(f"mount(2) is refused: {reason}")
    for number in range(len(OVERLAY)):
        write_tree(tmp_path / "lower" / str(number))
    error_text = traceback_under(
        lambda: perform_as_expected(OVERLAY, tmp_path / "merged"), mount_overlay(tmp_path)
    )

    assert not error_text, error_text
