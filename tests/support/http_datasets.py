"""Datasets over HTTP that do not expect an error page, and their healthy twins."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import requests
import torch
from torch.utils.data import IterableDataset, get_worker_info

from support.network_datasets import COUNT, SIZE, ByHttp, ByRequests

_PAUSE = 0.01


class TakesPage(ByHttp):
    """Takes what comes for data, as ``requests.get`` lets it."""

    def read(self, url: str) -> bytes:
        return requests.get(url, timeout=self.limit).content


class TakesItsFirstBytes(TakesPage):
    """The same, of as few bytes as a label or a header has."""

    def read(self, url: str) -> bytes:
        return super().read(url)[:16].ljust(SIZE, b"\0")


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


class HidesStatus(ByRequests):
    """Raises an error that says nothing."""

    def read(self, url: str) -> bytes:
        try:
            return super().read(url)
        except requests.HTTPError:
            message = "bad sample"
            raise ValueError(message) from None


class BlamesFile(ByRequests):
    """Says that a sample was not found, whatever the status is."""

    def read(self, url: str) -> bytes:
        try:
            return super().read(url)
        except requests.HTTPError:
            raise FileNotFoundError(url) from None


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
        answer.raise_for_status()
        yield torch.frombuffer(bytearray(answer.content), dtype=torch.uint8)


class FromShards(IterableDataset[torch.Tensor]):
    """By webdataset and curl, whose option -f makes it fail with a status."""

    command = "curl -s -f"

    def __init__(self, url: str) -> None:
        self.url = url

    def __iter__(self) -> Iterator[Any]:
        import webdataset

        shards = webdataset.WebDataset(
            f"pipe:{self.command} {self.url}/samples.tar", shardshuffle=False, empty_check=False
        )
        info = get_worker_info()
        for place, sample in enumerate(shards):
            if info is None or place % info.num_workers == info.id:
                yield torch.frombuffer(bytearray(sample["bin"]), dtype=torch.uint8)


class SkipsMissing(Stream):
    """Skips what does not exist, and raises an error for any other status: healthy."""

    def samples_of(self, answer: requests.Response) -> Iterator[torch.Tensor]:
        if answer.status_code != HTTPStatus.NOT_FOUND:
            yield from super().samples_of(answer)


class RemembersMissing(ByRequests):
    """Raises its own error for what does not exist, and does not request it again: healthy."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.missing: set[str] = set()

    def read(self, url: str) -> bytes:
        try:
            return super().read(url) if url not in self.missing else self.miss()
        except requests.HTTPError as error:
            if error.response.status_code != HTTPStatus.NOT_FOUND:
                raise
            self.missing.add(url)
        return self.miss()

    def miss(self) -> bytes:
        message = "no sample"
        raise ValueError(message) from None
