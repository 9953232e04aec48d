"""Each way to destroy a file, after a fault: it is refused, and nothing is lost."""

import ctypes
import fcntl
import functools
import mmap
import os
import re
import shutil
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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
    return lambda folder: use(folder / name)


def new_file(folder):
    (folder / "new.png").write_bytes(NEW)
    return folder / "new.png"


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


def overwrite_mapping(fd):
    with mmap.mmap(fd, len(CONTENT)) as mapped:
        mapped[: len(NEW)] = NEW


def write_in_place(path):
    with open(path, "r+b", buffering=0) as file:
        file.write(NEW)


def append(path):
    with open(path, "ab", buffering=0) as file:
        file.write(NEW)


def empty(path):
    open(path, "wb").close()


def by_own_descriptor(fd):
    empty(f"/proc/self/fd/{fd}")


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
    with open(path, "r+b") as file:
        run("echo", "hello", stdout=file)


REFUSED = {
    "unlink": {
        "remove": (victim(os.remove),),
        "by a folder's descriptor": (in_folder(lambda name, fd: os.unlink(name, dir_fd=fd)),),
        "a link": (victim(os.unlink, "link"), "link"),
        "the link to a folder": (victim(os.unlink, "inner-link"), "inner-link"),
        "through the link to a folder": (victim(os.unlink, "inner-link/a.txt"), "inner/a.txt"),
        "after a hard link": (lambda folder: linked(folder) and os.unlink(folder / VICTIM),),
        "rmtree": (victim(shutil.rmtree, "inner"), "inner/a.txt"),
        "rm": (victim(functools.partial(run, "rm", "-f")), VICTIM, ROFS),
        "daemon": (victim(functools.partial(run, sys.executable, "-ISc", DAEMON)), VICTIM, ROFS),
        "thread": (victim(in_a_thread),),
    },
    "rmdir": {"rmdir": (victim(os.rmdir, "empty"), "empty")},
    "rename": {
        "rename": (victim(lambda path: path.rename(path.with_name("elsewhere"))),),
        "by a folder's descriptor": (
            in_folder(lambda name, fd: os.rename(name, "new", src_dir_fd=fd, dst_dir_fd=fd)),
        ),
        "a folder": (lambda folder: (folder / "inner").rename(folder / "new"), "inner"),
        "a link": (lambda folder: (folder / "link").rename(folder / "new"), "link"),
        "exchange": (exchange,),
    },
    "replace": {
        "replace": (lambda folder: new_file(folder).replace(folder / VICTIM),),
        "a link": (lambda folder: new_file(folder).replace(folder / "link"), "link"),
        "an empty folder": (lambda folder: new_folder(folder).rename(folder / "empty"), "empty"),
    },
    "truncate": {
        "open w": (victim(empty),),
        "open O_CREAT | O_TRUNC": (with_descriptor(id, os.O_RDWR | os.O_CREAT | os.O_TRUNC),),
        "open by a folder's descriptor": (
            in_folder(lambda name, fd: os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=fd)),
        ),
        "openat2": (open_by_openat2,),
        "creat": (victim(lambda path: check(libc.creat(os.fsencode(path), 0o600))),),
        "through the link to a folder": (victim(empty, "inner-link/a.txt"), "inner/a.txt"),
        "through a new link": (
            lambda folder: (folder / "new").symlink_to(VICTIM) or empty(folder / "new"),
        ),
        "a new hard link": (lambda folder: empty(linked(folder)), f"{VICTIM}|second"),
        "in the current folder": (in_current_folder(empty),),
        "/proc/self/fd": (with_descriptor(by_own_descriptor, os.O_RDONLY),),
        "/proc/self/root": (victim(lambda path: empty(f"/proc/self/root{path}")),),
        "truncate": (victim(lambda path: os.truncate(path, 9)),),
        "ftruncate": (with_descriptor(lambda fd: os.ftruncate(fd, 9)),),
        "sh": (victim(lambda path: run("sh", "-c", f"> {path}")), VICTIM, ROFS),
    },
    "write": {
        "write": (victim(write_in_place),),
        "append": (victim(append),),
        "pwrite": (with_descriptor(lambda fd: os.pwrite(fd, NEW, 3)),),
        "writev": (with_descriptor(lambda fd: os.writev(fd, [NEW, NEW])),),
        "pwritev": (with_descriptor(lambda fd: os.pwritev(fd, [NEW], 3)),),
        "pwritev2": (with_descriptor(lambda fd: os.pwritev(fd, [NEW], 3, os.RWF_DSYNC)),),
        "posix_fallocate": (with_descriptor(lambda fd: os.posix_fallocate(fd, 0, 4096)),),
        "punch a hole": (fallocate(0x02),),
        "zero a range": (fallocate(0x10),),
        "punch a hole by ioctl": (with_descriptor(unreserve),),
        "copy_file_range": (copied(lambda source, target: os.copy_file_range(source, target, 9)),),
        "sendfile": (copied(lambda source, target: os.sendfile(target, source, 0, 9)),),
        "splice": (copied(splice),),
        "standard output": (victim(print_over), VICTIM, ROFS),
    },
    "map": {"mmap": (with_descriptor(overwrite_mapping, name=OTHER), OTHER)},
}


@pytest.mark.parametrize("change", REFUSED)
def test_nothing_is_lost(change, tmp_path):
    deeds = {name: refused(do, change, *rest) for name, (do, *rest) in REFUSED[change].items()}
    perform_as_expected(deeds, tmp_path)


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
