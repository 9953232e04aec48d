"""Data that was copied to /dev/shm for speed is data; segments of libraries there are not."""

from __future__ import annotations

import shutil
import tempfile
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ReadError
from support.attempts import CONTENT
from support.epochs import alone, epoch
from support.tries import Tries

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
