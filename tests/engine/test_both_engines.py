"""One schedule, two engines: what Python code reads meets the same, at the same place."""

import errno
import functools
import itertools
import os

import numpy as np
import pytest

from pytest_dataloader_faults import check_dataset, inject, run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import FaultNotFiredError, InvalidArgumentError
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    CorruptedFile,
    DescriptorExhaustion,
    HungRead,
    OpenError,
    ReadError,
    ShortRead,
    SlowRead,
    TruncatedFile,
    WorkerExited,
    WorkerHung,
    WorkerKilled,
)
from support.attempts import attempt
from support.datasets import COUNT, Records, RecordStream, write_records
from support.epochs import alone, epoch
from support.rows import slow
from support.tries import Reads, Tries
from support.waiting import allowed

ENGINES = ("kernel", "python")
SCHEDULES = {
    "OpenError": [OpenError("*/05.rec", errno.EACCES)],
    "OpenError, each second": [OpenError("*.rec", nth=3, every=2, workers=(1,))],
    "ReadError": [ReadError("*.rec", nth=3, times=1)],
    "ReadError, perhaps": [ReadError("*.rec", probability=0.2)],
    "ReadError, at its end": [ReadError("*.rec", offset=63, nth=2)],
    "ShortRead": [ShortRead("*.rec", max_bytes=9, every=3)],
    "TruncatedFile": [TruncatedFile("*/05.rec", keep=10)],
    "CorruptedFile": [CorruptedFile("*/0?.rec", flips=3, seed=1)],
    "TruncatedFile and CorruptedFile": [TruncatedFile("*/05.rec", keep=0), CorruptedFile("*.rec")],
    "ClosedDescriptor": [ClosedDescriptor("*.rec", nth=4)],
    "SlowRead and ReadError": [SlowRead("*.rec", seconds=0.01), ReadError("*/12.rec")],
    "HungRead": [HungRead("*/05.rec")],
    "WorkerKilled": [WorkerKilled(at=2), OpenError("*/08.rec")],
    "WorkerExited": [WorkerExited(3, sample=6)],
    "WorkerHung": [WorkerHung(at=2)],
    "nothing": [],
}
IN_EVERY_RUN = (
    "ReadError, perhaps",
    "TruncatedFile and CorruptedFile",
    "WorkerHung",
)
"""``python/test_engine.py`` compares most of the others for each reader, in one worker, and
``fake_files/test_fault_matrix.py`` has deaths."""
LOADER = {"num_workers": 2, "batch_size": 4}


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("both") / "records")


@pytest.fixture(name="make", scope="module")
def _make(folder):
    return functools.partial(Records, folder)


@functools.cache
def _reference(make):
    return take_reference(make)


def _run_trial(make, faults, engine, **loader):
    """All that is no matter of time or numbers."""
    outcome = run_trial(
        make, *faults, engine=engine, loader={**LOADER, "timeout": allowed(2), **loader}
    )
    assert (engine, False) == (outcome.request.engine, outcome.timed_out)
    assert (engine == "python") == outcome.reproduce().endswith("engine='python')")
    opens = {
        worker.worker: {os.path.basename(path): opens for path, (opens, *_) in worker.files.items()}
        for worker in outcome.workers
    }
    return {
        "verdict": outcome.judge(_reference(make)).verdict,
        "exception": outcome.exception and outcome.exception.type,
        "delivered": [each.digest for each in outcome.delivered],
        "faults": [(each.matched, each.fired, each.mentioned) for each in outcome.faults],
        "firings": [list(map(_describe_firing, each.firings)) for each in outcome.faults],
        "opens": opens,
        "recovery": outcome.recovery and len(outcome.recovery.delivered),
    }


def _describe_firing(firing):
    return firing.worker, firing.call, os.path.basename(firing.path or ""), firing.fetch


@pytest.mark.parametrize("name", [n if n in IN_EVERY_RUN else slow(n) for n in SCHEDULES])
def test_a_schedule(make, name):
    kernel, python = (_run_trial(make, SCHEDULES[name], engine) for engine in ENGINES)
    assert kernel == python
    assert all(fired for _, fired, _ in python["faults"][:1])


@pytest.mark.parametrize("method", ["forkserver", slow("spawn")])
def test_a_start_method(make, method):
    fault = ReadError("*/05.rec", nth=2)
    options = {"multiprocessing_context": method, "num_workers": 1, "timeout": 60}
    kernel, python = (_run_trial(make, [fault], engine, **options) for engine in ENGINES)
    assert kernel == python
    assert python["faults"] == [(2, 1, 1)]


@pytest.mark.parametrize("kind", [Records, slow(RecordStream)])
def test_a_loader_without_workers(folder, kind):
    make, options = functools.partial(kind, folder), {"num_workers": 0, "timeout": 0}
    kernel, python = (
        _run_trial(make, [ReadError("*/05.rec")], engine, **options) for engine in ENGINES
    )
    assert kernel == python
    assert 4 == python["recovery"]


def test_persistent_workers_are_disarmed(folder):
    loader = alone(Records(folder), persistent_workers=True)
    with inject(ReadError("*.rec", nth=33), require_fired=False, engine="python") as injection:
        assert COUNT == len(list(loader))
    assert COUNT == len(list(loader))
    loader._iterator._shutdown_workers()
    assert (32, 0) == (injection.matched, injection.fired)


def test_a_read_that_hangs_continues_at_the_end_of_the_scope(folder):
    paths = sorted(map(str, folder.iterdir()))[:2]
    loader = alone(Tries(paths, lambda path: open(path, "rb").read(5)))
    with inject(HungRead("*/01.rec"), engine="python") as injection:
        result = epoch(loader, (injection, 1))
        assert 1 == injection.fired
    assert "timed out" in result.text
    assert [0] == result.exit_codes


def test_no_descriptor_is_left(make):
    """The limit is a real one under either engine; here only opens by Python code are noted."""
    faults = [DescriptorExhaustion()]
    for engine in ENGINES:
        finding = _run_trial(make, faults, engine)
        assert ("failed_cleanly", "OSError") == (finding["verdict"], finding["exception"])
        assert (0, "openat", "00.rec", 1) == finding["firings"][0][0]


def test_descriptors_that_are_closed_at_a_sample(folder):
    paths = sorted(map(str, folder.iterdir()))
    fds = {path: os.open(path, os.O_RDONLY) for path in paths}
    findings = [
        _inject(Tries(paths, lambda path: os.pread(fds[path], 5, 0)), engine) for engine in ENGINES
    ]
    assert findings[0] == findings[1]
    assert "OSError: [Errno 9] Bad file descriptor" == findings[0][0][3]
    for fd in fds.values():
        os.close(fd)


def _inject(dataset, engine):
    with inject(ClosedDescriptor("*/03.rec", sample=2), engine=engine) as injection:
        gave = [each.gave for each in epoch(alone(dataset)).batches]
    return gave, [_describe_firing(each) for each in injection.faults[0].firings]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_log_is_left_open(tmp_path, engine):
    """Of ``pytest >log`` every worker has the log; closing it would tell nothing of a dataset."""
    cells = list(itertools.product((os.O_WRONLY, os.O_RDWR), (None, 2)))
    paths = [f"{tmp_path}/{mode}-{sample}" for mode, sample in cells]
    faults = [ClosedDescriptor(path, sample=at) for path, (_, at) in zip(paths, cells, strict=True)]
    descriptors = [
        os.open(path, mode | os.O_CREAT) for path, (mode, _) in zip(paths, cells, strict=True)
    ]
    try:
        with inject(*faults, engine=engine, require_fired=False) as injection:
            epoch(alone(Tries(["", "", "", ""], len)))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert [0, 0, 1, 1] == [each.fired for each in injection.faults]


@pytest.fixture(name="arrays")
def _arrays(tmp_path):
    paths = [tmp_path / f"{number}.npy" for number in range(4)]
    for path in paths:
        np.save(path, np.arange(1000))
    return paths


def _map(path):
    return int(np.memmap(path, np.uint8, mode="r")[-1])


def _read_in_c(path):
    return int(np.fromfile(path, np.uint8).sum())


def test_a_mapping_that_is_to_fail_is_refused(arrays):
    refused = pytest.raises(InvalidArgumentError, match=r"is being mapped.*engine='kernel'")
    fault = ReadError("*/2.npy")
    with refused:
        run_trial(lambda: Reads(arrays, _map), fault, engine="python")
    with refused, inject(fault, engine="python"):
        epoch(alone(Reads(arrays, _map)))


def test_a_check_that_needs_it_does_not_apply(arrays):
    names = ["read-error", "truncated-empty"]
    refused, tried = check_dataset(
        lambda: Reads(arrays, _map), only=names, engine="python", on_fail=None
    )
    assert (refused.applies, tried.applies) == (False, True)
    assert "does not apply to this dataset: a read fault is due" in refused.explanation
    assert "engine='python')" in tried.explanation


def test_what_is_read_in_c_is_reported_where_no_fault_fired(arrays):
    text = r"never fired.*dup in .*_read_in_c \(4\).*only files that Python code opens"
    with (
        pytest.raises(FaultNotFiredError, match=f"(?s){text}"),
        inject(ReadError("*.npy"), engine="python"),
    ):
        assert 4 == len(epoch(alone(Reads(arrays, _read_in_c))).batches)


def test_what_a_forked_child_meets_is_not_reported(folder):
    """It meets the fault, by a count of its own; its word would be taken for the worker's."""
    path = str(folder / "05.rec")
    (gave,), injection = attempt(
        [path], _in_a_child, ReadError("*.rec"), engine="python", require_fired=False
    )
    assert (errno.EIO, 0, 0) == (gave, injection.fired, injection.matched)
    (worker,) = injection.workers
    assert [1] == [
        count for reason, count in worker.unobserved.items() if reason.startswith("fork in")
    ]


def _in_a_child(path):
    child = os.fork()
    if not child:
        try:
            with open(path, "rb") as file:
                file.read()
        except OSError as error:
            os._exit(error.errno or 0)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
