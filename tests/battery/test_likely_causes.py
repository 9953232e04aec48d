"""What a failure is put down to: real datasets, whose defect is known, under the checks."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import lmdb
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults._trial.process import fork_server
from support.datasets import SIZE, BySet, Records, RecordStream
from support.started_anew import EndsItsWorker, HoldsDelegating, RaisesAtLoading

IN_PLACE = "gives a sample in place of one that cannot be read"
TRUNCATED, SHORT = "accepts a truncated file", "accepts a short read"
BEFORE = "uses a file that was opened before the fork"
ALL = "each worker gives all samples (not split by get_worker_info())"
THREAD = "waits for a thread that was started before the fork"
CONTENT = ("truncated-half", "truncated-empty", "truncated-tail", "short-read")


def _ask(dataset: Any, *args: Any, only: Any, **options: Any) -> dict[str, Any]:
    """The result of each of these checks."""
    found = check_dataset(lambda: dataset(*args), only=only, on_fail=None, **options)
    return {each.check: each for each in found}


class Tabular(Records):
    """A table, one of whose columns is called "missing"."""

    def __getitem__(self, index: int) -> Any:
        try:
            data, _ = super().__getitem__(index)
        except OSError:
            return {"missing": 1, "value": 0.0}
        return {"missing": 0, "value": float(data[0])}


def test_names_of_columns_are_not_taken_for_words(records):
    """A sample that has a part called "missing" is not missing."""
    found = _ask(Tabular, records, only="read-error-first")["read-error-first"]

    assert found.cause == IN_PLACE
    assert "Raise the error instead of catching it" in found.explanation
    assert "leaving out" not in found.explanation


class OneBuffer(Records):
    """Reads into one buffer, and never looks at how much came: the rest is that of another."""

    buffer: ClassVar = bytearray(SIZE)

    def __getitem__(self, index: int) -> Any:
        with self.paths[index].open("rb", buffering=0) as file:
            file.readinto(self.buffer)
        return torch.frombuffer(bytes(self.buffer), dtype=torch.uint8)


class GivesZeros(Records):
    """Catches whatever its reader raises."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except (OSError, ValueError):
            return torch.zeros(SIZE, dtype=torch.uint8), index


class GivesNext(Records):
    """Takes the next file in place of one that its reader refuses."""

    def __getitem__(self, index: int) -> Any:
        for other in range(index, len(self)):
            try:
                return super().__getitem__(other)[0]
            except (OSError, ValueError):
                continue
        raise ValueError(self.paths[index])


class GivesZerosUnlessShort(Records):
    """Catches errors of reads, and takes as it is what is short."""

    def __getitem__(self, index: int) -> Any:
        try:
            data = self.paths[index].read_bytes()
        except OSError:
            return torch.zeros(SIZE, dtype=torch.uint8)
        return torch.tensor(list(data), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("dataset", "checks", "expected"),
    [
        (
            OneBuffer,
            ("read-error-first", *CONTENT),
            {**dict.fromkeys(CONTENT[:3], TRUNCATED), "short-read": SHORT},
        ),
        (GivesZeros, CONTENT[:3], dict.fromkeys(CONTENT[:3], IN_PLACE)),
        (GivesNext, CONTENT[1:2], {CONTENT[1]: IN_PLACE}),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_each_defect_has_one_cause(dataset, checks, expected, records):
    """What nobody looks at is accepted; what somebody catches is given in place of a sample."""
    found = _ask(dataset, records, only=checks)
    assert {name: each.cause for name, each in found.items() if each.cause} == expected


def test_two_defects_have_two_causes(records):
    """All that came alike are named, and that it is zeros; shapes are those of the dataset."""
    found = _ask(GivesZerosUnlessShort, records, only=("read-error-first", "truncated-half"))
    first = {name: each.explanation.splitlines()[0] for name, each in found.items()}

    alike = "samples 0 to 15 came alike, all zeros; in the reference they differ, and no exception"
    shorter = "torch.uint8 (32,) instead of torch.Tensor torch.uint8 (64,), and no exception"
    assert alike in first["read-error-first"]
    assert shorter in first["truncated-half"]
    assert [each.cause for each in found.values()] == [IN_PLACE, TRUNCATED]


class FromFile(Records):
    """np.fromfile gives fewer values where a read fails, and raises nothing."""

    def __getitem__(self, index: int) -> Any:
        data = np.fromfile(self.paths[index], dtype=np.uint8)
        return torch.from_numpy(np.resize(data, SIZE) if data.size else np.zeros(SIZE, np.uint8))


def test_readers_that_drop_errors_are_named(records):
    """Where nothing in the dataset catches an error, the advice leads to its reader."""
    found = _ask(FromFile, records, only="read-error-first")["read-error-first"]

    assert found.cause == IN_PLACE
    assert "If nothing catches it, the reader does: np.fromfile" in found.explanation


class ReadsAtPlaces(Dataset[Any]):
    """One file, opened in ``__init__`` and read by pread(2), which moves no offset."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb", buffering=0)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        data = os.pread(self.file.fileno(), SIZE, index * SIZE)
        return torch.tensor(list(data), dtype=torch.uint8)


class ReadsOn(ReadsAtPlaces):
    """The same by seek and read."""

    def __getitem__(self, index: int) -> Any:
        self.file.seek(index * SIZE)
        return torch.tensor(list(self.file.read(SIZE)), dtype=torch.uint8)


@pytest.fixture(name="archive")
def _archive(tmp_path):
    path = tmp_path / "records.bin"
    path.write_bytes(bytes(each % 251 for each in range(16 * SIZE)))
    return path


@pytest.mark.parametrize(
    ("dataset", "workers", "causes"),
    [
        (ReadsAtPlaces, 2, {"truncated-half": TRUNCATED, "corrupted-file": ""}),
        (ReadsOn, 1, {"truncated-half": TRUNCATED}),
        (ReadsOn, 2, {"workers-agree": BEFORE}),
    ],
)
def test_an_offset_is_blamed_where_workers_share_one(dataset, workers, causes, archive):
    """What is in a file that was open before is no matter of its handle."""
    found = _ask(dataset, archive, only=list(causes), loader={"num_workers": workers})

    assert {name: each.cause for name, each in found.items()} == causes


class Pooled(Records):
    """Reads in a thread of a pool that the first sample starts."""

    pool: ClassVar[list[ThreadPoolExecutor]] = []

    def __getitem__(self, index: int) -> Any:
        if not self.pool:
            self.pool.append(ThreadPoolExecutor(1))
        return self.pool[0].submit(super().__getitem__, index).result()


class Locked(Records):
    """A thread that the first sample starts holds a lock, which other processes wait for."""

    lock: ClassVar = threading.Lock()
    owner: ClassVar[list[int]] = []

    def __getitem__(self, index: int) -> Any:
        if not self.owner:
            self.owner.append(os.getpid())
            taken = threading.Event()
            threading.Thread(target=self._hold, args=(taken,), daemon=True).start()
            taken.wait()
        if self.owner != [os.getpid()]:
            self.lock.acquire()
        return super().__getitem__(index)

    def _hold(self, taken: threading.Event) -> None:
        with self.lock:
            taken.set()
            threading.Event().wait()


@pytest.mark.parametrize("dataset", [Pooled, Locked])
def test_threads_of_the_main_process_are_told_of(dataset, records):
    """A hang in a lock is put down to threads, and not to a handle; who read first is said."""
    found = _ask(dataset, records, only="used-before", deadline=4)["used-before"]

    assert (str(found.verdict), found.cause) == ("hung", THREAD)
    advice = found.explanation.splitlines()[1]
    assert advice.startswith("  This check reads one sample in the main process before the workers")
    assert "start the pool, or open the decoder, in the worker" in advice
    assert "handle" not in advice


class LmdbOfEachProcess(Dataset[Any]):
    """Opens its environment once per process, although the one of the main process is open."""

    closes = False

    def __init__(self, folder: Path) -> None:
        self.folder, self.env, self.pid = folder, None, 0

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        if self.pid != os.getpid():
            if self.closes and self.env is not None:
                self.env.close()
            self.env = lmdb.open(str(self.folder), readonly=True, lock=False)
            self.pid = os.getpid()
        with self.env.begin() as transaction:
            return torch.tensor(list(transaction.get(b"%02d" % index)))


class ClosesBefore(LmdbOfEachProcess):
    """The same as the advice says."""

    closes = True


def test_advice_on_lmdb_can_be_followed(tmp_path):
    """The check reads one sample itself, so "never in the main process" would be of no use."""
    with lmdb.open(str(tmp_path / "data")) as env, env.begin(write=True) as transaction:
        for index in range(16):
            transaction.put(b"%02d" % index, bytes([index] * SIZE))
    found, mended = (
        _ask(kind, tmp_path / "data", only="used-before")["used-before"]
        for kind in (LmdbOfEachProcess, ClosesBefore)
    )

    assert (str(found.verdict), found.cause) == ("broken", BEFORE)
    advice = found.explanation.splitlines()[1]
    assert advice.startswith("  This check reads one sample in the main process before the workers")
    assert "os.getpid(): self.env.close()" in advice
    assert mended.passed, mended.explanation


@pytest.fixture(name="hash_seeds")
def _hash_seeds(monkeypatch):
    """Each interpreter has its own. tox sets PYTHONHASHSEED, which a fork server keeps."""
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    monkeypatch.setattr(fork_server, "_started", [])
    yield
    for each in fork_server._started:
        each.kill()


@pytest.mark.usefixtures("hash_seeds")
def test_the_order_of_a_set_is_told_of(records):
    """The samples that come are the same, for other indices, where workers are not forked."""
    found = _ask(BySet, records, only="pickles")["pickles"]

    assert str(found.verdict) == "corrupted"
    assert found.cause == "has another order of samples in each process"
    assert "every sample came, but some for the indices of others" in found.explanation
    assert "The order of a set of str differs in each interpreter" in found.explanation
    assert "__getstate__" not in found.explanation


class Endless(IterableDataset[Any]):
    """Gives all its samples in each worker, forever, and reads no shard."""

    def __iter__(self) -> Any:
        return (torch.full((64,), each % 100) for each in itertools.count())


def test_a_stream_without_an_end_has_the_cause_of_one_with_an_end():
    """Each worker gives the same, and the remedy is the same."""
    found = _ask(Endless, only="workers-agree", deadline=5)["workers-agree"]

    assert found.cause == ALL
    assert "get_worker_info()" in found.explanation.splitlines()[1]
    assert "shards" not in found.explanation.splitlines()[0]


class KeepsBuffer(RecordStream):
    """Keeps on self the samples that it has read ahead."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ahead: list[Any] = []

    def __iter__(self) -> Any:
        for each in super().__iter__():
            self.ahead.append(each)
            if len(self.ahead) > 2:
                yield self.ahead.pop(0)
        while self.ahead:
            yield self.ahead.pop(0)


class KeepsIterator(RecordStream):
    """Keeps its iterator on self until it is used up."""

    iterator: Any = None

    def __iter__(self) -> Any:
        self.iterator = self.iterator or super().__iter__()
        yield from self.iterator
        self.iterator = None


@pytest.mark.parametrize("kind", [KeepsBuffer, KeepsIterator])
def test_a_stream_that_goes_on_where_it_was_left_is_told(kind, records):
    """It is split well, and its workers agree, as long as each epoch comes to its end."""
    found = _ask(kind, records, only=("abandoned-epoch", "workers-agree"))

    assert found["workers-agree"].passed
    assert found["abandoned-epoch"].cause == "goes on where an epoch was left"
    assert "begin each __iter__ anew" in found["abandoned-epoch"].explanation


EXITED, KILLED = "exited with status 0", f"was killed by signal {signal.SIGRTMIN + 3}"


@pytest.mark.parametrize(
    ("how", "end", "method"),
    [
        ("exit", EXITED, "fork"),
        ("exec", EXITED, "forkserver"),
        ("signal", KILLED, "forkserver"),
    ],
)
def test_a_worker_that_ends_by_itself_is_told(how, end, method, records):
    """The first sentence says how it ended; pickle has no part in that."""
    loader = {"multiprocessing_context": method, "num_workers": 1}
    found = _ask(EndsItsWorker, records, how, only="workers-agree", loader=loader)["workers-agree"]

    first, *more = found.explanation.splitlines()
    assert first.startswith("broken: fails without any fault: worker ")
    assert first.endswith(f" {end}.")
    assert found.cause == "ends a worker without a fault"
    assert "num_workers=0 under python -X faulthandler" in more[0]
    assert "__getstate__" not in found.explanation


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (HoldsDelegating, "raise AttributeError for each name that begins with '__'"),
        (RaisesAtLoading, "Its __setstate__ raises in the worker"),
    ],
)
def test_a_dataset_that_cannot_be_unpickled(records, kind, advice):
    """The worker ends as it loads the dataset, and has printed where."""
    found = _ask(kind, records, only="pickles")["pickles"]

    assert (found.verdict, found.cause) == ("broken", "cannot be unpickled")
    assert advice in found.explanation


class GivesLambda(Records):
    """A sample that pickle refuses."""

    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return lambda: index


def test_samples_that_cannot_be_pickled(records):
    """The loader waits for ever; the queue's thread in the worker has printed why."""
    options = {"loader": {"collate_fn": list}, "deadline": 3}
    found = _ask(GivesLambda, records, only="workers-agree", **options)["workers-agree"]

    assert (found.verdict, found.cause) == ("hung", "gives samples that cannot be pickled")
    assert "GivesLambda.__getitem__.<locals>.<lambda>" in found.explanation
    assert "Lambdas, local classes, generators and open files" in found.explanation


class ClaimsItIsMissing(Records):
    """Raises a FileNotFoundError for whatever its reader raises."""

    def __getitem__(self, index: int) -> Any:
        try:
            return self._read(index)
        except Exception:  # noqa: BLE001  # that is the bug
            raise FileNotFoundError(self.paths[index])  # noqa: B904  # without its cause

    def _read(self, index: int) -> Any:
        content = self.paths[index].read_bytes()
        if len(content) != SIZE:
            message = f"{self.paths[index]} is truncated"
            raise ValueError(message)
        return torch.tensor(list(content))


def test_a_class_of_errors_that_claims_another_cause_is_unclear(records):
    """Of a disk that fails and of a truncated file it is false, and of a missing one true."""
    only = ["read-error-first", "truncated-half", "file-missing"]
    found = _ask(ClaimsItIsMissing, records, only=only)
    verdicts = [found[name].verdict for name in only]
    assert verdicts == ["failed_unclearly", "failed_unclearly", "failed_cleanly"]
    for name in only[:2]:
        assert "but 'FileNotFoundError', which is another cause" in found[name].sentence
        assert "raise OSError(...) from error" in found[name].sentence
