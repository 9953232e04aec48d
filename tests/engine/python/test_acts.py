"""Each act of the portable engine, and that files are otherwise what they were."""

import errno
import functools
import io
import os
import pathlib
import pickle
import threading

import pytest

from pytest_dataloader_faults._engine.plan import FaultPlan, WorkerFaults
from pytest_dataloader_faults._engine.policy import Delay, Fail, FaultPolicy, Hang, Short
from pytest_dataloader_faults.faults import OpenError, ReadError
from support.attempts import CONTENT
from support.patching import patched
from support.python_readers import PYTHON, descriptor, opened
from support.rows import rows
from support.schedules import counters_of, schedule

NEVER = ReadError("*.rec", nth=10**6)


class Script(FaultPolicy):
    """Answers reads with acts from a list, one after the other, and then with none."""

    def __init__(self, *actions):
        super().__init__(WorkerFaults(FaultPlan((NEVER,)), 0), 0, os.getpid())
        self.actions = list(actions)
        self.readings = []

    def read_actions(self, operation, offset, length):
        self.readings.append((operation.call, offset, length))
        return self.actions.pop(0) if self.actions else []


class Clock:
    """Time that does not pass."""

    def __init__(self):
        self.log = []

    def sleep(self, seconds):
        self.log.append(seconds)

    def hang(self):
        self.log.append("hang")


SHORT = {
    "buffered": (opened("rb", use=lambda file: file.read(10)), CONTENT[:10]),
    "unbuffered": (opened("rb", 0, use=lambda file: file.read(10)), CONTENT[:3]),
    "readall": (opened("rb", 0, use=lambda file: file.read()), CONTENT),
    "readinto": (opened("rb", 0, use=lambda file: file.readinto(bytearray(10))), 3),
    "read": (descriptor(lambda fd: os.read(fd, 10)), CONTENT[:3]),
    "pread": (descriptor(lambda fd: os.pread(fd, 10, 5)), CONTENT[5:8]),
    "readv": (descriptor(lambda fd: os.readv(fd, [bytearray(2), bytearray(9)])), 3),
    "preadv": (descriptor(lambda fd: os.preadv(fd, [bytearray(9), bytearray(9)], 1)), 3),
}


@rows("reader", SHORT)
def test_a_short_read_gives_less(path, reader):
    read, expected = SHORT[reader]
    with patched(Script([Short(3)])):
        assert expected == read(path)


def test_what_takes_time_comes_first(path):
    clock = Clock()
    with patched(Script([Delay(0.5), Hang(), Fail(errno.EIO)]), clock):
        with pytest.raises(OSError, match="Input/output error"):
            path.read_bytes()
        assert CONTENT == path.read_bytes()
    assert [0.5, "hang"] == clock.log


def test_a_read_is_described_by_place_and_length(path):
    script = Script()
    with patched(script), open(path, "rb", buffering=64) as file:
        file.read(10)
        file.seek(150)
        file.read(100)
        os.pread(file.fileno(), 1000, 20)
    reads = [("read", 0, 64), ("read", 150, 50), ("read", 200, 0), ("pread64", 20, 180)]
    assert reads == [reading for reading in script.readings if reading in reads]


def test_on_fired_hears_of_a_firing_before_it_takes_effect(path):
    firings = []
    policy = schedule(OpenError("*.rec"), on_fired=firings.append)
    with patched(policy), pytest.raises(OSError, match="Input/output"):
        path.read_bytes()
    (firing,) = firings
    assert ("openat", str(path), 0) == (firing.call, firing.path, firing.fault)


TYPES = {
    "r": io.TextIOWrapper,
    "rb": io.BufferedReader,
    "r+b": io.BufferedRandom,
    "wb": io.BufferedWriter,
}


def test_files_are_of_the_types_that_open_gives(path):
    for mode, kind in TYPES.items():
        with open(path, mode) as plain:
            description = repr(plain), plain.mode
        with patched(schedule(NEVER)), open(path, mode) as file:
            assert type(file) is kind
            assert description == (repr(file), file.mode)
            assert isinstance(getattr(file, "buffer", file).raw, io.FileIO)


def test_a_file_that_is_older_than_the_replacements_is_still_raw(path):
    with open(path, "rb", buffering=0) as old, patched(schedule(NEVER)):
        assert isinstance(old, io.FileIO)
        assert not isinstance(io.BytesIO(), io.FileIO)
        assert issubclass(io.FileIO, io.RawIOBase)
        assert not issubclass(io.BytesIO, io.FileIO)


def test_functions_keep_their_names_and_places(path):
    with patched(schedule(NEVER)):
        holder = type("Holder", (), {"size": os.stat})
        assert {os.open, os.stat} <= os.supports_dir_fd
        assert len(CONTENT) == holder().size(path).st_size
        assert pickle.loads(pickle.dumps(os.stat)) is os.stat  # noqa: S301  # our own
        assert "open" == open.__name__


def test_a_path_may_be_relative_to_a_folder_or_a_descriptor(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    folder = os.open(path.parent, os.O_RDONLY)
    policy = schedule(ReadError("*/data.rec"))
    with patched(policy):
        for name in ("data.rec", b"data.rec", pathlib.Path("data.rec")):
            with pytest.raises(OSError, match="Input/output"), open(name, "rb") as file:
                file.read()
        fd = os.open("data.rec", os.O_RDONLY, dir_fd=folder)
        with pytest.raises(OSError, match="Input/output"):
            os.read(fd, 1)
        os.close(fd)
    os.close(folder)
    assert 4 == counters_of(policy)["faults"][0]["fired"]


def test_wrong_arguments_are_refused_as_before(path):
    with patched(schedule(NEVER)):
        with pytest.raises(TypeError):
            open(1.5)
        with pytest.raises(ValueError, match="mode"):
            open(path, "q")  # noqa: PLW1501  # on purpose
        with pytest.raises(FileNotFoundError):
            open(path.parent / "absent.rec")
        with pytest.raises(IsADirectoryError):
            open(path.parent)


def test_a_number_that_c_code_has_closed_is_another_file_when_it_is_used_again(path, tmp_path):
    other_path = tmp_path / "other.txt"
    other_path.write_bytes(b"other")
    with patched(schedule(ReadError("*.rec"))) as files:
        fd = os.open(path, os.O_RDONLY)
        files.system.close(fd)
        assert fd == files.system.open(other_path, os.O_RDONLY)
        assert b"other" == os.read(fd, 10)
        os.close(fd)


def test_what_is_disarmed_lets_everything_pass(path):
    policy = schedule(ReadError("*.rec", nth=2), OpenError("*.rec", nth=2))
    with patched(policy), open(path, "rb", buffering=0) as file:
        assert CONTENT[:10] == file.read(10)
        policy.armed = False
        assert CONTENT[10:] == file.read(1000)
        assert CONTENT == path.read_bytes()
    assert [1, 1] == [each["matched"] for each in counters_of(policy)["faults"]]


def test_a_plan_that_watches_lists_what_is_opened_and_read(path):
    policy = schedule(watch=True)
    with patched(policy):
        path.read_bytes()
        pathlib.Path(os.__file__).read_bytes()
    counts = counters_of(policy)["files"]
    assert {name: each[:4] for name, each in counts.items()} == {str(path): [1, 2, 200, 0]}


def test_counts_are_right_when_threads_read_at_once(path):
    policy = schedule(NEVER)
    with patched(policy):
        threads = [threading.Thread(target=path.read_bytes) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counters_of(policy)["files"][str(path)][:4] == [50, 100, 10000, 0]


def test_each_reader_reads_rightly_when_nothing_is_due(tmp_path):
    reads = []
    for number, (content, read) in enumerate(PYTHON.values()):
        path = tmp_path / f"{number}.rec"
        path.write_bytes(content)
        reads.append(functools.partial(read, path))
    expected = [repr(read()) for read in reads]
    with patched(schedule(NEVER)):
        gave = [repr(read()) for read in reads]
    assert dict(zip(PYTHON, expected, strict=True)) == dict(zip(PYTHON, gave, strict=True))
