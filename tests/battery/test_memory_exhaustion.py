"""The check of allocations that fail: retries, threads, hangs, and where it does not apply."""

from __future__ import annotations

import ctypes
import gc
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from support.results import failure_of, result_of

CHECK = "memory-exhaustion"
COUNT, SIZE = 8, 512
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


class Small(Images):
    def load(self, index):
        with open(self.paths[index], "rb") as file:
            return file.read(1000)


def _check(make, folder, **arguments):
    return result_of(lambda: make(folder), CHECK, **arguments)


def _failure(make, folder, **arguments):
    return failure_of(lambda: make(folder), CHECK, **arguments)


def test_a_dataset_that_waits_for_its_thread_hangs(folder):
    result = _failure(LostThread, folder, deadline=2)
    assert (result.verdict, result.cause) == ("hung", "waits forever"), result.explanation


@pytest.mark.parametrize("twin", [InThread, Retry])
def test_a_dataset_that_raises_the_error_passes(folder, twin):
    result = _check(twin, folder)
    assert result.passed, result.explanation
    assert all(trial.fired for trial in result.trials)


def test_it_applies_to_datasets_that_allocate_much(folder):
    result = _check(Small, folder)
    assert not result.applies
    assert "its workers allocate less than 64 KiB at once" in result.explanation
