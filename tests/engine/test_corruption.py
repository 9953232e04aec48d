"""Damaged copies of files."""

import errno
import itertools
import mmap
import os
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine import file_copies
from pytest_dataloader_faults._engine.file_copies import FileEdit, altered_copy
from pytest_dataloader_faults.faults import CorruptedFile, TruncatedFile
from support.epochs import alone, epoch
from support.rows import rows
from support.tries import ENOUGH, WAYS, Tries

CONTENT = bytes(itertools.islice(itertools.cycle(range(251)), 20_000))


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(CONTENT)
    return str(path)


def _differences(data, content=CONTENT):
    """Where *data* is not *content*."""
    return [place for place, (a, b) in enumerate(zip(data, content, strict=True)) if a != b]


def _mapped(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        return mapping[:]


def _by_pieces(path):
    with open(path, "rb", buffering=0) as file:
        return b"".join(iter(lambda: file.read(999), b""))


def _sizes(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.stat(path).st_size, os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_END)
    finally:
        os.close(fd)


def _corrupt(flips, seed=0):
    return lambda glob: [CorruptedFile(glob, flips, seed=seed)]


FAULTS = {
    **{f"{flips} flips": _corrupt(flips) for flips in (1, 2, 9, 17, 50, 500, 1000)},
    **{name: _corrupt(50) for name in ("inherited descriptor", "inherited mapping")},
    **{name: _corrupt(5, seed=1) for name in ("seed 1", "the same seed", "another name")},
    "seed 2": _corrupt(5, seed=2),
    "both seeds": lambda glob: [CorruptedFile(glob, 5, seed=seed) for seed in (1, 2)],
    "short": lambda glob: [CorruptedFile(glob, 500), TruncatedFile(glob, keep=1000)],
    "few bytes": _corrupt(10),
    "empty": _corrupt(1),
}
"""Each for a file of its own, in a folder of its own: all of them are read by one worker."""
NAMES = {"another name": "other.bin"}
CONTENTS = {"few bytes": b"abc", "empty": b""}
EVERY_WAY = {**WAYS, "mmap": _mapped, "pieces": _by_pieces}


@pytest.fixture(name="reads", scope="module")
def _reads(tmp_path_factory):
    """What a worker reads of each file, and by each way of one of them."""
    root = tmp_path_factory.mktemp("corruption")
    paths = {}
    for place, name in enumerate(FAULTS):
        (root / str(place)).mkdir()
        path = root / str(place) / NAMES.get(name, "data.bin")
        path.write_bytes(CONTENTS.get(name, CONTENT))
        paths[name] = str(path)
    with (
        open(paths["inherited descriptor"], "rb", buffering=0) as file,
        open(paths["inherited mapping"], "rb") as mapped_file,
        mmap.mmap(mapped_file.fileno(), 0, prot=mmap.PROT_READ) as mapping,
    ):
        file.seek(100)
        sources = {
            **{name: (WAYS["read"], path) for name, path in paths.items()},
            "inherited descriptor": (lambda fd: os.read(fd, ENOUGH), file.fileno()),
            "inherited mapping": (lambda mapped: mapped[:], mapping),
            "sizes": (_sizes, paths["9 flips"]),
            **{way: (EVERY_WAY[way], paths["9 flips"]) for way in EVERY_WAY},
        }
        reads = _read_under_faults(paths, sources)
        assert CONTENT[100:] == file.read()  # This process goes on seeing the file.
        assert CONTENT == mapping[:]
    return reads


def _read_under_faults(paths, sources):
    faults = [fault for name, make in FAULTS.items() for fault in make(paths[name])]
    with inject(*faults, require_fired=False) as injection:
        loader = alone(Tries(list(sources.values()), lambda source: source[0](source[1])))
        gave = [each.gave for each in epoch(loader).batches]
    unfired = [facts.fault for facts in injection.faults if not facts.fired]
    assert [CorruptedFile(paths["empty"], 1)] == unfired
    return dict(zip(sources, gave, strict=True))


@rows("flips", [1, 2, 17, 1000])
def test_so_many_bytes_differ(reads, flips):
    assert flips == len(_differences(reads[f"{flips} flips"]))


def test_no_more_than_there_are(reads):
    assert [0, 1, 2] == _differences(reads["few bytes"], b"abc")


def test_an_empty_file_stays_as_it_is(reads):
    assert reads["empty"] == b""


def test_every_way_to_read_sees_the_same(reads):
    assert 9 == len(_differences(reads["9 flips"]))
    assert dict.fromkeys(EVERY_WAY, reads["9 flips"]) == {way: reads[way] for way in EVERY_WAY}


def test_sizes_are_true(reads):
    assert (len(CONTENT),) * 3 == reads["sizes"]


def test_what_is_inherited_is_corrupted(reads):
    assert 50 == len(_differences(reads["50 flips"]))
    assert reads["50 flips"][100:] == reads["inherited descriptor"]
    assert reads["50 flips"] == reads["inherited mapping"]


def test_the_seed_and_the_name_decide(reads):
    assert reads["seed 1"] == reads["the same seed"]
    for name in ("seed 2", "another name"):
        assert _differences(reads["seed 1"]) != _differences(reads[name])


def test_two_corruptions_of_one_file_add_up(reads):
    places = [set(_differences(reads[name])) for name in ("seed 1", "seed 2", "both seeds")]
    assert places[0] | places[1] == places[2]


def test_a_file_may_be_short_and_corrupted(reads):
    assert reads["500 flips"][:1000] == reads["short"]


def test_each_worker_that_is_meant_reads_the_same(tmp_path):
    paths = [str(tmp_path / f"{name}.bin") for name in ("both", "second")]
    for path in paths:
        Path(path).write_bytes(CONTENT)
    faults = CorruptedFile("*/both.bin", 5), CorruptedFile("*/second.bin", workers=(1,))
    sources = [paths[0]] * 6 + [paths[1]] * 4
    with inject(*faults) as injection:
        read = epoch(alone(Tries(sources, WAYS["read"]), num_workers=2))
    gave = [each.gave for each in read.batches]
    assert 1 == len(set(gave[:6]))
    assert {0, 1} == {each.worker for each in injection.faults[0].firings}
    assert [0, 1, 0, 1] == [len(_differences(each)) for each in gave[6:]]


class OldFileSystem:
    """The functions of ``os`` where a file cannot be made without a name."""

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, flags, mode=0o777):
        """Refuse a file without a name."""
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return os.open(path, flags, mode)


@pytest.mark.parametrize("system", [os, OldFileSystem()], ids=["new", "old"])
def test_a_large_copy_has_no_name(tmp_path, monkeypatch, system):
    folder = tmp_path / "temporary"
    folder.mkdir()
    original = tmp_path / "original"
    original.write_bytes(bytes(range(200)))
    monkeypatch.setattr(file_copies, "_IN_MEMORY", 0)
    monkeypatch.setattr(file_copies, "gettempdir", lambda: str(folder))
    copy = altered_copy(system, str(original), FileEdit(length=100), os.O_RDONLY)
    assert os.listdir(folder) == []
    assert os.pread(copy, 300, 0) == bytes(range(100))
    assert os.fstat(copy).st_dev == folder.stat().st_dev
    os.close(copy)
