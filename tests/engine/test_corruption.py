"""Damaged copies of files."""

import errno
import functools
import itertools
import mmap
import os
import tempfile

import pytest

from pytest_dataloader_faults._engine.file_copies import FileEdit, altered_copy
from pytest_dataloader_faults.faults import CorruptedFile, TruncatedFile
from support.attempts import attempt
from support.contracts.reads import differing
from support.rows import rows
from support.tries import ENOUGH, WAYS

CONTENT = bytes(itertools.islice(itertools.cycle(range(251)), 20_000))


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
    path.write_bytes(CONTENTS.get(name, CONTENT))
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
        assert CONTENT[100:] == file.read()
        assert CONTENT == mapping[:]
    unfired = [facts.fault for facts in injection.faults if not facts.fired]
    assert [CorruptedFile(paths["empty"], 1)] == unfired
    return dict(zip(calls, gave, strict=True))


@rows("flips", [1, 2, 17, 500, 1000])
def test_so_many_bytes_differ(reads, flips):
    assert flips == len(differing(reads[f"{flips} flips"], CONTENT))


def test_no_more_than_there_are(reads):
    assert [0, 1, 2] == differing(reads["few bytes"], b"abc")
    assert reads["empty"] == b""


def test_sizes_are_true(reads):
    assert (len(CONTENT),) * 3 == reads["sizes"]


def test_what_is_inherited_is_corrupted(reads):
    assert reads["500 flips"][100:] == reads["inherited descriptor"]
    assert reads["500 flips"] == reads["inherited mapping"]


def test_the_seed_and_the_name_decide(reads):
    assert reads["seed 1"] == reads["the same seed"]
    assert len({reads[name] for name in ("seed 1", "seed 2", "another name")}) == 3


def test_damages_of_one_file_add_up(reads):
    places = [{*differing(reads[name], CONTENT)} for name in ("seed 1", "seed 2", "both seeds")]
    assert places[0] | places[1] == places[2]
    assert reads["500 flips"][:1000] == reads["short"]


def test_each_worker_that_is_meant_reads_the_same(tmp_path):
    paths = [_write(tmp_path, name) for name in ("both", "second")]
    faults = CorruptedFile("*/both/*", 5), CorruptedFile("*/second/*", workers=(1,))
    sources = [paths[0]] * 6 + [paths[1]] * 4
    gave, injection = attempt(sources, WAYS["read"], *faults, loader={"num_workers": 2})
    assert 1 == len(set(gave[:6]))
    assert {0, 1} == {each.worker for each in injection.faults[0].firings}
    assert [0, 1, 0, 1] == [len(differing(each, CONTENT)) for each in gave[6:]]


def _open_in_old_file_system(path, flags, mode=0o777, make=os.open):
    """Refuse a file without a name."""
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
