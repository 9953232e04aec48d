"""The python engine: what it sees, and where its limits are."""

import builtins
import errno
import fcntl
import itertools
import mmap
import os
import subprocess
import sys
import tarfile  # noqa: F401  # it has a name of its own for open()
from types import ModuleType

import numpy as np
import pytest

from pytest_dataloader_faults import inject
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
from support.patching import patched
from support.python_readers import PYTHON
from support.schedules import counters_of, schedule
from support.tries import Tries

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
    "taken over": {"ClosedDescriptor": lambda path: ClosedDescriptor(path, reuse=True)},
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
@pytest.mark.parametrize(
    "group",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "taken over")) for name in FAULTS],
)
def test_each_reader_meets_what_it_meets_under_the_kernel_engine(tmp_path, group):
    cells = list(itertools.product(FAULTS[group], PYTHON))
    paths = [tmp_path / f"{number}.rec" for number in range(len(cells))]
    for path, (_, reader) in zip(paths, cells, strict=True):
        path.write_bytes(PYTHON[reader][0])
    makes = [FAULTS[group][name] for name, _ in cells]
    faults = [make(str(path)) for path, make in zip(paths, makes, strict=True)]
    readers = [PYTHON[reader][1] for _, reader in cells]

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


NEVER = ReadError("*.rec", nth=10**6)


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
