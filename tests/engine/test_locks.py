"""Locks that another job holds for a while: who waits, and until when."""

import fcntl
import os
import time

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import LockError
from support.attempts import attempt
from support.contracts.locks import AT_ONCE, FLOCK, WAITING
from support.epochs import alone, epoch
from support.tries import Tries
from support.waiting import allowed

pytestmark = pytest.mark.usefixtures("engine")


def _unlock(path):
    with open(path, "ab") as file:
        for unlock in (fcntl.flock, fcntl.lockf):
            unlock(file, fcntl.LOCK_UN)
        for command in (fcntl.F_SETLK, fcntl.F_OFD_SETLK):
            unlocked = FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(file, command, unlocked)
        locked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(file, fcntl.F_GETLK, locked)
    return "unlocked"


def test_a_file_can_be_unlocked(tmp_path):
    path = str(tmp_path / "x.lock")
    (gave,), injection = attempt([path], _unlock, LockError(path), require_fired=False)

    assert (gave, injection.matched) == ("unlocked", 0)


def test_a_call_that_waits_does_so_until_the_loader_gives_up(tmp_path):
    paths = {name: str(tmp_path / name) for name in WAITING}
    with inject(*map(LockError, paths.values())) as injection:
        for number, (name, path) in enumerate(paths.items(), 1):
            read = epoch(alone(Tries([path], WAITING[name])), (injection, 0))
            assert "timed out" in read.text
            assert injection.fired == number


SECONDS = 0.4
"""For which the other job holds the lock."""


def test_a_lock_that_is_released_ends_the_wait(tmp_path):
    paths = {name: str(tmp_path / name) for name in WAITING}

    def lock_twice(name):
        began = time.monotonic()
        WAITING[name](paths[name])
        seconds = time.monotonic() - began
        AT_ONCE["F_SETLK"](paths[name])
        return seconds

    faults = [LockError(path, seconds=SECONDS) for path in paths.values()]
    gave, injection = attempt([*paths], lock_twice, *faults)

    assert all(SECONDS * 0.9 <= seconds < allowed(5) for seconds in gave)
    assert [1] * len(paths) == [each.fired for each in injection.faults]


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
