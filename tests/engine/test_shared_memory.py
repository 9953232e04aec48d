"""What dead processes left in /dev/shm is removed, and nothing that anybody uses."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import uuid

import pytest

from pytest_dataloader_faults._engine.system.temporary import SharedMemoryCleaner

DEAD = 1 << 22
"""Above what pid_max can be: no process has that pid."""


@pytest.fixture(name="cleaner")
def _cleaner():
    return SharedMemoryCleaner()


@pytest.fixture(name="made")
def _made():
    """Files that it makes by the ends of their names, which it removes."""
    paths = []

    def make(name):
        paths.append(f"/dev/shm/{name}")
        with open(paths[-1], "xb") as file:
            file.write(bytes(32))
        return paths[-1]

    yield make
    for path in filter(os.path.exists, paths):
        os.unlink(path)


def _token(length):
    return uuid.uuid4().hex[:length]


@pytest.mark.parametrize("prefix", ["sem.", "sem.mp-"])
def test_a_semaphore_of_nobody_is_removed(cleaner, made, prefix):
    """Under the name that it has at first, and under the one that multiprocessing wants."""
    path = made(prefix + _token(6 if prefix == "sem." else 8))
    cleaner.remove(())
    assert not os.path.exists(path)


def test_a_semaphore_that_was_there_before_is_left(made):
    """It belongs to others."""
    path = made(f"sem.{_token(6)}")
    SharedMemoryCleaner().remove(())
    assert os.path.exists(path)


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_semaphore_that_somebody_has_is_left(cleaner, made, how):
    """Whether it is open there or only mapped."""
    path = made(f"sem.{_token(6)}")
    with open(path, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 32)
        if how == "mapped":
            file.close()
        cleaner.remove(())
        assert os.path.exists(path)
        mapped.close()
    cleaner.remove(())
    assert not os.path.exists(path)


def test_a_semaphore_of_a_spawned_worker_is_left(cleaner):
    """Multiprocessing gives it a name for as long as it is used."""
    lock = multiprocessing.get_context("spawn").Lock()
    cleaner.remove(())
    assert os.path.exists(f"/dev/shm/sem.{lock._semlock.name[1:]}")


def test_other_names_are_left(cleaner, made):
    """What only looks like a semaphore is no semaphore."""
    paths = [made(f"{name}{_token(9)}") for name in ("sem.", "sem.user-", "data-")]
    cleaner.remove(())
    assert all(map(os.path.exists, paths))


def test_segments_go_with_the_process_that_made_them(cleaner, made):
    """Those of a process that may live stay."""
    left, used = made(f"torch_{DEAD}_{_token(9)}"), made(f"torch_{os.getpid()}_{_token(9)}")
    cleaner.remove({DEAD})
    assert (os.path.exists(left), os.path.exists(used)) == (False, True)
