"""What dead processes left in /dev/shm is removed, and data files that are there can be read."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import shutil
import tempfile
import uuid
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.system.temporary import SharedMemoryCleaner
from pytest_dataloader_faults.faults import ReadError
from support.attempts import CONTENT
from support.epochs import alone, epoch
from support.tries import Tries

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


engines = pytest.mark.parametrize("engine", ["kernel", "python"])


def _read(path):
    return Path(path).read_bytes()


@pytest.fixture(name="shared")
def _shared():
    """A folder in /dev/shm."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def _under(glob, path, engine, read=_read):
    with inject(ReadError(glob), engine=engine, require_fired=False) as injection:
        (result,) = epoch(alone(Tries([str(path)], read))).batches
    return result.gave, injection


def _left_open(engine):
    """What is counted for files that other tests of this process have left open."""
    return _under("*", __file__, engine)[1].workers[0].unobserved


@engines
@pytest.mark.parametrize("glob", ["*", "*.bin"])
def test_a_copy_in_a_folder(shared, glob, engine):
    """A glob that names no folder means it."""
    (shared / "0.bin").write_bytes(CONTENT)
    gave, injection = _under(glob, shared / "0.bin", engine)
    assert "Errno 5" in gave
    assert 1 == injection.fired


@engines
def test_a_copy_that_is_in_no_folder(engine):
    """The ending of its name tells that it is a file."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", suffix=".bin") as file:
        file.write(CONTENT)
        file.flush()
        _, injection = _under("*", file.name, engine)
    assert 1 == injection.fired


@engines
def test_a_name_that_tells_nothing(engine):
    """It may be a library's segment: it is spared, counted and told, and reached by its folder."""
    before = _left_open(engine)
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="h") as file:
        file.write(CONTENT)
        file.flush()
        gave, injection = _under("*", file.name, engine)
        _, reached = _under("/dev/shm/h*", file.name, engine)
    assert CONTENT == gave
    assert {**before, "open of an excluded file": 1} == injection.workers[0].unobserved
    _, _, hidden = injection.unfired().partition("Hidden from the engine: ")
    assert "open of an excluded file (1)" in hidden
    assert 1 == reached.fired


def _attached(name):
    shared = SharedMemory(Path(name).name)
    try:
        return bytes(shared.buf[: len(CONTENT)])
    finally:
        shared.close()


@engines
def test_segments_of_torch_and_multiprocessing(engine):
    """Nothing befalls them, and they are not counted: no dataset keeps its data there."""
    before = _left_open(engine)
    shared = SharedMemory(create=True, size=len(CONTENT))
    shared.buf[:] = CONTENT
    try:
        gave, injection = _under("*", f"/dev/shm/{shared.name}", engine, _attached)
    finally:
        shared.close()
        shared.unlink()
    assert CONTENT == gave
    assert (0, before) == (injection.fired, injection.workers[0].unobserved)
