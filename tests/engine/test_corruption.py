"""Damaged copies of files."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import shutil

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine import file_copies
from pytest_dataloader_faults._engine.file_copies import FileEdit, altered_copy
from pytest_dataloader_faults.faults import CorruptedFile, TruncatedFile
from support.epochs import alone, epoch
from support.tries import ENOUGH, WAYS, Tries

CONTENT = bytes(itertools.islice(itertools.cycle(range(251)), 20_000))


@pytest.fixture(name="path")
def _path(tmp_path):
    """A file of 20 000 bytes."""
    path = tmp_path / "data.bin"
    path.write_bytes(CONTENT)
    return str(path)


def _gave(source, way, *faults):
    """What that way gives in a worker under these faults, every one of which happens."""
    with inject(*faults):
        (read,) = epoch(alone(Tries([source], way))).batches
    return read.gave


def _differing(data, content=CONTENT):
    """Where *data* is not *content*."""
    return [place for place, (a, b) in enumerate(zip(data, content, strict=True)) if a != b]


def _mapped(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        return mapping[:]


def _by_pieces(path):
    with open(path, "rb", buffering=0) as file:
        return b"".join(iter(lambda: file.read(999), b""))


def _size(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.stat(path).st_size, os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_END)
    finally:
        os.close(fd)


@pytest.mark.parametrize("flips", [1, 2, 17, 1000])
def test_so_many_bytes_differ(path, flips):
    """And the size does not."""
    assert flips == len(_differing(_gave(path, WAYS["read"], CorruptedFile("*.bin", flips))))


def test_no_more_than_there_are(tmp_path):
    """Every byte of a file that has fewer."""
    (tmp_path / "few.bin").write_bytes(b"abc")
    data = _gave(str(tmp_path / "few.bin"), WAYS["read"], CorruptedFile("*.bin", 10))
    assert [0, 1, 2] == _differing(data, b"abc")


def test_an_empty_file_stays_as_it_is(tmp_path):
    """And is no occurrence of the fault."""
    (tmp_path / "empty.bin").write_bytes(b"")
    with inject(CorruptedFile("*.bin"), require_fired=False) as injection:
        (read,) = epoch(alone(Tries([str(tmp_path / "empty.bin")], WAYS["read"]))).batches
    assert (b"", 0) == (read.gave, injection.fired)


def test_every_way_to_read_sees_the_same(path):
    """Call by call, by pieces, mapped, in a thread, in another program."""
    ways = {**WAYS, "mmap": _mapped, "pieces": _by_pieces}
    with inject(CorruptedFile("*.bin", 9, seed=4)):
        read = epoch(alone(Tries(list(ways), lambda name: ways[name](path)))).batches
    seen = dict(zip(ways, (each.gave for each in read), strict=True))
    assert 9 == len(_differing(seen["read"]))
    assert dict.fromkeys(ways, seen["read"]) == seen


def test_sizes_are_true(path):
    """By path, by descriptor and by the end that lseek(2) finds."""
    assert (len(CONTENT),) * 3 == _gave(path, _size, CorruptedFile("*.bin", 5))


def test_an_inherited_descriptor_sees_it(path):
    """From where its offset stood; this process goes on seeing the file."""
    fresh = _gave(path, WAYS["read"], CorruptedFile("*.bin", 50))
    with open(path, "rb", buffering=0) as file:
        file.seek(100)
        held = _gave(file.fileno(), lambda fd: os.read(fd, ENOUGH), CorruptedFile("*.bin", 50))
        assert CONTENT[100:] == file.read()
    assert fresh[100:] == held


def test_an_inherited_mapping_sees_it(path):
    """Its pages are exchanged in the worker."""
    fresh = _gave(path, WAYS["read"], CorruptedFile("*.bin", 50))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        assert fresh == _gave(mapping, lambda held: held[:], CorruptedFile("*.bin", 50))
        assert mapping[:] == CONTENT


def test_a_seed_decides(path):
    """The same one twice gives the same bytes, another one others."""
    once, again, other = (
        _gave(path, WAYS["read"], CorruptedFile("*.bin", 5, seed=seed)) for seed in (1, 1, 2)
    )
    assert once == again
    assert _differing(once) != _differing(other)


def test_the_folder_does_not_matter(path, tmp_path_factory):
    """A copy of the dataset elsewhere, as on another machine, is corrupted alike."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "data.bin"
    shutil.copy(path, elsewhere)
    here, there = (_gave(str(each), WAYS["read"], CorruptedFile()) for each in (path, elsewhere))
    assert here == there


def test_each_file_is_corrupted_in_a_way_of_its_own(tmp_path):
    """Files of one size and content, told apart by their names."""
    for name in "ab":
        (tmp_path / f"{name}.bin").write_bytes(CONTENT)
    first, second = (
        _gave(str(tmp_path / f"{name}.bin"), WAYS["read"], CorruptedFile("*.bin", 5))
        for name in "ab"
    )
    assert _differing(first) != _differing(second)


def test_all_workers_and_all_reads_agree(path):
    """However often, and by whom it is opened."""
    with inject(CorruptedFile("*.bin", 5)) as injection:
        read = epoch(alone(Tries([path] * 6, WAYS["read"]), num_workers=2))
    assert 1 == len({each.gave for each in read.batches})
    assert {0, 1} == {each.worker for each in injection.faults[0].firings}


def test_only_the_workers_that_are_meant(path):
    """The other sees the file as it is."""
    with inject(CorruptedFile("*.bin", workers=(1,))):
        read = epoch(alone(Tries([path] * 4, WAYS["read"]), num_workers=2))
    assert [0, 1, 0, 1] == [len(_differing(each.gave)) for each in read.batches]


def test_the_file_itself_is_never_touched(path):
    """Others see it whole while the fault is armed, and it is the same file afterwards."""
    before = os.stat(path)
    with inject(CorruptedFile("*.bin", 100)):
        for each in alone(Tries([path] * 3, WAYS["read"])):
            assert CONTENT == WAYS["read"](path) != each.gave
    after = os.stat(path)
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_two_corruptions_of_one_file_add_up(path):
    """Each has bytes of its own, unless they fall together."""
    faults = [CorruptedFile("*.bin", 5, seed=seed) for seed in (1, 2)]
    places = [set(_differing(_gave(path, WAYS["read"], each))) for each in faults]
    assert places[0] | places[1] == set(_differing(_gave(path, WAYS["read"], *faults)))


def test_a_file_may_be_short_and_corrupted(path):
    """Its head is that of the corrupted file."""
    corrupted = CorruptedFile("*.bin", 500)
    whole = _gave(path, WAYS["read"], corrupted)
    assert whole[:1000] == _gave(path, WAYS["read"], corrupted, TruncatedFile("*.bin", keep=1000))


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
    """On file systems that have such files, and on others."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    original = tmp_path / "original"
    original.write_bytes(bytes(range(200)))
    monkeypatch.setattr(file_copies, "_IN_MEMORY", 0)
    monkeypatch.setattr(file_copies, "gettempdir", lambda: str(folder))
    copy = altered_copy(system, str(original), FileEdit(kept=100), os.O_RDONLY)
    assert os.listdir(folder) == []
    assert os.pread(copy, 300, 0) == bytes(range(100))
    assert os.fstat(copy).st_dev == folder.stat().st_dev
    os.close(copy)
