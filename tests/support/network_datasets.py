"""Datasets that read over HTTP, with one defect each, and their healthy twins.

Each is made of the URL of a folder with the files ``0.bin``, ``1.bin``, ...
"""

import multiprocessing
import os
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from support.datasets import Records

COUNT, SIZE = 8, 4000


def write_samples(folder: Path) -> Path:
    for index in range(COUNT):
        (folder / f"{index}.bin").write_bytes(bytes([index, 255 - index]) * (SIZE // 2))
    return folder


def header_and_content(url: str, limit: float | None) -> tuple[bytes, bytes]:
    """What a server sends for *url*, by HTTP that is spoken here, up to the end."""
    parts = urlsplit(url)
    where = str(parts.hostname), parts.port or 80
    with socket.create_connection(where, timeout=limit) as connection:
        connection.sendall(f"GET {parts.path} HTTP/1.0\r\n\r\n".encode())
        data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    header, _, content = data.partition(b"\r\n\r\n")
    return header, content


def content_of_its_length(url: str, limit: float | None) -> bytes:
    """The same, compared with the length in the header."""
    header, content = header_and_content(url, limit)
    length = re.search(rb"(?i)content-length: (\d+)", header)
    if length is None or int(length[1]) != len(content):
        message = f"{url}: {len(content)} bytes came, which is not all of it"
        raise OSError(message)
    return content


class ByHttp(Dataset[torch.Tensor]):
    """Reads a sample by urllib, with a timeout, and lets all errors out."""

    limit: float | None = 5.0

    def __init__(self, url: str) -> None:
        self.url = url

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(self.read(f"{self.url}/{index}.bin")), dtype=torch.uint8)

    def read(self, url: str) -> bytes:
        with urllib.request.urlopen(url, timeout=self.limit) as answer:  # noqa: S310  # our own
            return bytes(answer.read())


def content_of_sample(answer: requests.Response) -> bytes:
    answer.raise_for_status()
    if len(answer.content) != SIZE:
        message = f"{answer.url}: {len(answer.content)} bytes instead of {SIZE}"
        raise OSError(message)
    return answer.content


class ByRequests(ByHttp):
    def read(self, url: str) -> bytes:
        return content_of_sample(requests.get(url, timeout=self.limit))


class ZerosOnError(ByRequests):
    def read(self, url: str) -> bytes:
        try:
            return super().read(url)
        except requests.RequestException:
            return bytes(SIZE)


class OfItsLength(ByHttp):
    """Writes the request itself, and compares the length of what came with that of the header."""

    def read(self, url: str) -> bytes:
        return content_of_its_length(url, self.limit)


_FRAME = 8
"""Bytes of a number: a process that reads as many takes no part of what is for another."""


class ByConnection(Records):
    """Requests each record by its number, on a connection that it opens when it is made.

    With *in_worker*, each process opens its own: healthy.
    """

    def __init__(self, folder: Path, address: tuple[str, int], *, in_worker: bool) -> None:
        super().__init__(folder)
        self.address, self.pid = address, 0
        if not in_worker:
            self._connect()
            self.pid = -1

    def _connect(self) -> None:
        self.connection = socket.create_connection(self.address)

    def __getitem__(self, index: int) -> Any:
        if self.pid not in (-1, os.getpid()):
            self._connect()
            self.pid = os.getpid()
        self.connection.sendall(b"%8d" % index)
        return index, int(self.connection.recv(_FRAME, socket.MSG_WAITALL))


class UnderLock(ByConnection):
    """Lets one process after the other use the connection that they share: healthy.

    None waits for it longer than *timeout*, and no request may take longer than 0.9 seconds.
    """

    def __init__(self, folder: Path, address: tuple[str, int], timeout: float = 0.1) -> None:
        super().__init__(folder, address, in_worker=False)
        self.lock, self.timeout = multiprocessing.Lock(), timeout

    def __getitem__(self, index: int) -> Any:
        if not self.lock.acquire(timeout=self.timeout):
            raise TimeoutError("the connection is in use")
        try:
            started = time.monotonic()
            sample = super().__getitem__(index)
        finally:
            self.lock.release()
        if time.monotonic() - started > 0.9:
            raise TimeoutError("the server is too slow")
        return sample


def answer_squares(connection: socket.socket) -> None:
    while data := connection.recv(_FRAME, socket.MSG_WAITALL):
        connection.sendall(b"%8d" % (int(data) ** 2))


_PAUSE = 0.01


class RepeatsSample(ByRequests):
    """Returns the previous sample again if there is one, and otherwise raises the error."""

    previous = b""

    def read(self, url: str) -> bytes:
        try:
            self.previous = super().read(url)
        except requests.RequestException:
            if not self.previous:
                raise
        return self.previous


class RetriesThrice(ByRequests):
    """Its twin: requests again a few times, and then raises the error."""

    def read(self, url: str) -> bytes:
        for _ in range(2):
            try:
                return super().read(url)
            except requests.HTTPError:
                time.sleep(_PAUSE)
        return super().read(url)


class Stream(IterableDataset[torch.Tensor]):
    """Each worker requests its part of the samples."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(start, COUNT, step):
            yield from self.samples_of(requests.get(f"{self.url}/{index}.bin", timeout=5))

    def samples_of(self, answer: requests.Response) -> Iterator[torch.Tensor]:
        yield torch.frombuffer(bytearray(content_of_sample(answer)), dtype=torch.uint8)


class SkipsMissing(Stream):
    """Skips what does not exist, and raises an error for any other status: healthy."""

    def samples_of(self, answer: requests.Response) -> Iterator[torch.Tensor]:
        if answer.status_code != HTTPStatus.NOT_FOUND:
            yield from super().samples_of(answer)
