"""The python engine: its acts, that files are otherwise what they were, and its limits."""

import builtins
import errno
import fcntl
import functools
import io
import itertools
import mmap
import os
import pathlib
import pickle
import subprocess
import sys
import tarfile  # noqa: F401  # it has a name of its own for open()
import threading
from types import ModuleType

import numpy as np
import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.plan import FaultPlan, WorkerFaults
from pytest_dataloader_faults._engine.policy import Delay, Fail, FaultPolicy, Hang, Short
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    CorruptedFile,
    OpenError,
    ReadError,
    ShortRead,
    SlowRead,
    TruncatedFile,
)
from support.attempts import CONTENT
from support.epochs import alone, epoch
from support.readers import PURE
from support.readers.python import descriptor, opened
from support.rows import rows
from support.schedules import counters_of, patched, schedule
from support.tries import Tries

NEVER = ReadError("*.rec", nth=10**6)


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "data.rec"
    path.write_bytes(CONTENT)
    return path


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
    for number, reader in enumerate(PURE.values()):
        path = tmp_path / f"{number}.rec"
        reader.write_as(path)
        reads.append(functools.partial(reader.read, path))
    expected = [repr(read()) for read in reads]
    with patched(schedule(NEVER)):
        gave = [repr(read()) for read in reads]
    assert dict(zip(PURE, expected, strict=True)) == dict(zip(PURE, gave, strict=True))


FAULTS = {
    "opens": {
        "OpenError": lambda path: OpenError(path, errno=errno.EACCES),
        "OpenError, second": lambda path: OpenError(path, nth=2),
        "ReadError, never": lambda path: ReadError(path, nth=10**6),
        "SlowRead": lambda path: SlowRead(path, seconds=0.001, times=3),
    },
    "reads": {
        "ReadError, first": ReadError,
        "ReadError, second": lambda path: ReadError(path, nth=2),
        "ReadError, third and fourth": lambda path: ReadError(path, nth=3, times=2),
        "ShortRead": lambda path: ShortRead(path, max_bytes=700),
    },
    "contents": {
        "TruncatedFile": TruncatedFile,
        "TruncatedFile, nothing": lambda path: TruncatedFile(path, keep=0),
        "CorruptedFile": lambda path: CorruptedFile(path, flips=50),
    },
    "triggers": {
        "ReadError, from a place on": lambda path: ReadError(path, offset=100),
        "ReadError, each third": lambda path: ReadError(path, every=3),
        "ReadError, perhaps": lambda path: ReadError(path, probability=0.3),
    },
    "closed": {"ClosedDescriptor": ClosedDescriptor},
}
"""Those of a group are armed at once. What closes numbers is alone: a reader may close one again
later, when another file has it."""


def gave(read, path):
    """What a reader gives, or the text of its error."""
    try:
        return read(path)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the finding
        return f"{type(error).__name__}: {error}"


@pytest.mark.filterwarnings("ignore:Exception ignored in")  # Pillow, under either engine: its
@pytest.mark.filterwarnings("ignore:unclosed file")  # first read comes before its own try
@pytest.mark.parametrize("group", FAULTS)
def test_each_reader_meets_what_it_meets_under_the_kernel_engine(tmp_path, group):
    cells = list(itertools.product(FAULTS[group], PURE))
    paths = [tmp_path / f"{number}.rec" for number in range(len(cells))]
    for path, (_, reader) in zip(paths, cells, strict=True):
        PURE[reader].write_as(path)
    makes = [FAULTS[group][name] for name, _ in cells]
    faults = [make(str(path)) for path, make in zip(paths, makes, strict=True)]
    readers = [PURE[reader].read for _, reader in cells]

    by_kernel, by_python = _by_kernel(paths, readers, faults), _by_python(paths, readers, faults)

    assert dict(zip(cells, by_kernel, strict=True)) == dict(zip(cells, by_python, strict=True))


def _read_all(paths, readers):
    return [gave(read, path) for path, read in zip(paths, readers, strict=True)]


def _by_kernel(paths, readers, faults):
    with inject(*faults, require_fired=False) as injection:
        loader = alone(Tries([paths], lambda paths: _read_all(paths, readers)))
        (result,) = epoch(loader).batches
    facts = injection.faults
    calls = [[each.call for each in fact.firings] for fact in facts]
    return _comparable(result.gave, [fact.matched for fact in facts], calls)


def _by_python(paths, readers, faults):
    policy = schedule(*faults)
    with patched(policy):
        contents = _read_all(paths, readers)
    facts = counters_of(policy)["faults"]
    calls = [[each["call"] for each in fact["firings"]] for fact in facts]
    return _comparable(contents, [fact["matched"] for fact in facts], calls)


def _comparable(contents, reached, calls):
    return [
        (content if isinstance(content, str) else hash(repr(content)), count, called)
        for content, count, called in zip(contents, reached, calls, strict=True)
    ]


def test_every_original_is_back(path):
    originals = _names()
    with patched(schedule(ReadError("*.rec"))):
        assert builtins.open is not originals["builtins", "open"]
        assert {("os", "read"), ("tarfile", "bltn_open"), ("io", "FileIO")} <= _changed(originals)
    assert set() == _changed(originals)
    assert bytes(range(200)) == path.read_bytes()


def _names():
    modules = [each for each in list(sys.modules.items()) if isinstance(each[1], ModuleType)]
    return {
        (at, name): value
        for at, module in modules
        for name, value in list(vars(module).items())
        if callable(value)  # Modules keep counters and caches, too, that change by themselves.
    }


def _changed(originals):
    names = _names()
    return {place for place, value in originals.items() if names.get(place) is not value}


def test_a_mapping_that_should_fail_is_refused(path):
    policy = schedule(ReadError("*.rec"))
    with (
        patched(policy),
        open(path, "rb") as file,
        pytest.raises(InvalidArgumentError, match="kernel"),
    ):
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert {"mmap": 1} == counters_of(policy)["unobserved"]
    assert (1, 0) == tuple(counters_of(policy)["faults"][0][name] for name in ("matched", "fired"))


@pytest.mark.parametrize("fault", [NEVER, ReadError("*.other")])
def test_a_mapping_that_need_not_fail_is_one(path, fault):
    with patched(schedule(fault)), open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert isinstance(mapping, mmap.mmap)
        assert CONTENT == mapping[:]
        mapping.close()


def test_a_shorter_file_is_mapped_shorter(path):
    with patched(schedule(TruncatedFile("*.rec", keep=50))):
        assert CONTENT[:50] == np.memmap(path, mode="r").tobytes()
        assert 50 == np.fromfile(path, np.uint8).size
        assert 50 == os.path.getsize(path) == path.stat().st_size == os.lstat(path).st_size


def test_np_load_reads_where_it_can_be_seen(tmp_path):
    """Else np.fromfile() would take the descriptor."""
    np.save(tmp_path / "data.npy", np.arange(50_000))  # More than a buffer of Python 3.14 holds.
    policy = schedule(ReadError("*.npy", nth=2))
    with patched(policy), pytest.raises(OSError, match="Input/output error"):
        np.load(tmp_path / "data.npy")
    assert {} == counters_of(policy)["unobserved"]


def test_a_number_handed_to_c_code_is_reported(path):
    policy = schedule(ReadError("*.rec"))
    with patched(policy):
        assert 200 == np.fromfile(path, np.uint8).size
    name = f"{__name__}.test_a_number_handed_to_c_code_is_reported"
    assert {f"fileno in {name}", f"dup in {name}"} == set(counters_of(policy)["unobserved"])


def test_a_number_that_comes_back_is_not_reported(path):
    policy = schedule(NEVER)
    with patched(policy), open(path, "rb") as file:
        assert len(CONTENT) == os.fstat(file.fileno()).st_size
        assert CONTENT[:5] == os.pread(file.fileno(), 5, 0)
    assert {} == counters_of(policy)["unobserved"]


def test_another_program_is_reported(path):
    policy = schedule(ReadError("*.rec"))
    with patched(policy):
        assert CONTENT == subprocess.run(["/bin/cat", path], check=True, capture_output=True).stdout
    # From Python 3.14 on, for what closes descriptors, too.
    spawns = hasattr(os, "POSIX_SPAWN_CLOSEFROM")
    call = "posix_spawn in subprocess._posix_spawn"
    call = call if spawns else "fork_exec in subprocess._execute_child"
    assert {call: 1} == counters_of(policy)["unobserved"]


def test_what_was_open_before_is_reported_and_its_number_followed(path):
    policy = schedule(ReadError("*.rec"))
    with open(path, "rb") as file, patched(policy):
        with pytest.raises(OSError, match="Input/output"):
            os.pread(file.fileno(), 10, 0)
        assert CONTENT == file.read()
    assert {"inherited descriptor": 1} == counters_of(policy)["unobserved"]


def test_a_mapping_that_was_there_before_is_reported(path):
    policy = schedule(ReadError("*.rec"))
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with patched(policy), mapping:
        pass
    hidden = {"inherited mapping": 1, "inherited descriptor": 1}  # mmap keeps a duplicate.
    assert hidden == counters_of(policy)["unobserved"]


@pytest.mark.parametrize("fault", [TruncatedFile("*.rec", keep=50), ClosedDescriptor("*.rec")])
def test_what_was_open_before_is_exchanged_or_closed(path, fault):
    fd = os.open(path, os.O_RDONLY)
    os.lseek(fd, 10, os.SEEK_SET)
    with patched(schedule(fault)):
        if isinstance(fault, TruncatedFile):
            assert CONTENT[10:50] == os.read(fd, 100)
            os.close(fd)
        else:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.read(fd, 1)


def test_a_duplicate_is_followed(path):
    policy = schedule(ReadError("*.rec"))
    with patched(policy), open(path, "rb") as file:
        fds = [os.dup2(file.fileno(), 100), fcntl.fcntl(file.fileno(), fcntl.F_DUPFD, 50)]
        for fd in fds:
            with pytest.raises(OSError, match="Input/output"):
                os.read(fd, 10)
            os.close(fd)
    assert {} == counters_of(policy)["unobserved"]
