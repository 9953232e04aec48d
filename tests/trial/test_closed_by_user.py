"""A dataset that closes descriptors of the plugin gets nothing written into its own files."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_dataloader_faults import check_dataset, inject, run_trial
from pytest_dataloader_faults._engine.protocol import Channel, FetchStarted
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.ownership import ClosedByUserError
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import InjectionError, UnusableDatasetError
from pytest_dataloader_faults.faults import OpenError, ReadError
from support.datasets import Records

LEAST = 64
"""Descriptors that a dataset opens: more than the plugin has open below 256."""


@pytest.fixture(name="contents")
def _contents(records) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for path in sorted(records.iterdir())]


class Closing(Records):
    """Closes descriptors in its constructor by *close*, then opens its files by *flags*."""

    def __init__(self, folder: Path, close: Callable[[], None], flags: int = os.O_RDWR) -> None:
        super().__init__(folder)
        close()
        opened = self.paths * (LEAST // len(self.paths))
        self.opened = [os.open(path, flags) for path in opened] if flags >= 0 else []


def close_all() -> None:
    """As code does that makes a daemon."""
    os.closerange(3, 256)


def close_ours(pattern: str) -> None:
    """Close the descriptors of this process whose link matches *pattern*."""
    for number in ours(pattern):
        os.close(number)


def ours(pattern: str) -> list[int]:
    """The descriptors of this process whose link matches *pattern*."""
    links = proc.descriptor_links().items()
    return [int(number) for number, link in links if re.search(pattern, link)]


def close_stacks() -> None:
    """Close the file that stacks are written to."""
    close_ours("pytest-dataloader-faults-stacks")


def close_sockets() -> None:
    """Close every connection."""
    close_ours(r"^socket:")


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY | os.O_APPEND], ids=["rw", "append"])
@pytest.mark.parametrize("check", ["workers-agree", "read-error-first"])
def test_a_constructor_that_closes_every_descriptor_keeps_its_files(
    records, contents, left_behind, flags, check
):
    """Nothing is written to the files that got the numbers, and the error names a file."""
    before = contents()
    message = rf"did not open them: \d+ belonged to .* is now {records}/\d\d\.rec\. Close only"
    with pytest.raises(UnusableDatasetError, match=message):
        check_dataset(lambda: Closing(records, close_all, flags), only=check)
    assert contents() == before
    assert left_behind() == []


def test_numbers_that_nothing_took_are_reported_as_closed(records):
    """The dataset is not said to have ended its process."""
    with pytest.raises(UnusableDatasetError, match=r"did not open them: \d+ .* is closed now"):
        take_reference(lambda: Closing(records, close_all, flags=-1))


@pytest.mark.usefixtures("engine")
def test_a_connection_that_became_a_file_is_not_written_to(records, contents):
    """The loader's process talks to the supervisor by a socket, and workers inherit its number."""
    before = contents()
    with pytest.raises((UnusableDatasetError, InjectionError), match="did not open them"):
        run_trial(lambda: Closing(records, close_sockets), ReadError("*.rec"))
    assert contents() == before


class Hanging(Closing):
    """Hangs in a worker, or in the loader's process where that has none."""

    def __getitem__(self, index: int) -> Any:
        signal.pause()


class HangingInWorker(Records):
    """Closes the file for stacks in a worker, opens its own files, and hangs."""

    def __getitem__(self, index: int) -> Any:
        close_stacks()
        opened = [os.open(path, os.O_RDWR) for path in self.paths]
        assert opened
        signal.pause()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("kind", ["constructor", "worker"])
def test_stacks_are_not_written_into_a_file_of_the_dataset(records, contents, kind):
    """At the deadline a process writes its stacks to a number, if that is still its own."""
    before = contents()
    make_dataset = {
        "constructor": lambda: Hanging(records, close_stacks),
        "worker": lambda: HangingInWorker(records),
    }[kind]
    outcome = run_trial(make_dataset, loader={"num_workers": 1}, deadline=1.0)
    assert outcome.timed_out
    assert f"Process {outcome.workers[0].pid}" in outcome.stacks
    assert contents() == before


class Overgrowing(Records):
    """Makes the journal longer than any memory where its samples are made."""

    def __getitem__(self, index: int) -> Any:
        for number in ours("faults-facts"):
            os.ftruncate(number, 1 << 40)
        return super().__getitem__(index)


def test_workers_do_not_inherit_the_journal(records, left_behind):
    """A worker cannot make it longer than any memory."""
    outcome = run_trial(lambda: Overgrowing(records), loader={"num_workers": 1})
    assert outcome.exception is None
    assert left_behind() == []


def test_a_journal_that_is_longer_than_memory_is_an_error_of_the_trial(records, left_behind):
    """It says how long the file is, and no MemoryError reaches the user."""
    with pytest.raises(InjectionError, match=r"was overwritten: its size is \d{13} B"):
        take_reference(lambda: Overgrowing(records))
    assert left_behind() == []


@pytest.mark.usefixtures("engine")
def test_the_end_of_inject_closes_no_file_of_the_test(records):
    """The numbers of its connection may be those of files that the test has opened meanwhile."""
    before = set(ours("^socket:|faults-supervisor"))
    taken: list[int] = []

    def close_and_open() -> None:
        with inject(OpenError("*.none"), require_fired=False):
            numbers = set(ours("^socket:|faults-supervisor")) - before
            for number in numbers:
                os.close(number)
            taken.extend(os.open(path, os.O_RDONLY) for path in sorted(records.iterdir())[:4])
            assert numbers <= set(taken)

    with pytest.raises(ClosedByUserError):
        close_and_open()
    for number in taken:
        os.close(number)  # It raises where the end of the scope has done so.


def test_a_message_is_not_sent_to_a_socket_of_the_user():
    """A closed connection whose number is another socket's raises, and leaves that open."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    os.close(channel.fileno())
    with theirs:
        mine, other = socket.socketpair()
        with mine, other:
            assert channel.fileno() in (mine.fileno(), other.fileno())
            with pytest.raises(ClosedByUserError, match=r"is now socket:"):
                channel.send(FetchStarted(1, 1, 0.0))
            with pytest.raises(ClosedByUserError):
                channel.receive()
            channel.close()
            other.sendall(b"still open")
            assert mine.recv(10) == b"still open"
