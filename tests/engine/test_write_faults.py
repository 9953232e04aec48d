"""Faults of writing, in each way in which datasets write: they happen there, and nowhere else."""

import errno
import functools
import importlib.util
import io
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_dataloader_faults import Verdict, inject, run_trial
from pytest_dataloader_faults._engine.supervisor.answers import writes
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._settings.jobs import TrialJob, TrialOptions
from pytest_dataloader_faults._trial import run_trial_job, take_reference
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import ShortWrite, WorkerKilled, WriteError
from pytest_dataloader_faults.faults.writes import WRITE_ERRNOS
from support.attempts import Case, attempt, attempt_each, epoch_of, met_errnos
from support.datasets import CopiedRecords, Records
from support.epochs import alone, epoch
from support.judging import judge_trial
from support.rows import slow
from support.surroundings import refuse_duplicate
from support.tries import Tries

pytestmark = pytest.mark.usefixtures("engine")

CONTENT = bytes(range(256)) * 64


@pytest.fixture(name="path")
def _path(tmp_path):
    """Where a worker writes; there is no file yet."""
    return str(tmp_path / "written.bin")


def _by_descriptor(write, flags=0):
    def use(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
        try:
            return write(fd)
        finally:
            os.close(fd)

    return use


def _from_file(copy):
    def use(path):
        source = f"{path}.source"
        Path(source).write_bytes(CONTENT)
        with open(source, "rb") as source_file, open(path, "wb") as copy_file:
            return copy(source_file.fileno(), copy_file.fileno())

    return use


def _spliced(source_fd, copy_fd):
    read, write = os.pipe()
    try:
        return os.splice(read, copy_fd, os.splice(source_fd, write, len(CONTENT)))
    finally:
        os.close(read)
        os.close(write)


def _through_h5py(path):
    import h5py

    with h5py.File(path, "w") as file:
        file["x"] = np.frombuffer(CONTENT, np.uint8)


def _through_numpy(path):
    with open(path, "wb") as file:
        np.save(file, np.zeros(9999))


def _through_sqlite(path):
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (x)")
        connection.execute("insert into t values (?)", (CONTENT,))
    connection.close()


def _in_a_thread(path):
    errors = []

    def write():
        try:
            Path(path).write_bytes(CONTENT)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _in_a_program(path):
    """tee(1) writes from C."""
    process = subprocess.run(
        ["/usr/bin/tee", path], input=CONTENT, capture_output=True, check=False
    )
    if process.returncode:
        raise ChildProcessError(process.stderr.decode())


def _renamed(path):
    with open(f"{path}.part", "wb", buffering=0) as file:
        os.replace(f"{path}.part", path)
        file.write(CONTENT)


WAYS = {
    "write_bytes": lambda path: Path(path).write_bytes(CONTENT),
    "text": lambda path: Path(path).write_text("x" * 9999, encoding="ascii"),
    "write": _by_descriptor(lambda fd: os.write(fd, CONTENT)),
    "pwrite": _by_descriptor(lambda fd: os.pwrite(fd, CONTENT, 3)),
    "writev": _by_descriptor(lambda fd: os.writev(fd, [CONTENT[:9], CONTENT[9:]])),
    "pwritev": _by_descriptor(lambda fd: os.pwritev(fd, [CONTENT], 3)),
    "pwritev2": _by_descriptor(lambda fd: os.pwritev(fd, [CONTENT], 3, os.RWF_DSYNC)),
    "fallocate": _by_descriptor(lambda fd: os.posix_fallocate(fd, 0, 999)),
    "fsync": _by_descriptor(lambda fd: os.fsync(fd)),  # noqa: PLW0108  # by its name in os
    "fdatasync": _by_descriptor(lambda fd: os.fdatasync(fd)),  # noqa: PLW0108
    "O_APPEND": _by_descriptor(lambda fd: os.write(fd, CONTENT), os.O_APPEND),
    "sendfile": _from_file(
        lambda source_fd, copy_fd: os.sendfile(copy_fd, source_fd, 0, len(CONTENT))
    ),
    "copy_file_range": _from_file(
        lambda source_fd, copy_fd: os.copy_file_range(source_fd, copy_fd, 999)
    ),
    "splice": _from_file(_spliced),
    "thread": _in_a_thread,
    "tee": _in_a_program,
    "rename": _renamed,
    "np.save": _through_numpy,
    "tofile": lambda path: np.zeros(9999).tofile(path),
    "torch.save": lambda path: torch.save(torch.zeros(9999), path),
    "sqlite": _through_sqlite,
    "h5py": _through_h5py,
}
EMPTY = ("fallocate", "fsync", "fdatasync")
"""Ways that write no data."""
ONCE = ("write", "pwrite", "writev", "pwritev", "pwritev2", "O_APPEND", "rename")
COPYING = ("sendfile", "copy_file_range", "splice")
WRITE_ON = [name for name in WAYS if name not in (*EMPTY, *ONCE, *COPYING)]
"""Ways that write the rest when a write was short."""
OF_LIBRARIES = {
    "torch.save": "RuntimeError",
    "sqlite": "database or disk is full",
    "h5py": "No space left on device",
    "tee": "No space left on device",
    "tofile": "OSError: 9999 requested and 0 written",
}
"""What says, in place of an OSError, that the disk is full."""


def _cases(names, make_fault):
    """Each of these ways with a fault of its file, and of files whose names begin as it does."""
    return {name: Case(WAYS[name], lambda path: make_fault(f"{path}*"), None) for name in names}


USABLE = [name for name in WAYS if name != "h5py" or importlib.util.find_spec("h5py")]


def _write_bare(name, path):
    """What that way writes without the engine, to a file of that name, which torch stores."""
    WAYS[name](str(path))
    return path.read_bytes()


def test_each_way_meets_a_full_disk(tmp_path):
    results, _ = attempt_each(_cases(USABLE, WriteError), tmp_path / "full")
    for name, (path, gave, facts) in results.items():
        assert OF_LIBRARIES.get(name, f"[Errno {errno.ENOSPC}]") in gave, name
        assert facts.fired, name
        assert not path.exists() or path.stat().st_size == 0, name


def test_each_way_works_when_its_turn_has_not_come(tmp_path):
    cases = _cases(USABLE, functools.partial(WriteError, nth=9999))
    results, _ = attempt_each(cases, tmp_path / "later", require_fired=False)
    for name, (path, gave, facts) in results.items():
        assert "Error" not in str(gave), name
        assert facts.matched, name
        assert path.read_bytes() == _write_bare(name, tmp_path / path.name), name


def test_what_writes_on_after_a_short_write_loses_nothing(tmp_path):
    names = [name for name in USABLE if name in WRITE_ON]
    make_fault = functools.partial(ShortWrite, max_bytes=50, times=9)
    results, _ = attempt_each(_cases(names, make_fault), tmp_path / "short")
    for name, (path, gave, facts) in results.items():
        assert "Error" not in str(gave), name
        assert facts.fired == 9, name
        assert path.read_bytes() == _write_bare(name, tmp_path / path.name), name


def _write_twice(fd):
    return os.write(fd, CONTENT), os.write(fd, b"next"), os.lseek(fd, 0, os.SEEK_CUR)


def _append(path):
    Path(path).write_bytes(b"before")
    return WAYS["O_APPEND"](path)


def _in_the_second_buffer(fd):
    return os.writev(fd, [b"it", b"is the second", CONTENT])


HALF = len(CONTENT) // 2
PARTS = {
    **{each: (WAYS[each], 20, 20, CONTENT[:20]) for each in ("write", "writev")},
    **{
        name: (WAYS[name], 20, 20, bytes(3) + CONTENT[:20])
        for name in ("pwrite", "pwritev", "pwritev2")
    },
    "fraction": (WAYS["write"], 0.5, HALF, CONTENT[:HALF]),
    "twice": (_by_descriptor(_write_twice), 20, (20, 4, 24), CONTENT[:20] + b"next"),
    "appended": (_append, 20, 20, b"before" + CONTENT[:20]),
    "vector": (_by_descriptor(_in_the_second_buffer), 8, 8, b"itis the"),
}
"""Ways to write, the most that is written at once, what the way gives, and what is in the file."""


def test_a_part_is_written_at_its_place(tmp_path):
    cases = {
        name: Case(way, functools.partial(ShortWrite, max_bytes=most), None)
        for name, (way, most, *_) in PARTS.items()
    }
    results, _ = attempt_each(cases, tmp_path / "parts")
    written = {name: (each.gave, each.path.read_bytes()) for name, each in results.items()}
    assert written == {name: row[2:] for name, row in PARTS.items()}


def test_every_errno_comes_out_of_a_write(tmp_path):
    met = met_errnos(tmp_path, WriteError, WRITE_ERRNOS, WAYS["write"], None)
    assert met == {n: len(CONTENT) if n == errno.EINTR else n for n in WRITE_ERRNOS}


def test_pipes_sockets_and_standard_output_are_left_alone(path, capfd):
    def write(_path):
        read, written = os.pipe()
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("memory")
        with ours, theirs, tempfile.TemporaryFile() as nameless:
            count = os.write(written, b"pipe") + os.write(ours.fileno(), b"socket")
            count += os.write(memory, b"memory") + nameless.write(b"nameless")
            nameless.flush()
        for fd in (read, written, memory):
            os.close(fd)
        sys.stderr.write("printed")
        logging.getLogger("written").error("logged")
        return count

    (gave,), injection = attempt([path], write, WriteError("*"), require_fired=False)

    assert gave == 4 + 6 + 6 + 8
    assert (injection.matched, injection.workers[0].unobserved) == (0, {})
    assert "printed" in capfd.readouterr().err


def test_a_file_that_was_open_before_is_left_alone_and_reported(path):
    with open(path, "wb", buffering=0) as log:
        (gave,), injection = attempt(
            [path], lambda _path: log.write(b"a line"), WriteError("*"), require_fired=False
        )

    assert gave == 6
    reason = "write to a file that was open before the worker started"
    assert injection.workers[0].unobserved == {reason: 1}
    assert f"Not visible to the engine: {reason} (1)" in str(injection.explain_unfired())


def test_a_number_that_is_used_again_is_another_file(path):
    log = open(f"{path}.log", "wb", buffering=0)

    def write(path):
        number = log.fileno()
        log.close()
        with open(path, "wb", buffering=0) as file:
            assert file.fileno() == number
            file.write(b"data")

    (gave,), injection = attempt([path], write, WriteError("*"))
    log.close()

    assert "No space left" in gave
    assert injection.fired == 1


def test_a_mapping_is_reported(path):
    """The kernel writes it back later, without a call."""

    def write(path):
        mapped = np.memmap(path, np.uint8, "w+", shape=99)
        mapped[:] = 7

    _, injection = attempt([path], write, WriteError("*", nth=99), require_fired=False)

    assert injection.workers[0].unobserved == {"write through a mapping": 1}
    assert Path(path).read_bytes() == b"\7" * 99


@pytest.mark.parametrize("workers", [slow(1), 2])
def test_a_death_leaves_half_of_a_write(tmp_path, workers):
    cells = [(worker, at) for worker in range(workers) for at in (1, 3)]
    faults = [
        WorkerKilled(writing=f"*/{worker}-{at}/*", worker=worker, at=at) for worker, at in cells
    ]
    with inject(*faults) as injection:
        for cell, (worker, at) in enumerate(cells):
            folder = tmp_path / f"{worker}-{at}"
            folder.mkdir()
            paths = [str(folder / f"{number}.bin") for number in range(8)]
            loader = alone(Tries(paths, WAYS["write"]), num_workers=workers)
            read, facts = epoch_of(injection, loader)

            place = workers * (at - 1) + worker
            assert list(range(place)) == [each.index for each in read.batches]
            assert -signal.SIGKILL == read.exit_codes[worker]
            (firing,) = facts[cell].firings
            assert ("signal 9", paths[place]) == (firing.call, firing.path)
            assert facts[cell].mentioned == 1
            assert Path(paths[place]).read_bytes() == CONTENT[: len(CONTENT) // 2]


def test_a_torn_file_of_torch_cannot_be_loaded(path):
    """Its directory is at its end, which was never written."""
    with inject(WorkerKilled(writing="*.bin")):
        epoch(alone(Tries([path], WAYS["torch.save"])))

    complete_file = io.BytesIO()
    torch.save(torch.zeros(9999), complete_file)
    assert 0 < os.path.getsize(path) < len(complete_file.getvalue()) * 0.6
    with pytest.raises((OSError, RuntimeError)):
        torch.load(path)


def test_writes_go_on_after_the_scope(path):
    loader = alone(Tries([path], WAYS["write"]), persistent_workers=True)
    with inject(WriteError("*")) as injection:
        (failed,) = epoch(loader).batches
        assert injection.fired == 1
    (fine,) = epoch(loader).batches

    assert ("No space left" in failed.gave, fine.gave) == (True, len(CONTENT))


@pytest.mark.parametrize(
    "fault", [WriteError("*.copy"), slow(WorkerKilled(writing="*.copy"))], ids=str
)
def test_a_trial_harms_no_other_folder(records, tmp_path, fault):
    copies = tmp_path / "copies"
    copies.mkdir()

    with pytest.raises(InvalidArgumentError, match=r"0[04]\.copy.*let make_dataset take a folder"):
        run_trial(lambda: CopiedRecords(records, copies), fault)

    written = {each.name: each.read_bytes() for each in copies.iterdir()}
    assert written == {f"{each.stem}.copy": each.read_bytes() for each in records.iterdir()}


def test_a_fault_free_run_counts_writes(records):
    job = TrialJob(
        make_dataset=lambda folder: CopiedRecords(records, folder),
        settings=Settings(loader={"num_workers": 1}),
        options=TrialOptions(watch_files=True),
    )

    (worker,) = run_trial_job(job).workers
    written = {os.path.basename(path): each.writes for path, each in worker.files.items()}
    assert written == {f"{n:02}.copy": 1 for n in range(16)} | {f"{n:02}.rec": 0 for n in range(16)}


class Looping(Records):
    """Copies each record in as many writes as it takes, and gives what is in the copy then."""

    def __init__(self, folder, copies):
        super().__init__(folder)
        self.copies = copies

    def __getitem__(self, index):
        way = ("writev", "pwrite", "append")[index % 3]
        data = self.paths[index].read_bytes()
        path = self.copies / f"{index}.copy"
        flags = os.O_APPEND if way == "append" else 0
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o600)
        offset = 0
        while offset < len(data):
            remaining = data[offset:]
            is_pwrite = way == "pwrite"
            offset += (
                os.pwrite(fd, remaining, offset)
                if is_pwrite
                else os.writev(fd, [remaining[:5], remaining[5:]])
            )
        os.close(fd)
        return list(path.read_bytes()), index


def test_parts_are_right_where_a_container_forbids_duplicates(records, monkeypatch):
    """Docker's profile refuses pidfd_getfd(2); the supervisor of a trial is forked from here."""
    monkeypatch.setattr(writes, "duplicate", refuse_duplicate)
    outcome = run_trial(lambda folder: Looping(records, folder), ShortWrite("*.copy", max_bytes=9))

    assert outcome.fired == 16 * 7
    reference = take_reference(lambda folder: Looping(records, folder))
    assert judge_trial(outcome, reference).verdict is Verdict.SURVIVED


def test_a_death_in_a_write_where_a_container_forbids_duplicates(records, monkeypatch):
    monkeypatch.setattr(writes, "duplicate", refuse_duplicate)
    outcome = run_trial(
        lambda folder: Looping(records, folder),
        WorkerKilled(writing="*/0.copy"),
        loader={"num_workers": 1},
    )

    assert (outcome.fired, outcome.recovery.complete) == (1, True)
