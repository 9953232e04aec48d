"""What a program may still do after a fault, because nothing is lost by it."""

import contextlib
import fcntl
import functools
import logging
import mmap
import os
import py_compile
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import numpy as np
import pytest

from support.protection import (
    AT_FDCWD,
    CONTENT,
    DONE,
    OTHER,
    VICTIM,
    Deed,
    check,
    libc,
    perform_as_expected,
    refused,
    run,
    with_descriptor,
    write_tree,
)

pytestmark = pytest.mark.usefixtures("engine")

INDEX = "index.txt"


def on(name, use, *arguments):
    def do(folder):
        use(folder / name, *arguments)

    return do


def fails(number, do):
    return Deed(do, says=rf"^{number}$")


def renamed(source, target):
    return lambda folder: (folder / source).rename(folder / target)


def rename_without_replacing(folder):
    (folder / "new").touch()
    source, target = os.fsencode(folder / "new"), os.fsencode(folder / VICTIM)
    check(libc.renameat2(AT_FDCWD, source, AT_FDCWD, target, 1))


def to_another_file_system(folder):
    """Of which the error is EXDEV, so that shutil.move() copies the file."""
    (folder / OTHER).rename(f"/dev/shm/{uuid.uuid4()}")


def map_for_writing(fd):
    mmap.mmap(fd, len(CONTENT)).close()


FAILS_ANYWAY = {
    "unlink a missing file": fails("ENOENT", on("missing", os.unlink)),
    "unlink a folder": fails("EISDIR", on("empty", os.unlink)),
    "unlink a name that is too long": fails("ENAMETOOLONG", on("x" * 300, os.unlink)),
    "rmdir a folder with a file": fails("ENOTEMPTY", on("inner", os.rmdir)),
    "rmdir a file": fails("ENOTDIR", on(VICTIM, os.rmdir)),
    "mkdir": fails("EEXIST", on("inner", os.mkdir)),
    "link": fails("EEXIST", lambda folder: os.link(folder / OTHER, folder / VICTIM)),
    "rename a missing file": fails("ENOENT", renamed("missing", VICTIM)),
    "rename a file to a folder": fails("EISDIR", renamed(VICTIM, "empty")),
    "rename a folder to a file": fails("ENOTDIR", renamed("empty", VICTIM)),
    "rename to a folder with a file": fails("ENOTEMPTY", renamed("empty", "inner")),
    "rename a folder into itself": fails("EINVAL", renamed("inner", "inner/new")),
    "rename to a missing folder": fails("ENOENT", renamed(VICTIM, "missing/file")),
    "rename with RENAME_NOREPLACE": fails("EEXIST", rename_without_replacing),
    "rename to another file system": fails("EXDEV", to_another_file_system),
    "open x": fails("EEXIST", on(VICTIM, open, "x")),
    "open w of a folder": fails("EISDIR", on("inner", open, "w")),
    "open w of a link with O_NOFOLLOW": fails(
        "ELOOP", with_descriptor(id, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, "link")
    ),
    "truncate a folder": fails("EISDIR", on("inner", os.truncate, 0)),
    "truncate to a negative size": fails("EINVAL", on(VICTIM, os.truncate, -1)),
    "ftruncate what is open for reading": fails(
        "EINVAL", with_descriptor(lambda fd: os.ftruncate(fd, 0), os.O_RDONLY)
    ),
    "write to what is open for reading": fails(
        "EBADF", with_descriptor(lambda fd: os.write(fd, b"x"), os.O_RDONLY)
    ),
    "map what is open for reading": fails(
        "EACCES", with_descriptor(map_for_writing, os.O_RDONLY, OTHER)
    ),
}


def use_file(path):
    """Everything that is refused for files that were there before."""
    path.write_bytes(CONTENT)
    path.write_bytes(CONTENT)
    with open(path, "r+b", buffering=0) as file:
        file.write(b"x")
        os.pwrite(file.fileno(), b"y", 3)
        os.posix_fallocate(file.fileno(), 0, 4096)
        file.truncate(len(CONTENT))
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0] = 1
    os.truncate(path, 9)
    path = path.rename(path.with_name("next"))
    Path(f"{path}.part").write_bytes(CONTENT)
    os.replace(f"{path}.part", path)
    shutil.copyfile(path.parent / OTHER, path)
    path.unlink()


def use_folder(path):
    path.mkdir()
    path = path.rename(path.with_name("next"))
    path.rmdir()
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "file").write_bytes(CONTENT)
    (path / "inner" / "link").symlink_to("file")
    shutil.rmtree(path)


def name_temporary(folder):
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(CONTENT)
    os.rename(file.name, folder / "named")


def link_and_unlink(folder):
    os.link(folder / VICTIM, folder / "second")
    os.unlink(folder / "second")


def write_and_remove(path):
    path.write_bytes(CONTENT)
    path.unlink()


def exchange_new(folder):
    paths = [folder / "one", folder / "two"]
    for path in paths:
        path.write_bytes(CONTENT)
    source, target = map(os.fsencode, paths)
    check(libc.renameat2(AT_FDCWD, source, AT_FDCWD, target, 2))


def by_several_processes(folder):
    path = folder / "new"
    path.write_bytes(CONTENT)
    run("sh", "-c", f"echo a > {path}; echo b > {path}.b")
    Path(f"{path}.b").write_bytes(CONTENT)
    run("rm", path, f"{path}.b")


def use_nameless(folder):
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(CONTENT)
        file.truncate(9)
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0] = 1
    with open(folder / "new", "w+b") as file:
        os.unlink(folder / "new")
        file.write(CONTENT)
        file.truncate(9)


def name_later(folder):
    """A file without a name gets one when it is complete, by linkat(2)."""
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    os.write(fd, CONTENT)
    source, target = f"/proc/self/fd/{fd}".encode(), os.fsencode(folder / "named")
    follow = 0x400
    check(libc.linkat(AT_FDCWD, source, AT_FDCWD, target, follow))
    os.close(fd)
    write_and_remove(folder / "named")


OWN_FILES = {
    "a file": Deed(on("new", use_file)),
    "a file of the dataset's constructor": Deed(
        on("new", write_and_remove), create=on("new", Path.write_bytes, CONTENT)
    ),
    "a file in a folder that was there": Deed(on("inner/new", write_and_remove)),
    "a folder": Deed(on("new", use_folder)),
    "a temporary file that gets its name": Deed(name_temporary),
    "a temporary folder": Deed(lambda _folder: tempfile.TemporaryDirectory().cleanup()),
    "a hard link to a file that was there": Deed(link_and_unlink),
    "two files that are exchanged": Deed(exchange_new),
    "files without a name": Deed(use_nameless),
    "a file that gets its first name": Deed(name_later),
    "files of several processes": Deed(by_several_processes),
}


def write_empty(folder):
    (folder / "lock").touch()


def write_log(folder):
    (folder / "log").write_text("a line\n")


def lock(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX)
        file.write(str(os.getpid()))


def log(path):
    handler = logging.FileHandler(path)
    handler.emit(logging.makeLogRecord({"msg": "another line"}))
    handler.close()


def read_back(fd):
    assert os.read(fd, len(CONTENT)) == CONTENT[::-1]
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[0] == CONTENT[-1]
    with mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) as mapped:
        mapped[0] = 0


LOCKS_AND_LOGS = {
    "take an empty file as a lock": Deed(on("lock", lock), prepare=write_empty),
    "unlink an empty file": Deed(on("lock", os.unlink), prepare=write_empty),
    "append to a log": Deed(on("log", log), prepare=write_log),
    "open for writing, and read": Deed(with_descriptor(read_back, os.O_RDWR | os.O_CREAT, OTHER)),
    "touch": Deed(on(OTHER, Path.touch)),
}


def make_pipe(folder):
    os.mkfifo(folder / "pipe")


def make_socket(folder):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))


def use_pipe(folder):
    with_descriptor(lambda fd: os.write(fd, CONTENT), name="pipe")(folder)
    (folder / "pipe").rename(folder / "next")
    (folder / "next").unlink()


def use_devices(_folder):
    Path("/dev/null").write_bytes(CONTENT)
    run("sh", "-c", "echo a > /dev/null; echo b >> /dev/null")
    run("echo", "c", stdout=subprocess.DEVNULL)
    terminal = os.openpty()
    for fd in terminal:
        os.write(fd, b"\n")
    for fd in terminal:
        os.close(fd)


def use_memory(_folder):
    fd = os.memfd_create("memory")
    os.write(fd, CONTENT)
    Path(f"/proc/self/fd/{fd}").write_bytes(CONTENT[:9])
    os.ftruncate(fd, 9)
    with mmap.mmap(fd, 0) as mapped:
        mapped[0] = 1
    os.close(fd)


def use_procfs(_folder):
    """The name of a thread, and the limit of a process that is likely to be killed."""
    comm = Path("/proc/thread-self/comm")
    comm.write_text(comm.read_text())


def print_text(_folder):
    for fd in (1, 2):
        os.write(fd, b"printed\n")


def compile_module(folder):
    (folder / "module.py").write_text("")
    compile_it_again(folder)


def compile_it_again(folder):
    """What an import does if the source has another time than the bytecode says."""
    py_compile.compile(str(folder / "module.py"), doraise=True)


NOT_PROTECTED = {
    "bytecode": Deed(compile_it_again, prepare=compile_module),
    "a pipe": Deed(use_pipe, prepare=make_pipe),
    "a socket": Deed(on("socket", os.unlink), prepare=make_socket),
    "devices": Deed(use_devices),
    "memory": Deed(use_memory),
    "procfs": Deed(use_procfs),
    "standard streams": Deed(print_text),
}


def write_index(folder):
    (folder / INDEX).write_text("0 1 2 3")


def replace(path):
    Path(f"{path}.{os.getpid()}").write_text("0 1 2 3 4")
    os.replace(f"{path}.{os.getpid()}", path)


def write_at_start(path):
    with open(path, "r+b", buffering=0) as file:
        file.write(b"9")


def rewrite(path):
    with open(path, "r+b", buffering=0) as file:
        first_byte = file.read(1)
        os.pwrite(file.fileno(), first_byte, 0)


def write_twice(path):
    with contextlib.suppress(OSError):
        write_at_start(path)
    write_at_start(path)


def append(path):
    with open(path, "ab", buffering=0) as file:
        file.write(b"5")


def map_and_write(path):
    np.memmap(path, np.uint8, "r+")[0] = 57


def move_and_return(path):
    path.rename(path.with_name("next")).rename(path)


def as_before(use, name=INDEX):
    return Deed(on(name, use), prepare=write_index, begin=on(name, use))


AS_BEFORE = {
    "write a file": as_before(lambda path: path.write_text("0 1")),
    "replace a file": as_before(replace),
    "write a part": as_before(write_at_start),
    "map a file": as_before(map_and_write),
    "truncate a file": as_before(lambda path: os.truncate(path, 3)),
    "append to a file that is read": as_before(append, VICTIM),
    "rename a file": as_before(move_and_return),
    "unlink a file, and write it again": as_before(
        lambda path: path.unlink() or path.write_text("0")
    ),
}


FAMILIES = {
    "fails anyway": FAILS_ANYWAY,
    "own files": OWN_FILES,
    "locks and logs": LOCKS_AND_LOGS,
    "not protected": NOT_PROTECTED,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_it_works_as_without_a_fault(family, tmp_path):
    perform_as_expected(FAMILIES[family], tmp_path)


def test_a_program_may_do_again_what_it_did_before_the_fault(tmp_path):
    perform_as_expected(AS_BEFORE, tmp_path)

    names = [set(os.listdir(folder)) for folder in sorted(tmp_path.iterdir())]
    assert names == [{*os.listdir(write_tree(tmp_path / "tree")), INDEX}] * len(AS_BEFORE)


def refused_after(begin, do, change):
    return refused(do, change, INDEX, prepare=write_index)._replace(begin=begin)


WRITE, REWRITE = on(INDEX, write_at_start), on(INDEX, rewrite)
OTHERWISE = {
    "truncate after a write": refused_after(REWRITE, on(INDEX, os.truncate, 0), "truncate"),
    "unlink after a write": refused_after(REWRITE, on(INDEX, os.unlink), "unlink"),
    "write after a write to another file": refused_after(on(OTHER, rewrite), WRITE, "write"),
    "write after a write that was refused": refused_after(id, on(INDEX, write_twice), "write"),
}


def test_a_program_may_not_do_anything_else(tmp_path):
    perform_as_expected(OTHERWISE, tmp_path)


@pytest.fixture(name="segment")
def _segment():
    """A file in shared memory that another program has left there."""
    fd, path = tempfile.mkstemp(dir="/dev/shm")
    os.write(fd, CONTENT)
    os.close(fd)
    yield Path(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


ATTACH = """
import os, sys
from multiprocessing.shared_memory import SharedMemory
SharedMemory(os.path.basename(sys.argv[1])).close()
"""
"""Its resource tracker then unlinks the segment, as if it were its own."""


def test_shared_memory_keeps_its_names_and_sizes_and_not_its_contents(segment, tmp_path):
    def changed(use, *arguments, says=DONE):
        return Deed(lambda _folder: use(segment, *arguments) and None, says=says)

    deeds = {
        "write": changed(write_at_start),
        "map": changed(map_and_write),
        "truncate": changed(os.truncate, 0, says="EROFS"),
        "open w": changed(open, "w", says="EROFS"),
        "rename": changed(Path.rename, segment.with_suffix(".new"), says="EROFS"),
        "attach": changed(
            functools.partial(run, sys.executable, "-c", ATTACH), says="Read-only file system"
        ),
        "unlink": changed(os.unlink, says="EROFS"),
    }
    outcome = perform_as_expected(deeds, tmp_path)

    assert {refusal.path for refusal in outcome.refusals} == {str(segment)}
    assert {refusal.change for refusal in outcome.refusals} == {"truncate", "rename", "unlink"}
    assert segment.read_bytes() == b"9" + CONTENT[1:]
