"""Messages and descriptors over a real socket pair."""

from __future__ import annotations

import os
import socket
import struct
import threading

import psutil
import pytest

from pytest_dataloader_faults._engine.protocol import (
    Channel,
    ExitNow,
    FaultRefused,
    Hello,
    Ready,
    UnknownMessageError,
)
from support.rows import rows


@pytest.fixture(name="ends")
def _ends():
    """Both ends of a connection."""
    left, right = map(Channel, socket.socketpair())
    yield left, right
    left.close()
    right.close()


@rows("reason", ["", "ü", "/data/\udcff", "x" * 300_000])
def test_a_message_arrives_as_it_was(ends, reason):
    """Whatever its size: a long one is longer than the socket's buffer."""
    left, right = ends
    sender = threading.Thread(target=left.send, args=(FaultRefused(reason),))
    sender.start()
    received = right.receive()
    sender.join()
    assert (FaultRefused(reason), []) == received


def test_messages_keep_their_order_and_borders(ends):
    """Several that came at once are told apart."""
    left, right = ends
    for number in range(5):
        left.send(ExitNow(number))
    assert [(ExitNow(number), []) for number in range(5)] == right.ready()
    left.send(ExitNow(5))
    assert (ExitNow(5), []) == right.receive()


def test_descriptors_stay_with_their_message(ends):
    """Also where the kernel hands over a plain message and the next one in one piece."""
    left, right = ends
    with open(os.devnull, "rb") as file:
        left.send(Ready())
        left.send(Hello(0, 1, 2, "kernel"), [file.fileno()])
        left.send(Ready())
    counts = [len(descriptors) for _, descriptors in (right.receive() for _ in range(3))]
    assert [0, 1, 0] == counts


def test_descriptors_travel_along(ends, tmp_path):
    """The other side gets duplicates: same file, other numbers, not inherited by programs."""
    left, right = ends
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_text(path.name)
    files = [os.open(path, os.O_RDONLY) for path in paths]
    left.send(Ready(), files)
    left.send(Ready())
    (_, received), (_, none) = right.receive(), right.receive()
    assert [] == none
    assert [str(path) for path in paths] == [os.readlink(f"/proc/self/fd/{n}") for n in received]
    assert not set(files) & set(received)
    assert [False, False] == [os.get_inheritable(each) for each in received]
    for each in (*files, *received):
        os.close(each)


def test_sixty_one_descriptors_travel_along(ends):
    """The listener, and as many inherited files as a filter program lists."""
    left, right = ends
    with open(os.devnull, encoding="utf-8") as file:
        left.send(Ready(), [file.fileno()] * 61)
    _, received = right.receive()
    assert 61 == len(set(received))
    for each in received:
        os.close(each)


@rows("split", [1, 3, 4, 5, 20])
def test_half_a_message_is_waited_for_without_blocking(ends, split):
    """One look takes what is there; the message comes with the look that completes it."""
    left, right = ends
    message = FaultRefused("a message of some length")
    left.send(message)
    head, tail = right.connection.recv(split), right.connection.recv(1 << 16)
    left.connection.sendall(head)
    assert [] == right.ready()
    left.connection.sendall(tail + head)
    assert [(message, [])] == right.ready()
    left.connection.sendall(tail)
    assert [(message, [])] == right.ready()


def test_an_unknown_message_leaves_no_descriptor_open(ends):
    """Its descriptors are closed with the channel."""
    left, right = ends
    before = psutil.Process().num_fds()
    with open(os.devnull, "rb") as file:
        data = struct.pack("=II", 2, 1) + b"{}"
        socket.send_fds(left.connection, [data], [file.fileno()])
    with pytest.raises(UnknownMessageError):
        right.receive()
    assert psutil.Process().num_fds() == before + 1
    right.close()
    assert psutil.Process().num_fds() == before - 1


@pytest.mark.parametrize("read", [Channel.receive, Channel.ready])
def test_a_closed_connection_is_an_end(ends, read):
    """After the messages that were sent before."""
    left, right = ends
    left.send(Ready())
    left.close()
    assert (Ready(), []) == right.receive()
    with pytest.raises(EOFError):
        read(right)


def test_nothing_is_left_open():
    """Closing both ends closes their descriptors."""
    before = psutil.Process().num_fds()
    for end in map(Channel, socket.socketpair()):
        end.close()
    assert before == psutil.Process().num_fds()
