"""Files under faults: of ordinary size, of which kinds, which of them, and cut at which place."""

import gzip
import mmap
import os
import pickle
import random
import struct
import tarfile

import numpy as np
import pyarrow as pa
import pytest
import torch

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults._engine import file_copies
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS as ALL_CHECKS
from pytest_dataloader_faults.battery.targets import kinds_of, shortest_globs, truncation_points
from pytest_dataloader_faults.faults import CorruptedFile, ShortRead
from pytest_dataloader_faults.faults.globs import GlobMatcher
from pytest_dataloader_faults.outcomes import FileCounts
from support.corpus.streams import Shards
from support.datasets import SIZE, Records, write_records
from support.results import failure_of
from support.rows import rows
from support.specimens import Packed, SharedHandle

HALVES = ShortRead("*.bin", max_bytes=0.5)
KB, MB = 1000, 1000_000


class Whole(Records):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.bin"))
        self.sizes = [path.stat().st_size for path in self.paths]

    def __getitem__(self, index):
        data = self.paths[index].read_bytes()
        if len(data) != self.sizes[index]:
            message = f"{self.paths[index]} has {len(data)} bytes, and not {self.sizes[index]}"
            raise EOFError(message)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _noise(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def _files(folder, count, size):
    for number in range(count):
        (folder / f"{number:02}.bin").write_bytes(_noise(size, number).tobytes())
    return Whole(folder)


@pytest.mark.parametrize("size", [100, 2 * MB])
def test_few_reads_are_cut_whatever_the_size(tmp_path, size):
    paths = _files(tmp_path, 2, size)
    outcome = run_trial(lambda: paths, HALVES)
    (fault,) = outcome.faults
    assert outcome.exception is None
    assert 2 * (size.bit_length() - 1) <= fault.fired <= 2 * size.bit_length()


class KeepsOpen(Records):
    """Says of each file whether its descriptor is of memory; *keeps*: closes none of them."""

    def __init__(self, folder, *, keeps):
        self.paths = sorted(folder.glob("*.bin"))
        self.open = [] if keeps else None

    def __getitem__(self, index):
        fd = os.open(self.paths[index], os.O_RDONLY)
        is_in_memory = os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:")
        if self.open is None:
            os.close(fd)
        else:
            self.open.append(fd)
        return is_in_memory


@pytest.mark.parametrize("keeps", [False, True])
def test_copies_take_only_so_much_memory(tmp_path, monkeypatch, keeps):
    _files(tmp_path, 8, 300 * KB)
    monkeypatch.setattr(file_copies, "_ALL_IN_MEMORY", MB)
    loader = {"num_workers": 1, "batch_size": None}
    dataset = KeepsOpen(tmp_path, keeps=keeps)
    outcome = run_trial(lambda: dataset, CorruptedFile("*.bin"), loader=loader)
    assert str([each.samples for each in outcome.delivered]).count("True") == 3
    assert outcome.fired == len(dataset)


def _end(path):
    return dict(truncation_points([str(path)])).get(str(path))


@pytest.mark.parametrize("count", [2, 10])
def test_tar_ends_where_a_member_ends(tmp_path, count):
    (tmp_path / "member").write_bytes(bytes(700))
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(count):
            archive.add(tmp_path / "member", f"{number}")

    os.truncate(path, _end(path))

    with tarfile.open(path) as archive:
        assert [member.name for member in archive] == [str(number) for number in range(count - 1)]


@pytest.mark.parametrize(
    ("newline", "letter", "count"), [("\n", "a", 10), ("\r\n", "é", 10), ("\n", "語", 100_000)]
)
def test_text_ends_where_a_line_ends(newline, letter, count, tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(f"{letter * 3},1{newline}".encode() * count)

    end = _end(path)

    assert 0.8 * path.stat().st_size <= end <= 0.9 * path.stat().st_size
    line = path.read_bytes()[:end].decode()
    assert line.endswith(newline)
    assert set(line.split(newline)) == {f"{letter * 3},1", ""}


def _batches():
    stream = pa.BufferOutputStream()
    batch = pa.record_batch({"x": [0.5] * 50})
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        starts = [writer.write(batch) or stream.tell() for _ in range(10)]
    return stream.getvalue().to_pybytes(), starts


RECORD = random.Random(0).randbytes(100)
RECORDS = {
    "gzip": gzip.compress(RECORD),
    "pickle": pickle.dumps({"x": RECORD}),
    "TFRecord": struct.pack("<QI", 100, 7) + RECORD + bytes(4),
    "length": struct.pack(">I", 100) + RECORD,
}


@pytest.mark.parametrize("name", [*RECORDS, "arrow"])
def test_stream_ends_where_a_record_ends(name, tmp_path):
    content, starts = RECORDS.get(name, b"") * 11, [len(RECORDS.get(name, b"")) * 9]
    if name == "arrow":
        content, starts = _batches()
    path = tmp_path / "x"
    path.write_bytes(content)

    assert _end(path) in starts
    assert _end(path) > 0.8 * len(content) - 100


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no line",
        bytes(range(256)) * 10,
        b"\x00\n" * 10,
        bytes(64),
        RECORDS["gzip"],
        b"\xff\xfe\n" * 50,
    ],
)
def test_file_that_is_neither_has_no_such_place(content, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(content)

    assert _end(path) is None
    assert truncation_points([str(tmp_path / "gone")]) == ()


def test_check_cuts_archives_there_as_well(records):
    plan = ALL_CHECKS["truncated-file"].plan_scenarios
    shards, other_paths = (
        [each.faults for each in plan(Battery(make(records)).workload) if each.unless_met is None]
        for make in (Shards, Records)
    )

    assert [fault.keep % 1024 for fault in shards[-1]] == [0, 0]
    assert [fault.keep for faults in other_paths for fault in faults] == [0.5]


@pytest.fixture(name="files")
def _targets(records):
    return tuple(sorted(map(str, records.iterdir())))


def _meant(globs, files):
    return tuple(filter(GlobMatcher(globs), files))


@rows(
    ("count", "glob", "is_kept"),
    [(2, "*", False), (10, "*", False), (9, "*/0?.rec", False), (10, "*/0?.rec", True)],
    ids=["few", "a part of a folder", "a glob that means more", "a glob of the user"],
)
def test_files_are_listed_unless_a_glob_means_just_these(files, count, glob, is_kept):
    expected = (glob,) if is_kept else files[:count]
    assert shortest_globs(files[:count], set(files), (glob,)) == expected


def test_each_of_several_folders_is_one_glob(tmp_path):
    """Files of other folders lie beside them, so that one glob for all would mean too much."""
    for folder in ("left", "right", "unread"):
        write_records(tmp_path / folder)
    files = [str(each) for name in ("left", "right") for each in (tmp_path / name).iterdir()]

    globs = shortest_globs(tuple(sorted(files)), set(files), ("*",))

    assert globs == (f"{tmp_path}/left/*.rec", f"{tmp_path}/right/*.rec")


@pytest.mark.parametrize("more", [0, 1100])
def test_a_whole_folder_is_one_glob(files, records, more):
    added = [records / f"more{number}.rec" for number in range(more)]
    for path in added:
        path.touch()
    files = (*files, *map(str, added))
    seen_and_gone = {f"{records}/tmp.rec"}
    for seen, expected in ((set(), (f"{records}/*.rec",)), (seen_and_gone, files)):
        assert shortest_globs(files, {*files, *seen}, ("*",)) == expected


@pytest.mark.parametrize("name", ["deeper/90.rec", "other.rec"])
def test_unread_files_are_not_targets(files, records, name):
    (records / "deeper").mkdir()
    (records / name).write_bytes(b"")
    assert shortest_globs(files, set(files), ("*",)) == files


def test_names_are_escaped(tmp_path):
    files = tuple(str(tmp_path / f"[{number}]*.bin") for number in range(6))
    globs = shortest_globs(files, {*files, str(tmp_path / "other.bin")}, ("*",))
    assert _meant(globs, (*files, str(tmp_path / "other.bin"), str(tmp_path / "0.bin"))) == files


def test_many_requested_files_are_the_only_targets(records):
    globs = [f"*/{number:02}.rec" for number in range(8)]
    (result,) = check_dataset(
        lambda: Records(records), files=globs, only="open-error", loader={"batch_size": 1}
    )
    hit = {each.path for facts in result.outcome.faults for each in facts.firings}
    assert hit <= {str(records / f"{number:02}.rec") for number in range(8)}
    assert result.outcome.fired
    assert len(result.trials) == 1, "files of one kind are one trial"
    assert "tried:" not in result.explanation


def _kinds(*workers):
    """The kinds of the files of *workers*: each a text of names with the bytes that were read.

    Behind these, each may have how often it was opened.
    """
    uses = {
        number: {
            f"/data/{path}": FileCounts(int(opens[0]) if opens else 1, 1, int(count))
            for path, count, *opens in (each.split(":") for each in worker.split())
        }
        for number, worker in enumerate(workers)
    }
    return [sorted(path.removeprefix("/data/") for path in kind) for kind in kinds_of(uses)]


@pytest.mark.parametrize(
    ("workers", "kinds"),
    [
        ([], []),
        (["a.bin:9", "b.bin:9"], [["a.bin", "b.bin"]]),
        (["x.json:9 a.bin:99", "x.json:9 b.bin:99"], [["a.bin", "b.bin"], ["x.json"]]),
        (["part.0:9", "part.1:9"], [["part.0", "part.1"]]),
        (["cat/1.png:9", "dog/2.png:9"], [["cat/1.png", "dog/2.png"]]),
        (["x/1.png:9 y/1.png:8", ""], [["x/1.png"], ["y/1.png"]]),
        (["x/1.a:9 y/1.a:8 z/1.a:7", ""], [["x/1.a"], ["y/1.a"], ["z/1.a"]]),
        (
            ["x/1.a:9 y/1.a:8 z/1.a:7 w/1.a:6 v/1.a:5", ""],
            [["v/1.a", "w/1.a", "x/1.a", "y/1.a", "z/1.a"]],
        ),
        (["i.bin:5 a.bin:9", "i.bin:5 b.bin:9"], [["a.bin", "b.bin"], ["i.bin"]]),
        (["a.bin:9 b.bin:9", "a.bin:9 b.bin:9"], [["a.bin", "b.bin"]]),
        (["a.v:9 a.w:8 a.x:7 a.y:6 a.z:5"], [["a.v"], ["a.w"], ["a.x"], ["a.y", "a.z"]]),
        (["s-1-X.npy:9 s-1-w.npy:8", ""], [["s-1-X.npy"], ["s-1-w.npy"]]),
        (
            ["s-1-X.npy:9 s-1-w.npy:5", "s-2-X.npy:9 s-3-X.npy:9 s-3-w.npy:5"],
            [["s-1-X.npy", "s-2-X.npy", "s-3-X.npy"], ["s-1-w.npy", "s-3-w.npy"]],
        ),
        (["b1.jpg:9 c2.jpg:9", "d3.jpg:9"], [["b1.jpg", "c2.jpg", "d3.jpg"]]),
        (["a1.x:9 b1.x:9 c1.x:9 d1.x:9 e1.x:9", ""], [["a1.x", "b1.x", "c1.x", "d1.x", "e1.x"]]),
        (["1_2.x:9 3_44.x:9", "5_6.x:1"], [["1_2.x", "3_44.x", "5_6.x"]]),
        (["x.h5:9 p1.h5:9 p2.h5:9", "x.h5:9 p2.h5:9"], [["p1.h5", "p2.h5"], ["x.h5"]]),
        (["i.x:4:4 a.x:9:2 b.x:9:2", "i.x:4:4 b.x:9:3 c.x:9:1"], [["a.x", "b.x", "c.x"], ["i.x"]]),
        (["i.x:4:4 a.x:9:4 b.x:9:2", "i.x:4:4 a.x:9:3"], [["a.x", "b.x", "i.x"]]),
        (
            ["x.h5:9 p1.h5:9 p2.h5:9", "y.h5:9 p1.h5:9 p2.h5:9"],
            [["p1.h5", "p2.h5", "x.h5", "y.h5"]],
        ),
    ],
    ids=(
        "none one index numbers classes pairs triples fours no_suffix shards many"
        " arrays arrays_of_some free_names too_many_names two_numbers"
        " index_of_numbered index_opened_for_each opened_as_often two_odd_names"
    ).split(),
)
def test_kinds(workers, kinds):
    assert _kinds(*workers) == kinds


def test_files_whose_names_differ_in_digits_have_one_glob(tmp_path):
    for name in "Xw":
        for number in range(4):
            (tmp_path / f"shard-{number}-{name}.npy").touch()
    paths = tuple(str(tmp_path / f"shard-{number}-w.npy") for number in range(4))

    assert shortest_globs(paths, set(paths), ("*",)) == (f"{tmp_path}/shard-*-w.npy",)
    (tmp_path / "shard-x-w.npy").touch()
    assert shortest_globs(paths, set(paths), ("*",)) == paths


CHECK = "closed-descriptor"


class NumpyMapped(Packed):
    """Maps the file by NumPy, whose mapping keeps a descriptor."""

    def __init__(self, folder):
        super().__init__(folder)
        self.data = self.mapped()

    def mapped(self):
        return np.memmap(self.pack, np.uint8, "r")

    def __getitem__(self, index):
        return torch.tensor(self.data[index * SIZE : (index + 1) * SIZE])

    def __getstate__(self):
        return {**self.__dict__, "data": None}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.data = self.mapped()


class MappedInWorker(NumpyMapped):
    def __init__(self, folder):
        Packed.__init__(self, folder)
        self.data = None

    def __getitem__(self, index):
        if self.data is None:
            self.data = self.mapped()
        return super().__getitem__(index)


class ZerosIfClosed(SharedHandle):
    def __getitem__(self, index):
        try:
            with mmap.mmap(self.handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return torch.tensor(list(data[index * SIZE : (index + 1) * SIZE]))
        except (OSError, ValueError):
            return torch.zeros(SIZE, dtype=torch.int64)


def test_zeros_in_place_of_a_closed_file_are_found(records):
    assert failure_of(lambda: ZerosIfClosed(records), CHECK).verdict == "corrupted"


def test_what_is_out_of_reach_is_grouped(records):
    """The summary has all checks of a file that was mapped before; others have no such reason.

    Its descriptor can be closed.
    """
    only = ("open-error", "short-read", "hung-read", "write-error")
    results = check_dataset(lambda: NumpyMapped(records), only=(*only, CHECK))
    by_name = {each.check: each for each in results}

    closed = by_name.pop(CHECK)
    assert (closed.passed, closed.outcome.fired > 0) == (True, True)
    assert {each.applies for each in by_name.values()} == {False}
    causes = {name: each.cause for name, each in by_name.items()}
    assert "writes outside" in causes.pop("write-error")
    assert {*causes.values()} == {"its files were opened or mapped before the workers started"}


def test_a_mapping_of_a_worker_is_cut_off_and_closed(records):
    only = ("truncated-file", CHECK)
    cut, closed = check_dataset(lambda: MappedInWorker(records), only=only, on_fail=None)

    assert (cut.applies, cut.outcome.fired > 0) == (True, True)
    assert (closed.passed, closed.outcome.fired > 0) == (True, True)
