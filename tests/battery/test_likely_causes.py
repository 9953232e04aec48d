"""What a failure is put down to: real datasets, whose defect is known, under the checks.

Those that are slow have tests of the same cause by facts, in test_causes.py.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import lmdb
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks.network.rules import SharedConnection
from support.datasets import SIZE, BySet, Records, RecordStream, Substitutes
from support.network_datasets import ByConnection, ByProcess, UnderLock, answer_squares
from support.results import failure_of, failures_of, result_of
from support.rows import slow
from support.servers import read_all, tcp_server, write_certificate
from support.specimens import ZerosOnError
from support.started_anew import EndsItsWorker, HoldsDelegating, RaisesAtLoading
from support.waiting import allowed

IN_PLACE = "returns a substitute for an unreadable sample"
TRUNCATED, SHORT = "accepts a truncated file", "accepts a short read"
BEFORE = "uses a file that was opened before the fork"
ALL = "returns every sample from every worker (not split with get_worker_info())"
THREAD = "waits for a thread that did not survive the fork"


def _run_checks(dataset: Any, *args: Any, only: Any, **options: Any) -> dict[str, Any]:
    """The result of each of these checks."""
    results = check_dataset(lambda: dataset(*args), only=only, on_fail=None, **options)
    return {each.check: each for each in results}


def _failures(dataset: Any, *args: Any, only: Any, **options: Any) -> dict[str, Any]:
    """The result of each of these checks, which fail."""
    results = failures_of(lambda: dataset(*args), only, **options)
    return {each.check: each for each in results}


def _failure(dataset: Any, *args: Any, only: str, **options: Any) -> Any:
    return failure_of(lambda: dataset(*args), only, **options)


class Tabular(Records):
    """A table, one of whose columns is called "missing"."""

    def __getitem__(self, index: int) -> Any:
        try:
            data, _ = super().__getitem__(index)
        except OSError:
            return {"missing": 1, "value": 0.0}
        return {"missing": 0, "value": float(data[0])}


def test_names_of_columns_are_not_taken_for_words(records):
    result = _failure(Tabular, records, only="read-error")

    assert result.cause == IN_PLACE
    assert "Raise the error instead of catching it" in result.explanation
    assert "skipping" not in result.explanation


class OneBuffer(Records):
    """Reads into one buffer, and never looks at how much came: the rest is that of another."""

    buffer: ClassVar = bytearray(SIZE)

    def __getitem__(self, index: int) -> Any:
        with self.paths[index].open("rb", buffering=0) as file:
            file.readinto(self.buffer)
        return torch.frombuffer(bytes(self.buffer), dtype=torch.uint8)


CONNECTION = "uses a connection that was opened before the fork"


def test_a_connection_from_before_the_fork_is_named(records):
    make = functools.partial(ByConnection, in_worker=False)
    with tcp_server(answer_squares) as address:
        result = _failure(make, records, address, only="workers-agree")

    assert result.verdict == "fails_without_fault"
    assert result.cause == CONNECTION
    host, port = address
    assert f"a connection to {host}:{port}" in result.explanation


@pytest.mark.parametrize("make", [functools.partial(ByConnection, in_worker=True), UnderLock])
def test_a_connection_of_each_worker_or_under_a_lock_is_healthy(records, make):
    """Nobody else sends while a worker has the lock, for which others wait only briefly."""
    with tcp_server(answer_squares) as address:
        result = result_of(lambda: make(records, address), "workers-agree")

    assert result.passed, result.explanation


class Encrypted(ByConnection):
    """Uses TLS."""

    def __init__(self, folder: Path, address: tuple[str, int], certificate: Path) -> None:
        self.context = ssl.create_default_context(cafile=certificate)
        self.context.check_hostname = False
        super().__init__(folder, address, in_worker=False)

    def _connect(self) -> None:
        super()._connect()
        self.connection = self.context.wrap_socket(self.connection)

    def __getitem__(self, index: int) -> Any:
        self.connection.sendall(b"%8d" % index)
        return index, int(self.connection.recv(8))


def test_an_encrypted_connection_from_before_the_fork_is_named(records, tmp_path):
    certificate = write_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def answer(plain: socket.socket) -> None:
        with context.wrap_socket(plain, server_side=True) as connection:
            while data := connection.recv(8):
                connection.sendall(b"%8d" % (int(data) ** 2))

    with tcp_server(answer) as address:
        result = _failure(Encrypted, records, address, certificate, only="workers-agree")

    assert result.cause == CONNECTION
    assert result.outcome.of(SharedConnection)[0].collided


class JoinsLate(ByConnection):
    """One worker uses the connection only once the other one has used it."""

    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        super().__init__(folder, address, in_worker=False)
        self.is_used = multiprocessing.Event()

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info and info.id:
            assert self.is_used.wait(allowed(20))
        sample = super().__getitem__(index)
        if info:
            self.is_used.set()
        return sample


def test_workers_meet_at_a_connection_that_one_uses_later(records):
    with tcp_server(answer_squares) as address:
        result = _failure(JoinsLate, records, address, only="workers-agree")

    assert result.cause == CONNECTION
    assert "two workers sent requests on a connection to" in result.explanation


class OnlyReports(ByConnection):
    """Tells a server which samples it reads, and never wants an answer: healthy."""

    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        super().__init__(folder, address, in_worker=False)

    def __getitem__(self, index: int) -> Any:
        self.connection.sendall(b"%8d" % index)
        return index


def test_reports_on_a_shared_connection_are_healthy(records):
    with tcp_server(read_all) as address:
        result = result_of(lambda: OnlyReports(records, address), "workers-agree")

    assert result.passed, result.explanation


class ConnectsOnce(ByConnection):
    """Does not know that it has been forked."""

    def _connect(self) -> None:
        if not hasattr(self, "connection"):
            super()._connect()


def test_a_connection_of_a_sample_before_the_fork_is_named(records):
    make = functools.partial(ConnectsOnce, in_worker=True)
    checks = "workers-agree, read-before-fork"
    with tcp_server(answer_squares) as address:
        results = _run_checks(make, records, address, only=checks)

    assert results["workers-agree"].passed
    assert results["read-before-fork"].cause == CONNECTION


class ReportsZeros(Records):
    """Reports each sample to a server, on a connection from before the fork."""

    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        super().__init__(folder)
        self.reports = ByConnection(folder, address, in_worker=False)
        self.zeros = ZerosOnError(folder)

    def __getitem__(self, index: int) -> Any:
        self.reports[index]
        return self.zeros[index]


def test_a_connection_explains_no_failure_under_a_fault(records):
    with tcp_server(answer_squares) as address:
        result = _failure(ReportsZeros, records, address, only="read-error")

    assert result.outcome.of(SharedConnection)
    assert result.cause == IN_PLACE


class HoldsConnection(Records):
    """Keeps a connection and a process that it does not use, and has other defects in workers."""

    def __init__(self, folder: Path, address: tuple[str, int], defect: Callable[[], int]) -> None:
        super().__init__(folder)
        self.connection = socket.create_connection(address)
        self.process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.defect = defect

    def __getitem__(self, index: int) -> Any:
        return index, self.defect() if get_worker_info() else 0


def _raise() -> int:
    raise ValueError("bad label")


@pytest.mark.parametrize("defect", [lambda: 1, slow(_raise), slow(lambda: os._exit(3))])
def test_a_connection_that_is_not_used_is_no_cause(records, defect):
    with tcp_server(answer_squares) as address:
        result = _failure(HoldsConnection, records, address, defect, only="workers-agree")

    assert result.cause != CONNECTION
    assert "connection" not in result.explanation


def test_pipes_to_a_process_from_before_the_fork_are_named(records):
    result = _failure(ByProcess, records, only="workers-agree")

    assert not result.passed
    assert result.cause == CONNECTION
    assert "a pipe from another process" in result.explanation


class OwnQueue(Records):
    """Has a queue, whose pipe is for several processes, and makes each sample differently."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.queue = multiprocessing.Queue()

    def __getitem__(self, index: int) -> Any:
        return index, os.getpid()


def test_a_queue_is_made_to_be_shared(records):
    result = _failure(OwnQueue, records, only="workers-agree")

    assert result.verdict == "corrupted"
    assert not result.outcome.of(SharedConnection)
    assert result.cause != CONNECTION


class GivesNext(Records):
    """Takes the next file in place of one that its reader refuses."""

    def __getitem__(self, index: int) -> Any:
        for next_index in range(index, len(self)):
            try:
                return super().__getitem__(next_index)[0]
            except (OSError, ValueError):
                continue
        raise ValueError(self.paths[index])


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (OneBuffer, {"truncated-half": TRUNCATED, "short-read": SHORT}),
        (ZerosOnError, {"truncated-half": IN_PLACE, "truncated-tail": IN_PLACE}),
        (GivesNext, {"truncated-empty": IN_PLACE}),
    ],
    ids=lambda kind: getattr(kind, "__name__", None),
)
def test_each_defect_has_one_cause(dataset, expected, records):
    results = _failures(dataset, records, only=expected)
    assert {name: each.cause for name, each in results.items()} == expected


class FromFile(Records):
    """np.fromfile gives fewer values where a read fails, and raises nothing."""

    def __getitem__(self, index: int) -> Any:
        data = np.fromfile(self.paths[index], dtype=np.uint8)
        return torch.from_numpy(np.resize(data, SIZE) if data.size else np.zeros(SIZE, np.uint8))


def test_readers_that_drop_errors_are_named(records):
    result = _failure(FromFile, records, only="read-error")

    assert result.cause == IN_PLACE
    assert (
        "If your code does not catch the error, the reader does: np.fromfile" in result.explanation
    )


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
        slow(ReadsAtPlaces, 2, {"truncated-half": TRUNCATED, "corrupted-file": ""}),
        slow(ReadsOn, 1, {"truncated-half": TRUNCATED}),
        (ReadsOn, 2, {"workers-agree": BEFORE}),
    ],
)
def test_a_shared_offset_is_the_cause(dataset, workers, causes, archive):
    results = _run_checks(dataset, archive, only=list(causes), loader={"num_workers": workers})

    assert {name: each.cause for name, each in results.items()} == causes


class Remembers(ReadsAtPlaces):
    """Keeps its file open, which does no harm, and that there was an error, which does."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.failed = torch.zeros(1).share_memory_()

    def __getitem__(self, index: int) -> Any:
        if self.failed.item():
            message = "a read has failed before"
            raise RuntimeError(message)
        try:
            return super().__getitem__(index)
        except OSError:
            self.failed.fill_(1)
            raise


class SeeksOn(ReadsAtPlaces):
    """Believes that its file is where it was before the fork, as the buffer of a library does."""

    at = 0

    def __getitem__(self, index: int) -> Any:
        self.file.seek(index * SIZE - self.at, os.SEEK_CUR)
        data = self.file.read(SIZE)
        self.at = index * SIZE + len(data)
        if len(data) < SIZE:
            message = f"{self.file.name} is truncated"
            raise ValueError(message)
        return torch.tensor(list(data), dtype=torch.uint8)


@pytest.mark.parametrize(("dataset", "is_blamed"), [slow(Remembers, False), (SeeksOn, True)])
def test_a_handle_is_the_cause_if_a_second_epoch_fails(archive, dataset, is_blamed):
    options = {"num_workers": 1}
    result = _failure(dataset, archive, only="read-error-halfway", loader=options)

    assert str(result.verdict) == "poisoned", result.explanation
    assert (result.cause == BEFORE) == is_blamed


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
            is_locked = threading.Event()
            threading.Thread(target=self._hold, args=(is_locked,), daemon=True).start()
            is_locked.wait()
        if self.owner != [os.getpid()]:
            self.lock.acquire()
        return super().__getitem__(index)

    def _hold(self, is_locked: threading.Event) -> None:
        with self.lock:
            is_locked.set()
            threading.Event().wait()


class Polling(Records):
    """Looks again and again for what a thread does that the first sample starts."""

    owner: ClassVar[list[int]] = []
    done: ClassVar = False

    def __getitem__(self, index: int) -> Any:
        if not self.owner:
            self.owner.append(os.getpid())
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        while self.owner != [os.getpid()] and not self.done:
            time.sleep(0.007)
        return super().__getitem__(index)


class PollingOfEachProcess(Polling):
    """Starts the thread in each process."""

    def __getitem__(self, index: int) -> Any:
        if self.owner != [os.getpid()]:
            self.owner.clear()
        return super().__getitem__(index)


def test_a_worker_that_polls_for_a_thread_is_explained(records):
    result = _failure(Polling, records, only="read-before-fork", deadline=2)

    assert (str(result.verdict), result.cause) == ("hung", THREAD)
    assert "probably for a thread that exists only in the main process" in result.sentence
    text = result.explanation.split("stacks at the deadline:")[0]
    assert not re.search("retries|still reading|deadline=", text)
    assert result.fix == "start the thread in the worker, on first use"
    twin = result_of(lambda: PollingOfEachProcess(records), "read-before-fork")
    assert (twin.passed, twin.cause) == (True, "")


@pytest.mark.parametrize("dataset", [Pooled, slow(Locked)])
def test_threads_of_the_main_process_are_the_cause(dataset, records):
    result = _failure(dataset, records, only="read-before-fork", deadline=2)

    assert (str(result.verdict), result.cause) == ("hung", THREAD)
    advice = result.explanation.splitlines()[1]
    assert advice.startswith("  This check reads one sample in the main process before the workers")
    assert "Start the pool, or open the decoder, in the worker" in advice
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


@pytest.mark.slow
def test_advice_on_lmdb_can_be_followed(tmp_path):
    """The check reads one sample itself, so "never in the main process" would be of no use."""
    with lmdb.open(str(tmp_path / "data")) as env, env.begin(write=True) as transaction:
        for index in range(16):
            transaction.put(b"%02d" % index, bytes([index] * SIZE))
    result = _failure(LmdbOfEachProcess, tmp_path / "data", only="read-before-fork")
    fixed = result_of(lambda: ClosesBefore(tmp_path / "data"), "read-before-fork")

    assert (str(result.verdict), result.cause) == ("fails_without_fault", BEFORE)
    advice = result.explanation.splitlines()[1]
    assert advice.startswith("  This check reads one sample in the main process before the workers")
    assert "os.getpid(): self.env.close()" in advice
    assert fixed.passed, fixed.explanation


@pytest.mark.slow
@pytest.mark.usefixtures("hash_seeds")
def test_the_order_of_a_set_is_the_cause(records):
    result = _failure(BySet, records, only="pickles")

    assert str(result.verdict) == "corrupted"
    assert result.cause == "orders its samples differently in each process"
    assert "every sample was delivered, but some under the wrong index" in result.explanation
    assert "The order of a set of strings differs between interpreters" in result.explanation
    assert "__getstate__" not in result.explanation


class Endless(IterableDataset[Any]):
    """Gives all its samples in each worker, forever, and reads no shard."""

    def __iter__(self) -> Any:
        return (torch.full((64,), each % 100) for each in itertools.count())


def test_a_stream_without_an_end_has_the_cause_of_one_with_an_end():
    result = _failure(Endless, only="workers-agree", deadline=5)

    assert result.cause == ALL
    assert "get_worker_info()" in result.explanation.splitlines()[1]
    assert "shards" not in result.explanation.splitlines()[0]


class KeepsBuffer(RecordStream):
    """Keeps on self the samples that it has read ahead."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ahead: list[Any] = []

    def __iter__(self) -> Any:
        for sample in super().__iter__():
            self.ahead.append(sample)
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


@pytest.mark.parametrize("kind", [KeepsBuffer, slow(KeepsIterator)])
def test_a_stream_that_resumes_an_interrupted_epoch_is_named(kind, records):
    expected = {"abandoned-epoch": "its defect"}
    only = ("abandoned-epoch", "workers-agree")
    results = _run_checks(kind, records, only=only, expected_failures=expected)

    assert results["workers-agree"].passed
    assert results["abandoned-epoch"].cause == "resumes where an interrupted epoch stopped"
    assert CHECKS["abandoned-epoch"].advice in results["abandoned-epoch"].explanation


EXITED, KILLED = "exited with status 0", f"was killed by signal {signal.SIGRTMIN + 3}"


@pytest.mark.parametrize(
    ("exit_kind", "end", "method"),
    [
        slow("exit", EXITED, "fork"),
        slow("exec", EXITED, "forkserver"),
        ("signal", KILLED, "forkserver"),
    ],
)
def test_a_worker_that_exits_by_itself_is_named(exit_kind, end, method, records):
    loader = {"multiprocessing_context": method, "num_workers": 1}
    result = _failure(EndsItsWorker, records, exit_kind, only="workers-agree", loader=loader)

    headline, *lines = result.explanation.splitlines()
    assert headline.startswith("fails_without_fault: worker ")
    assert headline.endswith(f" {end}.")
    assert result.cause == "terminates a worker without a fault"
    assert "num_workers=0 under python -X faulthandler" in lines[0]
    assert "__getstate__" not in result.explanation


class ExitsOnError(Substitutes, Records):
    errors = (OSError,)

    def substitute(self, _index: int, _error: Exception) -> Any:
        os._exit(3)


def test_a_worker_that_exits_under_a_fault_is_named(records):
    result = _failure(ExitsOnError, records, only="read-error")

    assert result.verdict == "failed_unclearly"
    assert "exited with status 3" in result.sentence
    assert result.cause == "ends a worker instead of raising an error"
    assert result.fix == "raise the error instead of calling os._exit or sys.exit"


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (HoldsDelegating, "raise AttributeError for names that start with '__'"),
        slow(RaisesAtLoading, "Its __setstate__ raises in the worker"),
    ],
)
def test_a_dataset_that_cannot_be_unpickled(records, kind, advice):
    result = _failure(kind, records, only="pickles")

    assert (result.verdict, result.cause) == ("fails_without_fault", "cannot be unpickled")
    assert advice in result.explanation


class GivesLambda(Records):
    """A sample that pickle refuses."""

    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return lambda: index


def test_samples_that_cannot_be_pickled(records):
    options = {"loader": {"collate_fn": list}, "deadline": 2}
    result = _failure(GivesLambda, records, only="workers-agree", **options)

    assert (result.verdict, result.cause) == ("hung", "returns samples that cannot be pickled")
    assert "GivesLambda.__getitem__.<locals>.<lambda>" in result.explanation
    assert "Lambdas, local classes, generators and open files" in result.explanation


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


@pytest.mark.slow
def test_a_class_of_errors_that_claims_another_cause_is_unclear(records):
    for result in _failures(
        ClaimsItIsMissing, records, only=["read-error", "truncated-half"]
    ).values():
        assert result.verdict == "failed_unclearly"
        assert "but blames 'FileNotFoundError', which is not the cause" in result.sentence
        assert "raise OSError(...) from error" in result.sentence
    assert result_of(lambda: ClaimsItIsMissing(records), "file-missing").passed
