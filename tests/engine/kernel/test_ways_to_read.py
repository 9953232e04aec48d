"""However a file is named, opened, duplicated and read, and by whom: the fault is met."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.kernel.linux import MACHINE, SYSCALLS
from pytest_dataloader_faults.faults import ClosedDescriptor, OpenError, ReadError, TruncatedFile
from support.attempts import CONTENT, by_each, file_of, fired_at
from support.epochs import alone, epoch
from support.tries import WAYS, Tries


def _with_errno(call):
    """The result of a C function that is called by ctypes, and errno."""
    return call(ctypes.CDLL(None, use_errno=True)), ctypes.get_errno()


def _statx_nothing(_path):
    return _with_errno(lambda libc: libc.statx(0, None, 0, 0xFFF, None))


def _open_nothing(_path):
    return _with_errno(lambda libc: libc.open(None, os.O_RDONLY))


def _open_in_no_folder(_path):
    return _with_errno(lambda libc: libc.openat(9999, b"file.rec", os.O_RDONLY))


SENSELESS = (_statx_nothing, _open_nothing, _open_in_no_folder)


SCHEDULES = {
    "read": ReadError("*/data/*.rec"),
    "closed": ClosedDescriptor("*/data/*.rec"),
    "open": OpenError("*/data/*.rec", errno=errno.EACCES),
    "shorter": TruncatedFile("*/data/*.rec", keep=50),
    "later": ReadError("*.rec", nth=9999),
}


@pytest.fixture(name="seen", scope="module")
def _seen(tmp_path_factory):
    """What every way gave of its file under one of these, the file, and the injection."""
    found = {}

    def seen(schedule, way):
        if schedule not in found:
            folder = tmp_path_factory.mktemp(schedule) / "data"
            ways = {name: each for name, each in WAYS.items() if _is_tried(schedule, name)}
            fault = SCHEDULES[schedule]
            gave = by_each(ways, folder, fault, require_fired=schedule != "later")
            found[schedule] = folder, *gave
        folder, gave, injection = found[schedule]
        return gave[way], file_of(folder, way), injection

    return seen


def _is_tried(schedule, way):
    """fopen(3) of a file that cannot be opened gives nothing that fread(3) could take."""
    return (schedule, way) != ("open", "fread")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("schedule", "number"), [("read", errno.EIO), ("closed", errno.EBADF)])
def test_each_way_meets_an_errno(seen, way, schedule, number):
    """The one that the fault says, and no other."""
    gave, path, injection = seen(schedule, way)
    assert isinstance(gave, str)
    assert os.strerror(number) in gave
    assert fired_at(injection, path)
    assert {each.path for each in injection.faults[0].firings} == {
        str(path.with_stem(each)) for each in WAYS
    }


@pytest.mark.parametrize("way", [way for way in WAYS if way != "fread"])
def test_each_way_meets_a_failing_open(seen, way):
    """Whichever of the three calls it is."""
    assert os.strerror(errno.EACCES) in str(seen("open", way)[0])


@pytest.mark.parametrize("way", WAYS)
def test_each_way_meets_the_shorter_file(seen, way):
    """And reads what is left of it rightly."""
    assert CONTENT[:50] == seen("shorter", way)[0]


@pytest.mark.parametrize("way", WAYS)
def test_each_way_works_when_its_turn_has_not_come(seen, way):
    """The file is followed, its reads are looked at, and nothing is changed."""
    gave, path, injection = seen("later", way)
    assert CONTENT == gave
    assert 0 < injection.workers[0].files[str(path)].reads
    assert (True, 0) == (injection.reached >= len(WAYS), injection.fired)


def test_a_senseless_call_is_refused_by_the_kernel(path):
    """As without us; Rust's library makes one of them to see whether there is a statx(2)."""
    faults = ReadError("*.rec"), TruncatedFile("*.nothing")
    with inject(*faults, require_fired=False):
        results = epoch(alone(Tries(list(SENSELESS), lambda mistake: mistake(path)))).batches
    assert [mistake(path) for mistake in SENSELESS] == [each.gave for each in results]


def _by(name):
    def call(_path):
        ctypes.CDLL(None).syscall(SYSCALLS[MACHINE][name], -1, None, 0)
        return b""

    return call


def _through_a_message(path):
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull, "rb") as file:
        socket.send_fds(ours, [b"1"], [file.fileno()])
        for fd in socket.recv_fds(theirs, 1, 1)[1]:
            os.close(fd)
    return CONTENT


def _with_a_ring(_path):
    setup = 425  # On every architecture; see io_uring_setup(2).
    ctypes.CDLL(None).syscall(setup, 1, None)
    return b""


def _plainly(path):
    return Path(path).read_bytes()


def _through_dup2(path):
    fd = os.open(path, os.O_RDONLY)
    os.dup2(fd, 100)
    os.close(fd)
    try:
        return os.read(100, 1000)
    finally:
        os.close(100)


OUT_OF_REACH = {
    _through_dup2: (CONTENT, {"dup2": 1}),
    _with_a_ring: (b"", {"io_uring_setup": 1}),
    _by("pidfd_getfd"): (b"", {"pidfd_getfd": 1}),
    _by("open_by_handle_at"): (b"", {"open_by_handle_at": 1}),
    _plainly: (CONTENT, {"open of an excluded file": 1}),
    _through_a_message: (CONTENT, {}),
}
"""What each gives, and what is told of it."""


@pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning"  # More than processors, which is meant.
)
def test_what_is_out_of_reach_is_told(path, tmp_path):
    """Of each worker; whether the kernel grants a ring or a descriptor does not matter.

    A glob that means everything spares installed packages. Descriptors that a library of its own
    sends along are no files of the dataset.
    """
    inside = tmp_path / "site-packages" / "images" / "a.rec"
    inside.parent.mkdir(parents=True)
    inside.write_bytes(CONTENT)
    ways = list(OUT_OF_REACH)
    with inject(ReadError("*"), require_fired=False) as injection:
        loader = alone(
            Tries(ways, lambda way: way(inside if way is _plainly else path)),
            num_workers=len(ways),
        )
        results = epoch(loader).batches

    assert [gave for gave, _ in OUT_OF_REACH.values()] == [each.gave for each in results]
    told = {each.worker: each.unobserved for each in injection.workers}
    assert dict(enumerate(hidden for _, hidden in OUT_OF_REACH.values())) == told
    assert "Hidden from the engine: dup2 (1), io_uring_setup (1)" in str(injection.unfired())
