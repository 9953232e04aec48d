"""Reading from a server: bugs, and twins without them.

``served`` has the records at a server while a case is tried.
"""

import contextlib
import multiprocessing
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import requests
import torch

from support.corpus.cases import Case
from support.datasets import Records
from support.network_datasets import content_of_its_length, header_and_content
from support.servers import http_server

_TIMES = 40
"""Records in a row: what the server has is longer than the header before it."""
_URL: list[str] = []


@contextlib.contextmanager
def served(records: Path, folder: Path) -> Iterator[None]:
    """Have each of *records* at a server, many times in a row, in files of *folder*."""
    for path in records.iterdir():
        (folder / path.name).write_bytes(path.read_bytes() * _TIMES)
    with http_server(folder, keep_alive=True) as url:
        _URL[:] = [url]
        yield
    _URL.clear()


class Served(Records):
    """Requests each record from the server, with a timeout, and lets all errors out."""

    limit: float | None = 0.5

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self.url,) = _URL

    def __getitem__(self, index: int) -> Any:
        data = self._fetch(f"{self.url}/{self.paths[index].name}")
        return torch.tensor(list(data), dtype=torch.uint8), index

    def _fetch(self, url: str) -> bytes:
        with urllib.request.urlopen(url, timeout=self.limit) as answer:  # noqa: S310  # our own
            self._require_record(url, answer.headers["Content-Type"])
            return bytes(answer.read())

    def _require_record(self, url: str, kind: str) -> None:
        if kind != "application/octet-stream":
            raise OSError(f"{url}: {kind} in place of a record")


class TakesAnyType(Served):
    """Takes whatever comes with status 200 for a record."""

    def _require_record(self, url: str, kind: str) -> None:
        """Look at nothing."""


class Resumes(Served):
    """Requests a record again if the connection breaks, and starts from nothing: healthy."""

    def _fetch(self, url: str) -> bytes:
        data = bytearray()
        for _ in range(3):
            try:
                with requests.get(url, timeout=self.limit, stream=True) as answer:
                    answer.raise_for_status()
                    self._require_record(url, answer.headers["Content-Type"])
                    self._restart(data)
                    for chunk in answer.iter_content(100):
                        data += chunk
                    return bytes(data[: 64 * _TIMES])
            except requests.RequestException as error:
                last = error
        raise last

    def _restart(self, data: bytearray) -> None:
        data.clear()


class RetryAppends(Resumes):
    """Adds the whole response to the part that came before the connection broke."""

    def _restart(self, data: bytearray) -> None:
        """Keep what there is."""


class ZerosIfRefused(Served):
    """Takes zeros for what the server did not give."""

    limit = 5.0  # A busy machine does not take as long.

    def _fetch(self, url: str) -> bytes:
        try:
            return super()._fetch(url)
        except OSError:
            return bytes(64 * _TIMES)


class AnyErrorIfMissing(Served):
    """Raises an error of its own for what does not exist: healthy, as that is an answer."""

    def _fetch(self, url: str) -> bytes:
        try:
            return super()._fetch(url)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
        return self._miss()

    def _miss(self) -> bytes:
        raise KeyError("no record")


class ZerosIfMissing(AnyErrorIfMissing):
    """Returns zeros for what does not exist."""

    def _miss(self) -> bytes:
        return bytes(64 * _TIMES)


class WithoutLimit(Served):
    """Waits for as long as it takes."""

    limit = None


class ToTheEnd(Served):
    """Speaks HTTP itself, and takes what comes before the end for all of it."""

    def _fetch(self, url: str) -> bytes:
        return header_and_content(url, self.limit)[1]


class OfItsLength(ToTheEnd):
    """Compares what came with the length in the header."""

    def _fetch(self, url: str) -> bytes:
        return content_of_its_length(url, self.limit)


class TakesErrorPage(Served):
    """Takes the page that a server sends with an error status for a record."""

    def _fetch(self, url: str) -> bytes:
        return requests.get(url, timeout=self.limit).content


class RequestsParts(Served):
    """Requests a part of each file, and checks that it is one: healthy."""

    def _fetch(self, url: str) -> bytes:
        answer = requests.get(url, headers={"Range": "bytes=0-63"}, timeout=self.limit)
        answer.raise_for_status()
        self._require_record(url, answer.headers["Content-Type"])
        self._require_part(answer)
        return answer.content

    def _require_part(self, answer: requests.Response) -> None:
        if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
            raise OSError(f"{answer.url}: status {answer.status_code} in place of a part")


class TakesWholeForPart(RequestsParts):
    """Takes whatever comes for the part."""

    def _require_part(self, answer: requests.Response) -> None:
        """Look at nothing."""


class SessionInInit(Served):
    """Requests each record in a session, whose connection is open before the workers start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._open_session()
        self[0]

    def _open_session(self) -> None:
        self.pid, self.session = os.getpid(), requests.Session()

    def _fetch(self, url: str) -> bytes:
        answer = self.session.get(url, timeout=self.limit)
        answer.raise_for_status()
        self._require_record(url, answer.headers["Content-Type"])
        return answer.content


class SessionOfWorker(SessionInInit):
    """Opens another session in each worker."""

    def _fetch(self, url: str) -> bytes:
        if self.pid != os.getpid():
            self._open_session()
        return super()._fetch(url)


class SessionUnderLock(SessionInInit):
    """Keeps the requests of its workers apart."""

    def __init__(self, folder: Path) -> None:
        self.lock = multiprocessing.Lock()
        super().__init__(folder)

    def _fetch(self, url: str) -> bytes:
        with self.lock:
            return super()._fetch(url)


class Downloads(Records):
    """Downloads the records that its folder lacks, each to the file that it reads later."""

    def __init__(self, source: Path, folder: Path) -> None:
        (url,) = _URL
        for name in sorted(os.listdir(source)):
            if not (folder / name).exists():
                self._download(f"{url}/{name}", folder / name)
        super().__init__(folder)

    def _download(self, url: str, path: Path) -> None:
        with urllib.request.urlopen(url, timeout=5) as answer, open(path, "wb") as file:  # noqa: S310  # our own
            while data := answer.read(256):
                file.write(data)

    def __getitem__(self, index: int) -> Any:
        data = self.paths[index].read_bytes()
        return torch.tensor(list(data), dtype=torch.uint8), index


class DownloadsWhole(Downloads):
    """Renames a file once it has the length that the server said."""

    def _download(self, url: str, path: Path) -> None:
        partial = path.with_suffix(".part")
        partial.write_bytes(content_of_its_length(url, 5))
        if partial.stat().st_size != 64 * _TIMES:
            raise OSError(f"{url} has {partial.stat().st_size} bytes, which is no record")
        partial.rename(path)


_OF_LENGTH = {"exclude": ["http-error"]}
"""An error page has the length in its header."""
_OF_FORKED = {"exclude": ["pickles"]}
"""A lock of multiprocessing is for processes that are started in the way of its context."""
_AT_ONCE = "fails_without_fault: two workers sent requests on a connection to 127.0.0.1:"
CASES: tuple[Case, ...] = (
    Case("A9", SessionInInit, "workers-agree", _AT_ONCE, SessionOfWorker),
    Case("A9", SessionInInit, "workers-agree", _AT_ONCE, SessionUnderLock, _OF_FORKED),
    Case("N1", ZerosIfRefused, "connection-error", "corrupted: identical", Served),
    Case("N2", ToTheEnd, "connection-error", "corrupted: is wrong", OfItsLength, _OF_LENGTH),
    Case("N3", WithoutLimit, "hung-read", "hung: without a timeout", Served),
    Case("N4", TakesErrorPage, "http-error", "corrupted: ", Served),
    Case("N5", ZerosIfMissing, "http-error", "corrupted: identical (all zeros)", AnyErrorIfMissing),
    Case("N6", TakesAnyType, "http-error", "corrupted: ", Served),
    Case("N7", RetryAppends, "connection-error", "corrupted: ", Resumes),
    Case("N9", TakesWholeForPart, "http-error", "corrupted: ", RequestsParts),
    Case("N8", Downloads, "connection-error", "poisoned: ", DownloadsWhole),
    Case("N8", Downloads, "http-error", "corrupted: ", DownloadsWhole),
    Case("N8", Downloads, "write-error", "poisoned: ", DownloadsWhole),
)
