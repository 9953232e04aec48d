"""What dead processes and scopes leave: nothing in /dev/shm, in processes, or in users' files."""

import contextlib
import gc
import hashlib
import mmap
import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import threading
import uuid
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from pytest_dataloader_faults import Verdict, inject, run_trial
from pytest_dataloader_faults._engine.system.temporary import SharedMemoryCleaner
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    CorruptedFile,
    OpenError,
    ReadError,
    SharedMemoryExhaustion,
    TruncatedFile,
    WorkerKilled,
)
from support.attempts import CONTENT, attempt
from support.datasets import Records
from support.epochs import alone, epoch, reserves_shared_memory
from support.judging import judge_trial
from support.tries import WAYS, Tries
from support.waiting import until

DEAD = 1 << 22
"""Above what pid_max can be: no process has that pid."""


@pytest.fixture(name="cleaner")
def _cleaner():
    return SharedMemoryCleaner()


@pytest.fixture(name="create_segment")
def _create_segment():
    """Files that it makes by the ends of their names, which it removes."""
    paths = []

    def create(name):
        paths.append(f"/dev/shm/{name}")
        with open(paths[-1], "xb") as file:
            file.write(bytes(32))
        return paths[-1]

    yield create
    for path in filter(os.path.exists, paths):
        os.unlink(path)


def _token(length):
    return uuid.uuid4().hex[:length]


@pytest.mark.parametrize("prefix", ["sem.", "sem.mp-", "sem.loky-1-"])
def test_a_semaphore_without_owner_is_removed(cleaner, create_segment, prefix):
    path = create_segment(prefix + _token(6 if prefix == "sem." else 8))
    cleaner.remove(())
    assert not os.path.exists(path)


def test_a_semaphore_that_was_there_before_is_left(create_segment):
    path = create_segment(f"sem.{_token(6)}")
    SharedMemoryCleaner().remove(())
    assert os.path.exists(path)


@pytest.mark.parametrize("access", ["open", "mapped"])
def test_a_semaphore_that_somebody_has_is_left(cleaner, create_segment, access):
    path = create_segment(f"sem.{_token(6)}")
    with open(path, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 32)
        if access == "mapped":
            file.close()
        cleaner.remove(())
        assert os.path.exists(path)
        mapped.close()
    cleaner.remove(())
    assert not os.path.exists(path)


def test_a_semaphore_of_a_spawned_worker_is_left(cleaner):
    lock = multiprocessing.get_context("spawn").Lock()
    cleaner.remove(())
    assert os.path.exists(f"/dev/shm/sem.{lock._semlock.name[1:]}")


def test_other_names_are_left(cleaner, create_segment):
    paths = [create_segment(f"{name}{_token(9)}") for name in ("sem.", "sem.user-", "data-")]
    cleaner.remove(())
    assert all(map(os.path.exists, paths))


def test_segments_go_with_the_process_that_made_them(cleaner, create_segment):
    dead_segment, live_segment = (
        create_segment(f"torch_{DEAD}_{_token(9)}"),
        create_segment(f"torch_{os.getpid()}_{_token(9)}"),
    )
    cleaner.remove({DEAD})
    assert (os.path.exists(dead_segment), os.path.exists(live_segment)) == (False, True)


def _read(path):
    return Path(path).read_bytes()


def _read_attached(name):
    shared = SharedMemory(Path(name).name)
    try:
        return bytes(shared.buf[: len(CONTENT)])
    finally:
        shared.close()


@pytest.fixture(name="folder")
def _folder():
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    (folder / "0.bin").write_bytes(CONTENT)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(name="nameless")
def _nameless():
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="h") as file:
        file.write(CONTENT)
        file.flush()
        yield file.name


@pytest.fixture(name="segment")
def _segment():
    shared = SharedMemory(create=True, size=len(CONTENT))
    shared.buf[:] = CONTENT
    yield f"/dev/shm/{shared.name}"
    shared.close()
    shared.unlink()


def _read_under(globs, *calls):
    return attempt(list(calls), lambda call: call(), *map(ReadError, globs), require_fired=False)


def test_which_files_in_shared_memory_are_data(folder, create_segment, nameless, segment):
    """A glob that names no folder means copies in a folder, and names that have an ending.

    Nothing befalls segments of torch and multiprocessing, and they are not counted: no dataset
    keeps its data there. Another name may be of a library's segment: it is spared, counted and
    told, and reached by its folder.
    """
    # What is counted for files that other tests of this process have left open.
    inherited = _read_under(["*"], partial(_read, __file__))[1].workers[0].unobserved
    paths = folder / "0.bin", create_segment(f"{_token(9)}.bin")
    calls = *(partial(_read, path) for path in paths), partial(_read_attached, segment)
    gave, injection = _read_under(["*"], *calls)
    assert ["Errno 5" in str(each) for each in gave] == [True, True, False]
    assert (CONTENT, 2, inherited) == (gave[2], injection.fired, injection.workers[0].unobserved)

    gave, injection = _read_under(["*"], partial(_read, nameless))
    assert [CONTENT] == gave
    assert {**inherited, "open of an excluded file": 1} == injection.workers[0].unobserved
    _, _, hidden = injection.explain_unfired().partition("Not visible to the engine: ")
    assert "open of an excluded file (1)" in hidden

    globs = "*.bin", "/dev/shm/h*"
    _, injection = _read_under(globs, calls[0], partial(_read, nameless))
    assert [1, 1] == [each.fired for each in injection.faults]


# No room in shared memory.

NO_ROOM = "unable to allocate shared memory"


def _remaining_segments(facts):
    return [firing.path for firing in facts.firings if os.path.exists(firing.path)]


def _loader(records, **options):
    return DataLoader(Records(records), **{"batch_size": 4, "num_workers": 1, **options})


def _collate_data(samples):
    """A collate function that does not share by itself, as torch's own does in a worker."""
    return torch.stack([data for data, _ in samples])


@reserves_shared_memory
def test_torchs_collate_function_reports_it(records):
    """It asks for shared memory itself, so that the error is the fetch's."""
    with inject(SharedMemoryExhaustion()) as injection:
        read = epoch(_loader(records, num_workers=2))
    assert [] == read.batches
    assert NO_ROOM in read.text
    assert "No space left on device" in read.text
    firing = injection.faults[0].firings[0]
    assert ("fallocate", True) == (firing.call, firing.path.startswith("/dev/shm/torch_"))
    assert (1, [0, 0]) == (injection.mentioned, read.exit_codes)
    assert [] == _remaining_segments(injection.faults[0])


@reserves_shared_memory
def test_a_collate_function_of_ones_own_hangs(records):
    """It is shared where torch passes it on, which drops the error and waits forever."""

    def make():
        return Records(records)

    loader = {"num_workers": 1, "batch_size": 4, "collate_fn": _collate_data}
    outcome = run_trial(make, SharedMemoryExhaustion(), loader=loader, deadline=2.0)
    judgement = judge_trial(outcome, take_reference(make, Settings(loader=loader)))
    assert Verdict.HUNG == judgement.verdict, judgement.sentence
    assert NO_ROOM in outcome.stderr
    assert outcome.fired
    assert [] == _remaining_segments(outcome.faults[0])


FILE_FAULTS = (OpenError, ReadError, TruncatedFile, CorruptedFile, ClosedDescriptor)
SCOPES = [
    ("strict", [WorkerKilled()]),
    ("tolerant", [kind(f"*/{number:02}.rec") for number, kind in enumerate(FILE_FAULTS)]),
]


def _files(folder):
    return {
        path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
    }


def _process_state():
    """What a scope might change in it, and must not."""
    return {
        "patched": (DataLoader._get_iterator, vars(_BaseDataLoaderIter)["__init__"]),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "directory": os.getcwd(),
        "handlers": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "filtered": Path("/proc/self/status").read_text(encoding="utf-8").count("Seccomp:\t2"),
    }


def _list_descriptors():
    targets = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # The one that listed the folder.
            targets[number] = os.readlink(f"/proc/self/fd/{number}")
    return targets


def _list_living():
    children = psutil.Process().children(recursive=True)
    processes = {each.pid for each in children if each.status() != psutil.STATUS_ZOMBIE}
    return {*processes, *threading.enumerate()}


def _has_ended(earlier_state):
    """Whether everything that *earlier_state* lacks has ended.

    Errors of torch stay until they are collected.
    """
    gc.collect()
    descriptors, living = earlier_state
    return descriptors.items() >= _list_descriptors().items() and living >= _list_living()


@pytest.fixture(name="undisturbed")
def _undisturbed(records):
    """Compare before and after.

    The first loader of a process leaves torch's own things.
    """
    with inject(ReadError("*.none"), require_fired=False):
        epoch(alone(Records(records)))
    earlier_state, earlier_resources = (
        (_process_state(), _files(records)),
        (_list_descriptors(), _list_living()),
    )
    yield
    assert earlier_state == (_process_state(), _files(records))
    assert until(lambda: _has_ended(earlier_resources)), (
        earlier_resources,
        _list_descriptors(),
        _list_living(),
    )


@pytest.mark.parametrize(("dataset", "faults"), SCOPES)
def test_nothing_is_left_of_a_scope(undisturbed, records, paths, dataset, faults):
    source = Records(records) if dataset == "strict" else Tries(paths, WAYS["read"])
    with inject(*faults) as injection:
        read = epoch(alone(source, num_workers=2))
    assert all(each.fired for each in injection.faults)
    assert (dataset == "strict") == (read.error is not None)


def _leave_early(records):
    with inject(ReadError("*.rec", nth=99), require_fired=False):
        iterator = iter(alone(Records(records), num_workers=2))
        next(iterator)
    iterator._shutdown_workers()


def _raise_in_the_scope(records):
    with contextlib.suppress(ZeroDivisionError), inject(ReadError("*.rec")):
        assert 1 / len(epoch(alone(Records(records))).batches)


@pytest.mark.parametrize("use", [_leave_early, _raise_in_the_scope])
def test_nothing_is_left_of_a_scope_that_ends_early(undisturbed, records, use):
    use(records)
