"""Damaged copies of files, writes that no fault is about, and deaths within a write."""

import errno
import functools
import itertools
import logging
import mmap
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from pytest_dataloader_faults import Verdict, inject, run_trial
from pytest_dataloader_faults._engine.file_copies import FileEdit, altered_copy
from pytest_dataloader_faults._engine.kernel import caller
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.faults import (
    CorruptedFile,
    ShortRead,
    ShortWrite,
    TruncatedFile,
    WorkerKilled,
    WriteError,
)
from support.attempts import attempt, epoch_of
from support.contracts.reads import differing
from support.contracts.writes import CONTENT, WRITING
from support.datasets import Records
from support.epochs import alone
from support.judging import judge_trial
from support.rows import rows
from support.surroundings import refuse_duplicate
from support.tries import ENOUGH, WAYS, Tries

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture(name="path")
def _path(tmp_path):
    return str(tmp_path / "written.bin")


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


def test_a_mapping_is_reported(path):
    """The kernel writes it back later, without a call."""

    def write(path):
        mapped = np.memmap(path, np.uint8, "w+", shape=99)
        mapped[:] = 7

    _, injection = attempt([path], write, WriteError("*", nth=99), require_fired=False)

    assert injection.workers[0].unobserved == {"write through a mapping": 1}
    assert Path(path).read_bytes() == b"\7" * 99


def test_a_death_leaves_half_of_a_write(tmp_path):
    cells = [(worker, at) for worker in range(2) for at in (1, 3)]
    faults = [
        WorkerKilled(writing=f"*/{worker}-{at}/*", worker=worker, at=at) for worker, at in cells
    ]
    with inject(*faults) as injection:
        for cell, (worker, at) in enumerate(cells):
            folder = tmp_path / f"{worker}-{at}"
            folder.mkdir()
            paths = [str(folder / f"{number}.bin") for number in range(8)]
            loader = alone(Tries(paths, WRITING["write"]), num_workers=2)
            read, facts = epoch_of(injection, loader)

            place = 2 * (at - 1) + worker
            assert list(range(place)) == [each.index for each in read.batches]
            assert -signal.SIGKILL == read.exit_codes[worker]
            (firing,) = facts[cell].firings
            assert ("signal 9", paths[place]) == (firing.call, firing.path)
            assert facts[cell].mentioned == 1
            assert Path(paths[place]).read_bytes() == CONTENT[: len(CONTENT) // 2]


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


@pytest.mark.parametrize(
    ("fault", "fired"),
    [
        (ShortWrite("*.copy", max_bytes=9), 16 * 7),
        (ShortRead("*.rec", max_bytes=9), 16 * 7),
        (WorkerKilled(writing="*/0.copy"), 1),
    ],
    ids=["short write", "short read", "death"],
)
def test_a_container_may_forbid_duplicates(records, monkeypatch, fault, fired):
    """Docker's profile refuses pidfd_getfd(2); the supervisor of a trial is forked from here."""
    monkeypatch.setattr(caller, "duplicate", refuse_duplicate)

    def make(folder):
        return Looping(records, folder)

    outcome = run_trial(make, fault, loader={"num_workers": 1})
    assert (outcome.fired, outcome.recovery.complete) == (fired, True)
    if fired > 1:
        assert judge_trial(outcome, take_reference(make)).verdict is Verdict.SURVIVED


CYCLED = bytes(itertools.islice(itertools.cycle(range(251)), 20_000))


def _corrupt(flips, seed=0):
    return lambda glob: [CorruptedFile(glob, flips, seed=seed)]


FAULTS = {
    **{f"{flips} flips": _corrupt(flips) for flips in (1, 2, 17, 500, 1000)},
    **{name: _corrupt(500) for name in ("inherited descriptor", "inherited mapping", "sizes")},
    **{name: _corrupt(5, seed=1) for name in ("seed 1", "the same seed", "another name")},
    "seed 2": _corrupt(5, seed=2),
    "both seeds": lambda glob: [CorruptedFile(glob, 5, seed=seed) for seed in (1, 2)],
    "short": lambda glob: [CorruptedFile(glob, 500), TruncatedFile(glob, keep=1000)],
    "few bytes": _corrupt(10),
    "empty": _corrupt(1),
}
"""Each for a file of its own, in a folder of its own: all of them are read by one worker."""
CONTENTS = {"few bytes": b"abc", "empty": b""}


def _sizes(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.stat(path).st_size, os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_END)
    finally:
        os.close(fd)


def _write(root, name):
    path = root / name / ("other.bin" if name == "another name" else "data.bin")
    path.parent.mkdir()
    path.write_bytes(CONTENTS.get(name, CYCLED))
    return str(path)


@pytest.fixture(name="reads", scope="module")
def _reads(tmp_path_factory):
    """What a worker reads of each file; this process goes on seeing the file."""
    root = tmp_path_factory.mktemp("corruption")
    paths = {name: _write(root, name) for name in FAULTS}
    faults = [fault for name, make in FAULTS.items() for fault in make(paths[name])]
    with (
        open(paths["inherited descriptor"], "rb", buffering=0) as file,
        open(paths["inherited mapping"], "rb") as mapped_file,
        mmap.mmap(mapped_file.fileno(), 0, prot=mmap.PROT_READ) as mapping,
    ):
        file.seek(100)
        calls = {name: functools.partial(WAYS["read"], path) for name, path in paths.items()}
        calls["inherited descriptor"] = functools.partial(os.read, file.fileno(), ENOUGH)
        calls["inherited mapping"] = functools.partial(mapping.__getitem__, slice(None))
        calls["sizes"] = functools.partial(_sizes, paths["sizes"])
        gave, injection = attempt(
            [*calls.values()], lambda call: call(), *faults, require_fired=False
        )
        assert CYCLED[100:] == file.read()
        assert CYCLED == mapping[:]
    unfired = [facts.fault for facts in injection.faults if not facts.fired]
    assert [CorruptedFile(paths["empty"], 1)] == unfired
    return dict(zip(calls, gave, strict=True))


@rows("flips", [1, 2, 17, 500, 1000])
def test_so_many_bytes_differ(reads, flips):
    assert flips == len(differing(reads[f"{flips} flips"], CYCLED))


def test_no_more_than_there_are(reads):
    assert [0, 1, 2] == differing(reads["few bytes"], b"abc")
    assert reads["empty"] == b""


def test_sizes_are_true(reads):
    assert (len(CYCLED),) * 3 == reads["sizes"]


def test_what_is_inherited_is_corrupted(reads):
    assert reads["500 flips"][100:] == reads["inherited descriptor"]
    assert reads["500 flips"] == reads["inherited mapping"]


def test_the_seed_and_the_name_decide(reads):
    assert reads["seed 1"] == reads["the same seed"]
    assert len({reads[name] for name in ("seed 1", "seed 2", "another name")}) == 3


def test_damages_of_one_file_add_up(reads):
    places = [{*differing(reads[name], CYCLED)} for name in ("seed 1", "seed 2", "both seeds")]
    assert places[0] | places[1] == places[2]
    assert reads["500 flips"][:1000] == reads["short"]


def test_each_worker_that_is_meant_reads_the_same(tmp_path):
    paths = [_write(tmp_path, name) for name in ("both", "second")]
    faults = CorruptedFile("*/both/*", 5), CorruptedFile("*/second/*", workers=(1,))
    sources = [paths[0]] * 6 + [paths[1]] * 4
    gave, injection = attempt(sources, WAYS["read"], *faults, loader={"num_workers": 2})
    assert 1 == len(set(gave[:6]))
    assert {0, 1} == {each.worker for each in injection.faults[0].firings}
    assert [0, 1, 0, 1] == [len(differing(each, CYCLED)) for each in gave[6:]]


def _open_in_old_file_system(path, flags, mode=0o777, make=os.open):
    if flags & os.O_TMPFILE == os.O_TMPFILE:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    return make(path, flags, mode)


@pytest.mark.parametrize("make", [os.open, _open_in_old_file_system], ids=["new", "old"])
def test_a_large_copy_has_no_name(tmp_path, monkeypatch, make):
    folder = tmp_path / "temporary"
    folder.mkdir()
    original = tmp_path / "original"
    original.write_bytes(bytes(range(200)))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(os, "open", make)
    copy = altered_copy(str(original), FileEdit(length=100), str(original), in_memory=False)
    monkeypatch.undo()
    assert os.listdir(folder) == []
    assert os.pread(copy, 300, 0) == bytes(range(100))
    assert os.fstat(copy).st_dev == folder.stat().st_dev
    os.close(copy)
