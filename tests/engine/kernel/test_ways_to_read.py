"""However a file is named, opened, duplicated and read, and by whom: the fault is met."""

import ctypes
import errno
import os
import socket
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.kernel.linux import MACHINE, SYSCALLS
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    OpenError,
    ReadError,
    TruncatedFile,
    WorkerExited,
)
from pytest_dataloader_faults.faults.kinds import OPEN_ERRNOS, READ_ERRNOS
from support.attempts import CONTENT, Case, attempt, attempt_each, met_errnos
from support.epochs import alone, epoch
from support.tries import FAMILIES, WAYS, Tries


def _statx_null(_path):
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.statx(0, None, 0, 0xFFF, None), ctypes.get_errno()


EVERY_WAY = {**WAYS, **FAMILIES}
MATRIX = {
    "open": (lambda path: OpenError(path, errno=errno.EACCES), errno.EACCES),
    "read": (ReadError, errno.EIO),
    "closed": (ClosedDescriptor, errno.EBADF),
    "shorter": (lambda path: TruncatedFile(path, keep=50), CONTENT[:50]),
    "later": (lambda path: ReadError(path, nth=9999), CONTENT),
}
"""Faults, and what every way gives, or the errno that it meets."""


@pytest.fixture(name="row", scope="module", params=MATRIX)
def _row(request, tmp_path_factory):
    """What is expected of each way, what each way gave, and the worker."""
    make_fault, expected = MATRIX[request.param]
    cases = {name: Case(way, make_fault) for name, way in EVERY_WAY.items()}
    if expected == errno.EACCES:
        del cases["fread"]  # fopen(3) gives nothing that fread(3) could take.
    folder = tmp_path_factory.mktemp(request.param)
    results, injection = attempt_each(cases, folder, require_fired=False)
    return expected, results, injection.workers[0]


def test_each_way_meets_the_fault(row):
    expected, results, _ = row
    if isinstance(expected, int):
        messages = {name: str(each.gave) for name, each in results.items()}
        assert [] == [name for name in messages if os.strerror(expected) not in messages[name]]
    else:
        assert dict.fromkeys(results, expected) == {name: results[name].gave for name in results}


def test_each_way_is_counted(row):
    expected, results, worker = row
    for name, (path, _, facts) in results.items():
        places = {(firing.worker, firing.path) for firing in facts.firings}
        assert ({(0, str(path))} if expected != CONTENT else set()) == places, name
        assert facts.matched, name
        assert expected != CONTENT or worker.files[str(path)].reads > 0, name


def test_a_senseless_call_is_refused_by_the_kernel(path):
    """As without us; Rust's library makes one of them to see whether there is a statx(2)."""
    faults = ReadError("*.rec"), TruncatedFile("*.nothing")
    (gave,), _ = attempt([path], _statx_null, *faults, require_fired=False)
    assert _statx_null(path) == gave


def _call(name):
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


def _with_a_ring():
    setup = 425  # On every architecture; see io_uring_setup(2).
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(setup, 1, None)
    return ctypes.get_errno()


def _read_plainly(path):
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
    _call("pidfd_getfd"): (b"", {"pidfd_getfd": 1}),
    _call("open_by_handle_at"): (b"", {"open_by_handle_at": 1}),
    _read_plainly: (CONTENT, {"open of an excluded file": 1}),
    _through_a_message: (CONTENT, {}),
}
"""What each gives, and what is told of it."""


@pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning"  # More than processors, which is meant.
)
def test_what_is_out_of_reach_is_reported(path, tmp_path):
    """Of each worker; whether the kernel grants a descriptor does not matter.

    A glob that means everything spares installed packages. Descriptors that a library of its own
    sends along are no files of the dataset.
    """
    inside = tmp_path / "site-packages" / "images" / "a.rec"
    inside.parent.mkdir(parents=True)
    inside.write_bytes(CONTENT)
    ways = list(OUT_OF_REACH)
    with inject(ReadError("*"), require_fired=False) as injection:
        loader = alone(
            Tries(ways, lambda way: way(inside if way is _read_plainly else path)),
            num_workers=len(ways),
        )
        results = epoch(loader).batches

    assert [gave for gave, _ in OUT_OF_REACH.values()] == [each.gave for each in results]
    hidden_by_worker = {each.worker: each.unobserved for each in injection.workers}
    assert dict(enumerate(hidden for _, hidden in OUT_OF_REACH.values())) == hidden_by_worker
    assert "Not visible to the engine: dup2 (1), open" in str(injection.explain_unfired())


CALLS = [
    (OpenError, OPEN_ERRNOS, "read"),
    (OpenError, OPEN_ERRNOS - {errno.EINTR}, "openat2"),  # Called by its number, and not repeated.
    (OpenError, OPEN_ERRNOS, "O_CREAT"),
    *((ReadError, READ_ERRNOS, way) for way in ("read", "pread", "readv", "preadv")),
]


@pytest.mark.parametrize(("kind", "numbers", "way"), CALLS)
def test_every_errno_comes_out_of_a_call(tmp_path, kind, numbers, way):
    met = met_errnos(tmp_path, kind, numbers, WAYS[way])
    assert met == {n: CONTENT if n == errno.EINTR else n for n in numbers}


@pytest.mark.parametrize("is_of_files", [True, False])
def test_a_ring_is_refused_under_file_faults(is_of_files):
    """The kernel may refuse it as well, but the call reaches it only without such faults."""
    fault = ReadError("*") if is_of_files else WorkerExited(at=99)
    with inject(fault, require_fired=False) as injection:
        (result,) = epoch(alone(Tries([0], lambda _: _with_a_ring()), num_workers=1)).batches

    assert injection.workers[0].unobserved == ({} if is_of_files else {"io_uring_setup": 1})
    if is_of_files:
        assert result.gave == errno.EPERM
