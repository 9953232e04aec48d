"""Datasets whose allocations fail: those that hide it fail the check, and their twins do not."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, get_worker_info

from pytest_dataloader_faults import Contract, run_trial
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults._trial.process import deadline
from pytest_dataloader_faults.faults import MemoryExhaustion
from support.judging import judge_trial
from support.results import failure_of, result_of
from support.rows import rows, slow

CHECK = "memory-exhaustion"
COUNT, SIZE = 8, 512
SUBSTITUTES = "returns a substitute for an unreadable sample"
LIBC = ctypes.CDLL(None)
LIBC.malloc.restype, LIBC.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """Gray images of 256 KiB, as raw bytes and as PNG files."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(COUNT):
        pixels = np.full((SIZE, SIZE), number + 1, np.uint8)
        pixels[:, :number] = 0
        (folder / f"{number:02d}.raw").write_bytes(pixels.tobytes())
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


class Images:
    """Each sample is an image, by one library. An error of an allocation reaches the loader."""

    suffix = ".raw"

    def __init__(self, folder):
        self.paths = sorted(folder.glob(f"*{self.suffix}"))

    def __len__(self):
        return COUNT

    def load(self, index):
        return self.paths[index].read_bytes()

    def __getitem__(self, index):
        return self.load(index)


class OfNumPy(Images):
    def load(self, index):
        return np.fromfile(self.paths[index], np.uint8)


class OfTorch(Images):
    def load(self, index):
        with open(self.paths[index], "rb") as file:
            tensor = torch.empty(SIZE * SIZE, dtype=torch.uint8)
            file.readinto(tensor.numpy())
        return tensor


class OfPillow(Images):
    suffix = ".png"

    def load(self, index):
        with Image.open(self.paths[index]) as image:
            return np.asarray(image)


class OfStringIO(Images):
    """It reads block by block, into a buffer that grows."""

    def load(self, index):
        buffer = io.BytesIO()
        with open(self.paths[index], "rb", buffering=0) as file:
            while block := file.read(4096):
                buffer.write(block)
        return buffer.getvalue()


class InThread(Images):
    pool = None

    def __getitem__(self, index):
        self.pool = self.pool or ThreadPoolExecutor(2)
        return self.pool.submit(self.load, index).result()


class Retry(Images):
    """It frees memory, and tries again."""

    attempts = 4

    def __getitem__(self, index):
        for attempt in range(self.attempts):
            try:
                return self.load(index)
            except MemoryError:
                if attempt == self.attempts - 1:
                    raise
                gc.collect()
        return None


class Stream(IterableDataset):
    def __init__(self, folder):
        self.images = Images(folder)

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, COUNT, step):
            yield self.load(index)

    def load(self, index):
        return self.images[index]


class ZerosForAnyError(OfNumPy):
    def __getitem__(self, index):
        try:
            return self.load(index)
        except Exception:  # noqa: BLE001  # the flaw
            return np.broadcast_to(np.uint8(0), SIZE * SIZE)


class ZerosOfTorch(OfTorch):
    """The error of torch is a RuntimeError."""

    def __getitem__(self, index):
        try:
            return self.load(index)
        except RuntimeError:
            return torch.zeros(1, dtype=torch.uint8).expand(SIZE * SIZE)


class FirstInstead(Images):
    def __getitem__(self, index):
        try:
            return self.load(index)
        except MemoryError:
            return self.load(0) if index else b""


class PreviousInstead(OfPillow):
    previous = None

    def __getitem__(self, index):
        with contextlib.suppress(MemoryError, OSError):
            self.previous = self.load(index)
        return self.previous


class StreamOfZeros(Stream):
    def load(self, index):
        try:
            return self.images[index]
        except MemoryError:
            return "nothing"


class RetryForever(Images):
    def __getitem__(self, index):
        while True:
            try:
                return self.load(index)
            except MemoryError:
                time.sleep(0.5)  # Most of the time, whenever someone looks.


class LostThread(Images):
    """Its thread ends at the first error, and the worker waits for it."""

    thread = None

    def __getitem__(self, index):
        if self.thread is None:
            self.requests, self.results = queue.Queue(), queue.Queue()
            self.thread = threading.Thread(target=self.run, daemon=True)
            self.thread.start()
        self.requests.put(index)
        return self.results.get()

    def run(self):
        while True:
            self.results.put(self.load(self.requests.get()))


class UncheckedMalloc(Images):
    """C code that uses what malloc(3) returned, which is NULL."""

    def load(self, index):
        address = LIBC.malloc(ctypes.c_size_t(SIZE * SIZE))
        ctypes.memset(address, 0, SIZE * SIZE)
        LIBC.free(address)
        return super().load(index)


class AbortingLibrary(Images):
    """Like C++ code that does not catch std::bad_alloc."""

    def load(self, index):
        address = LIBC.malloc(ctypes.c_size_t(SIZE * SIZE))
        if address is None:
            os.abort()
        LIBC.free(address)
        return super().load(index)


class Unclear(Images):
    def __getitem__(self, index):
        try:
            return self.load(index)
        except MemoryError:
            raise ValueError("bad image") from None


class Small(Images):
    def load(self, index):
        with open(self.paths[index], "rb") as file:
            return file.read(1000)


def _check(make, folder, **arguments):
    return result_of(lambda: make(folder), CHECK, **arguments)


def _failure(make, folder, **arguments):
    return failure_of(lambda: make(folder), CHECK, **arguments)


@pytest.mark.parametrize(
    ("specimen", "verdict", "cause"),
    [
        (ZerosForAnyError, "corrupted", SUBSTITUTES),
        (ZerosOfTorch, "corrupted", SUBSTITUTES),
        slow(FirstInstead, "corrupted", SUBSTITUTES),
        slow(PreviousInstead, "corrupted", SUBSTITUTES),
        (StreamOfZeros, "corrupted", SUBSTITUTES),
        (UncheckedMalloc, "failed_unclearly", "crashes when an allocation fails"),
        slow(AbortingLibrary, "failed_unclearly", "crashes when an allocation fails"),
        (Unclear, "failed_unclearly", "raises an error that hides its cause"),
    ],
)
def test_a_dataset_that_hides_the_error_fails(folder, specimen, verdict, cause):
    """Each worker reads two batches, so that the sample is not the first one of its worker."""
    result = _failure(specimen, folder, loader={"batch_size": 2})
    assert (result.verdict, result.finding.cause.phrase) == (verdict, cause), result.explanation
    assert all(trial.fired for trial in result.trials)


def test_zeros_are_found_in_a_batch_of_several_samples(folder):
    """An error for another sample of the batch would hide them."""
    result = _failure(ZerosForAnyError, folder, loader={"batch_size": 4})
    assert result.verdict == "corrupted", result.explanation


@pytest.mark.parametrize(
    ("specimen", "cause"),
    [(RetryForever, "sleeps between retries past the deadline"), (LostThread, "waits forever")],
)
def test_a_dataset_that_waits_hangs(folder, specimen, cause, monkeypatch):
    monkeypatch.setattr(deadline, "MORE_SECONDS", 3.0)
    result = _failure(specimen, folder, deadline=3)
    assert (result.verdict, result.finding.cause.phrase) == ("hung", cause), result.explanation


@pytest.mark.parametrize(
    "twin", [*map(slow, (Images, OfNumPy, OfTorch, OfStringIO)), InThread, Stream, Retry]
)
def test_a_dataset_that_raises_the_error_passes(folder, twin):
    result = _check(twin, folder)
    assert result.passed, result.explanation
    verdicts = ["survived" if twin is Retry else "failed_cleanly", "failed_cleanly"]
    reference = take_reference(lambda: twin(folder))
    assert [judge_trial(trial, reference).verdict for trial in result.trials] == verdicts
    assert all(trial.fired for trial in result.trials)


def test_pillow_gets_smaller_blocks(folder):
    result = _check(OfPillow, folder)
    assert result.verdict in ("survived", "failed_cleanly"), result.explanation
    assert result.outcome.fired > 0


def test_a_retry_survives_an_allocation_that_fails_once(folder):
    reference = take_reference(lambda: Retry(folder))
    outcome = run_trial(lambda: Retry(folder), MemoryExhaustion(times=1))
    assert judge_trial(outcome, reference).verdict == "survived"
    assert outcome.fired


def test_a_contract_allows_a_substitute(folder):
    result = _check(FirstInstead, folder, contract=Contract(may_substitute=True))
    assert result.passed, result.explanation


def test_it_applies_to_datasets_that_allocate_much(folder):
    result = _check(Small, folder)
    assert not result.applies
    assert "its workers allocate less than 64 KiB at once" in result.explanation


@pytest.fixture(name="reference", scope="module")
def _reference(folder):
    return take_reference(lambda: ZerosForAnyError(folder))


@rows(
    "fault",
    [
        MemoryExhaustion(1 << 40),
        MemoryExhaustion(sample=COUNT),
        MemoryExhaustion(nth=10**6),
        MemoryExhaustion(workers=(99,)),
    ],
)
def test_disarmed_it_shows_nothing(folder, fault, reference):
    """The wrong dataset is right as long as nothing fails."""
    outcome = run_trial(lambda: ZerosForAnyError(folder), fault)
    assert judge_trial(outcome, reference).verdict == "not_exercised"
