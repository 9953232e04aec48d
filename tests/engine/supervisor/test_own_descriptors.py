"""The supervisor opens what workers open; its own descriptors run out before any of theirs do."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.system.proc import descriptors
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults.exceptions import InjectionError
from pytest_dataloader_faults.faults import ReadError, SlowRead, TruncatedFile
from support.attempts import NEVER, error_of
from support.children import in_a_process
from support.epochs import alone, epoch
from support.tries import WAYS, Tries, pread

LIMIT = 256
WORKERS = 4
NOBODY = 65534
EIO = os.strerror(errno.EIO)

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"  # It is meant to: four workers, on however few cores.
)


@pytest.fixture(name="paths")
def _paths(tmp_path):
    """800 files of 8 bytes."""
    paths = [tmp_path / f"{number:03}.bin" for number in range(800)]
    for path in paths:
        path.write_bytes(b"contents")
    return list(map(str, paths))


def _under_a_limit(body):
    """Do *body* in a process that has few descriptors, as has all that it starts."""

    def limited():
        resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        body()

    assert not (told := in_a_process(limited)), told


def _read(paths, *faults, read=WAYS["read"], workers=WORKERS):
    with inject(*faults) as injection:
        results = epoch(alone(Tries(paths, read), num_workers=workers)).batches
    return [each.gave for each in results], injection


def test_a_fault_of_every_file_happens_in_every_file(paths):
    """Four workers open more in all than the supervisor can: it forgets what they have closed."""

    def body():
        gave, injection = _read(paths, ReadError("*.bin"), read=error_of(WAYS["read"]))
        assert len(paths) == injection.fired
        assert {f"[Errno 5] {EIO}"} == set(gave)

    _under_a_limit(body)


def test_the_last_of_many_files(paths):
    """Its fault happens, after a fault that shows nothing in all the others."""

    def body():
        faults = (ReadError("*/799.bin"), SlowRead("*", seconds=0.0001))
        gave, injection = _read(paths, *faults, read=error_of(WAYS["read"]))
        assert [f"[Errno 5] {EIO}"] == [each for each in gave if each != b"contents"]
        assert 1 == injection.faults[0].fired

    _under_a_limit(body)


def test_every_file_can_be_shorter(paths):
    """Substitutes that nobody has asked for in a while are made anew when somebody does."""

    def body():
        gave, injection = _read(paths * 2, TruncatedFile("*.bin"), workers=2)
        assert {b"cont"} == set(gave)
        assert 2 * len(paths) == injection.fired

    _under_a_limit(body)


def test_more_open_files_than_it_can_have(paths):
    """Ends in an error of the run, which says whose limit it was and what to raise."""

    def body():
        kept = []

        def keep(path):
            kept.append(os.open(path, os.O_RDONLY))
            return pread(kept[-1])

        with pytest.raises(InjectionError, match="supervisor") as caught:
            _read(paths[:320], ReadError("*.bin", nth=NEVER), read=keep)
        text = str(caught.value)
        assert all(each in text for each in ("EMFILE", f"limit of {LIMIT}", "ulimit -Hn"))
        assert 1 == text.count("no descriptor left")

    _under_a_limit(body)


def test_nothing_is_kept_of_workers_that_have_ended(paths):
    """Epoch after epoch, each with workers of its own."""

    def body():
        loader = alone(Tries(paths[:40], WAYS["read"]), num_workers=2)
        with inject(ReadError("*.bin", nth=NEVER), require_fired=False) as injection:
            used = [_after(epoch(loader), injection) for _ in range(4)]
        assert [used[0]] * 4 == used

    _under_a_limit(body)


def _after(read, injection):
    """How many descriptors the supervisor has once the workers of an epoch have ended."""
    assert [b"contents"] * 40 == [each.gave for each in read.batches]
    injection.refresh()
    return len(descriptors(injection._client.pid))


def test_a_dead_process_that_nobody_has_waited_for():
    """Has no descriptors, though /proc refuses to list them to all but root."""

    def body():
        if not os.getuid():
            os.setuid(NOBODY)
        child = fork()
        if not child:
            os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert set() == descriptors(child)
        os.waitpid(child, 0)

    assert not (told := in_a_process(body)), told
