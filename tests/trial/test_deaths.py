"""Deaths of workers reach the loop alone, and descriptors that a dataset closes harm no file."""

import contextlib
import errno
import multiprocessing
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Sampler, get_worker_info

from pytest_dataloader_faults import check_dataset, inject, run_trial
from pytest_dataloader_faults._engine.protocol import Channel, FetchStarted
from pytest_dataloader_faults._engine.system import proc
from pytest_dataloader_faults._engine.system.temporary import ClosedByUserError
from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.exceptions import HarnessError, UnusableDatasetError
from pytest_dataloader_faults.faults import OpenError, ReadError, TruncatedFile
from support.datasets import Records, RecordStream
from support.judging import judge_trial

LEAST = 64
"""Descriptors that a dataset opens: more than the plugin has open below 256."""


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
    for number in open_here(pattern):
        os.close(number)


def open_here(pattern: str) -> list[int]:
    links = proc.descriptor_links().items()
    return [int(number) for number, link in links if re.search(pattern, link)]


def close_stacks() -> None:
    close_ours("pytest-dataloader-faults-stacks")


def close_sockets() -> None:
    close_ours(r"^socket:")


class Hanging(Closing):
    def __getitem__(self, index: int) -> Any:
        signal.pause()


class HangingInWorker(Records):
    """Closes the file for stacks in a worker, opens its own files, and hangs."""

    def __getitem__(self, index: int) -> Any:
        close_stacks()
        opened = [os.open(path, os.O_RDWR) for path in self.paths]
        assert opened
        signal.pause()


class KillsAWorker(Sampler):
    """Has a worker die while the loader asks for the next indices, and notes what that raises."""

    def __init__(self, notes, number):
        self.notes = notes
        self.number = number

    def __len__(self):
        return 16

    def __iter__(self):
        for index in range(16):
            if index == 8:
                self._kill()
            yield index

    def _kill(self):
        if os.path.exists(self.notes):  # This is the recovery.
            return
        (worker, *_) = sorted(multiprocessing.active_children(), key=lambda each: each.pid)
        caught = "nothing"
        try:
            os.kill(worker.pid, self.number)
            os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
            sum(range(1000))  # Bytecode at which a signal handler may run.
        except RuntimeError as error:
            caught = str(error)
        with open(self.notes, "w", encoding="utf-8") as file:
            file.write(caught)


@pytest.mark.parametrize(("number", "persistent"), [(signal.SIGKILL, False), (signal.SIGBUS, True)])
def test_a_death_raises_where_the_loop_waits(records, tmp_path, number, persistent):
    notes = tmp_path / "notes"
    loader = {
        "sampler": KillsAWorker(notes, number),
        "num_workers": 2,
        "batch_size": 2,
        "persistent_workers": persistent,
    }
    outcome = run_trial(lambda: Records(records), loader=loader)

    assert notes.read_text() == "nothing"
    assert "is killed by signal" in outcome.exception.text
    assert [each.exitcode for each in outcome.deaths] == [-number]


class ExitsOnShortData(Records):
    """Leaves with status 0, and says nothing, where a file is too short."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except ValueError:
            os._exit(0)


def test_an_exit_with_status_0_is_a_death_too(records, reference):
    outcome = run_trial(lambda: ExitsOnShortData(records), TruncatedFile("*.rec"))
    judgement = judge_trial(outcome, reference)

    assert {each.exitcode for each in outcome.deaths} == {0}
    assert judgement.verdict == "failed_unclearly"
    assert "exited with status 0" in judgement.sentence


class FailsAtTheEnd(RecordStream):
    """The second worker raises when the first has come to the end of its stream, and has left."""

    def __iter__(self):
        yield from super().__iter__()
        if get_worker_info() and get_worker_info().id == 1:
            raise OSError(errno.EIO, "at the end")


def test_a_worker_at_the_end_of_its_stream_has_not_died(records):
    outcome = run_trial(lambda: FailsAtTheEnd(records), loader={"num_workers": 2, "batch_size": 1})

    assert outcome.exception.type == "OSError"
    assert outcome.deaths == ()


@pytest.fixture(name="contents")
def _contents(records) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for path in sorted(records.iterdir())]


def test_a_constructor_that_closes_every_descriptor_keeps_its_files(records, contents, left_behind):
    content = contents()
    message = rf"did not open them: \d+ belonged to .* is now {records}/\d\d\.rec\. Close only"
    with pytest.raises(UnusableDatasetError, match=message):
        check_dataset(lambda: Closing(records, close_all), only="read-error")
    assert contents() == content
    assert left_behind() == []


def test_numbers_that_nothing_took_are_reported_as_closed(records):
    with pytest.raises(UnusableDatasetError, match=r"did not open them: \d+ .* is closed now"):
        take_reference(lambda: Closing(records, close_all, flags=-1))


@pytest.mark.usefixtures("engine")
def test_a_connection_that_became_a_file_is_not_written_to(records, contents):
    content = contents()
    with pytest.raises((UnusableDatasetError, HarnessError), match="did not open them"):
        run_trial(lambda: Closing(records, close_sockets), ReadError("*.rec"))
    assert contents() == content


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("kind", ["constructor", "worker"])
def test_stacks_are_not_written_into_a_file_of_the_dataset(records, contents, kind):
    content = contents()
    make_dataset = {
        "constructor": lambda: Hanging(records, close_stacks),
        "worker": lambda: HangingInWorker(records),
    }[kind]
    loader = {"num_workers": 1, "multiprocessing_context": "fork"}
    outcome = run_trial(make_dataset, loader=loader, deadline=1.0)
    assert outcome.timed_out
    assert f"Process {outcome.workers[0].pid}" in outcome.end.stacks
    assert contents() == content


class Overgrowing(Records):
    """Makes the journal longer than any memory where its samples are made."""

    def __getitem__(self, index: int) -> Any:
        for number in open_here("faults-facts"):
            os.ftruncate(number, 1 << 40)
        return super().__getitem__(index)


def test_workers_do_not_inherit_the_journal(records, left_behind):
    """A worker cannot make it longer than any memory."""
    outcome = run_trial(lambda: Overgrowing(records), loader={"num_workers": 1})
    assert outcome.exception is None
    assert left_behind() == []


def test_a_journal_that_is_longer_than_memory_is_an_error_of_the_trial(records, left_behind):
    with pytest.raises(HarnessError, match=r"was overwritten: its size is \d{13} B"):
        take_reference(lambda: Overgrowing(records))
    assert left_behind() == []


@pytest.mark.usefixtures("engine")
def test_the_end_of_inject_closes_no_file_of_the_test(records):
    sockets = set(open_here("^socket:|faults-supervisor"))
    opened: list[int] = []

    def close_and_open() -> None:
        with inject(OpenError("*.none"), require_fired=False):
            numbers = set(open_here("^socket:|faults-supervisor")) - sockets
            for number in numbers:
                os.close(number)
            opened.extend(os.open(path, os.O_RDONLY) for path in sorted(records.iterdir())[:4])
            assert numbers <= set(opened)

    with pytest.raises(ClosedByUserError):
        close_and_open()
    for number in opened:
        os.close(number)  # It raises where the end of the scope has done so.


def test_a_message_is_not_sent_to_a_socket_of_the_user():
    """A closed connection whose number is another socket's raises, and leaves that open."""
    channel, other_end = Channel.pair()
    os.close(channel.fileno())
    with contextlib.closing(other_end):
        mine, peer = socket.socketpair()
        with mine, peer:
            assert channel.fileno() in (mine.fileno(), peer.fileno())
            with pytest.raises(ClosedByUserError, match=r"is now socket:"):
                channel.send(FetchStarted(1, 1))
            with pytest.raises(ClosedByUserError):
                channel.receive()
            channel.close()
            peer.sendall(b"still open")
            assert mine.recv(10) == b"still open"
