"""Faults of locks, in each way in which programs lock: they fail or wait, and unlocking works."""

import contextlib
import errno
import fcntl
import functools
import os
import signal
import sqlite3
import struct
import time

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import LockError
from pytest_dataloader_faults.faults.locks import LOCK_ERRNOS
from support.attempts import Case, attempt, attempt_each, met_errnos
from support.epochs import alone, epoch
from support.tries import Tries
from support.waiting import allowed

pytestmark = pytest.mark.usefixtures("engine")

_STRUCT_FLOCK = struct.Struct("hhqqi4x")


def _with_file(lock):
    def use(path):
        with open(path, "ab") as file:
            return lock(file.fileno())

    return use


def _by_command(command, lock_type=fcntl.F_WRLCK):
    def lock(fd):
        fcntl.fcntl(fd, command, _STRUCT_FLOCK.pack(lock_type, os.SEEK_SET, 0, 0, 0))

    return _with_file(lock)


def _of_read_only_file(path):
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _through_sqlite(path):
    with contextlib.closing(sqlite3.connect(f"{path}.db", timeout=0.01)) as connection:
        connection.execute("create table t (x)")


def _through_h5py(path):
    import h5py

    with h5py.File(f"{path}.h5", "w"):
        pass


def _through_filelock(path):
    import filelock

    with filelock.FileLock(f"{path}.lock", timeout=0.1):
        pass


def _through_lmdb(path):
    import lmdb

    lmdb.open(f"{path}.mdb", subdir=False).close()


AT_ONCE = {
    "flock": _with_file(lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)),
    "shared": _of_read_only_file,
    "lockf": _with_file(lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)),
    "F_SETLK": _by_command(fcntl.F_SETLK),
    "F_OFD_SETLK": _by_command(fcntl.F_OFD_SETLK),
    "sqlite": _through_sqlite,
    "h5py": _through_h5py,
    "filelock": _through_filelock,
}
"""Ways to lock a file that do not wait, or not for long."""
WAITING = {
    "flock": _with_file(lambda fd: fcntl.flock(fd, fcntl.LOCK_EX)),
    "lockf": _with_file(lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX)),
    "F_SETLKW": _by_command(fcntl.F_SETLKW),
    "F_OFD_SETLKW": _by_command(fcntl.F_OFD_SETLKW),
}
OF_LIBRARIES = {
    "sqlite": "database is locked",
    "h5py": "unable to lock file",
    "filelock": "could not be acquired",
}
"""What says, in place of an OSError, that the file is locked."""


def _cases(ways, make_fault):
    return {name: Case(way, lambda path: make_fault(f"{path}*")) for name, way in ways.items()}


def test_each_way_meets_a_lock_of_another_job(tmp_path):
    results, _ = attempt_each(_cases(AT_ONCE, LockError), tmp_path / "locked")

    for name, (_, gave, facts) in results.items():
        assert OF_LIBRARIES.get(name, f"[Errno {errno.EAGAIN}]") in gave, name
        assert facts.fired, name


def test_each_way_meets_a_drive_without_locks(tmp_path):
    ways = {**AT_ONCE, **WAITING, "lmdb": _through_lmdb}
    make_fault = functools.partial(LockError, errno=errno.ENOLCK)
    results, _ = attempt_each(_cases(ways, make_fault), tmp_path / "without")

    told = {name: gave for name, (_, gave, _) in results.items() if "No locks" not in gave}
    assert all(facts.fired for _, _, facts in results.values())
    assert set(told) <= {"sqlite", "filelock"}, told
    assert all("Error" in gave for gave in told.values()), told


def test_each_way_works_when_its_turn_has_not_come(tmp_path):
    ways = {**AT_ONCE, **WAITING, "lmdb": _through_lmdb}
    make_fault = functools.partial(LockError, nth=9999)
    results, injection = attempt_each(
        _cases(ways, make_fault), tmp_path / "later", require_fired=False
    )
    (worker,) = injection.workers

    for name, (path, gave, facts) in results.items():
        assert "Error" not in str(gave), name
        assert facts.matched, name
        assert any(counts.locks for file, counts in worker.files.items() if str(path) in file), name


def _unlock(path):
    with open(path, "ab") as file:
        for unlock in (fcntl.flock, fcntl.lockf):
            unlock(file, fcntl.LOCK_UN)
        for command in (fcntl.F_SETLK, fcntl.F_OFD_SETLK):
            unlocked = _STRUCT_FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(file, command, unlocked)
        locked = _STRUCT_FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(file, fcntl.F_GETLK, locked)
    return "unlocked"


def test_a_file_can_be_unlocked(tmp_path):
    cases = {"unlock": Case(_unlock, LockError)}
    results, _ = attempt_each(cases, tmp_path / "unlocked", require_fired=False)

    assert results["unlock"].gave == "unlocked"
    assert not results["unlock"].facts.matched


def test_a_call_that_waits_does_so_until_the_loader_gives_up(tmp_path):
    paths = {name: str(tmp_path / name) for name in WAITING}
    with inject(*map(LockError, paths.values())) as injection:
        for number, (name, path) in enumerate(paths.items(), 1):
            read = epoch(alone(Tries([path], WAITING[name])), (injection, 0))
            assert "timed out" in read.text
            assert injection.fired == number


def _limited_by_an_alarm(path):
    def give_up(*_):
        raise TimeoutError(f"no lock of {path}")

    handler = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    began = time.monotonic()
    try:
        WAITING["flock"](path)
    except TimeoutError as error:
        return str(error), time.monotonic() - began
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


SECONDS = 0.4
"""For which the other job holds the lock."""


@pytest.mark.parametrize("name", WAITING)
def test_a_lock_that_is_released_ends_the_wait(tmp_path, name):
    path = str(tmp_path / "x.lock")

    def lock_twice(path):
        began = time.monotonic()
        WAITING[name](path)
        seconds = time.monotonic() - began
        AT_ONCE["F_SETLK"](path)
        return seconds

    (seconds,), injection = attempt([path], lock_twice, LockError(path, seconds=SECONDS))

    assert SECONDS * 0.9 <= seconds < allowed(5)
    assert injection.fired == 1


def test_a_lock_that_is_released_can_be_had_by_polling(tmp_path):
    def poll(path):
        while True:
            try:
                return AT_ONCE["flock"](path)
            except BlockingIOError:
                time.sleep(0.01)

    path = str(tmp_path / "x.lock")
    (gave,), injection = attempt([path], poll, LockError(path, seconds=SECONDS))
    times = [each.time for each in injection.faults[0].firings]

    assert gave is None
    assert SECONDS / 4 < times[-1] - times[0] < SECONDS


def test_a_signal_interrupts_the_wait(tmp_path):
    path = str(tmp_path / "x.lock")
    (gave,), _ = attempt([path], _limited_by_an_alarm, LockError(path))

    message, seconds = gave
    assert message == f"no lock of {path}"
    assert 0.2 <= seconds < allowed(2)


def test_every_errno_comes_out_of_a_lock(tmp_path):
    met = met_errnos(tmp_path, LockError, LOCK_ERRNOS, AT_ONCE["F_SETLK"])
    assert met == {number: None if number == errno.EINTR else number for number in LOCK_ERRNOS}


def _lock_twice(path):
    with open(path, "ab") as file:
        errnos = []
        for _ in range(3):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                errnos.append(0)
            except OSError as error:
                errnos.append(error.errno)
    return errnos


def test_triggers_count_requests(tmp_path):
    path = str(tmp_path / "x.lock")
    (gave,), injection = attempt([path], _lock_twice, LockError(path, nth=2, times=1))

    assert gave == [0, errno.EAGAIN, 0]
    assert [(each.call, each.path) for each in injection.faults[0].firings] == [("flock", path)]
