"""Who talks to a supervisor: others are sent away, and so is whoever sends what it cannot read."""

import contextlib
import json
import os
import re
import signal
import socket
import struct
from pathlib import Path

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.system.proc import is_below, is_dead
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults.faults import ReadError
from support.datasets import Records
from support.epochs import alone, epoch
from support.waiting import until

_NAME = re.compile(r"@(pytest-dataloader-faults-(\d+)-\S+)")
_SLOW = 500
_ROUNDS = 20
_MIB = 1 << 20


def _message(body, descriptors=0):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return struct.pack("=II", len(text), descriptors) + text


def _worker(**fields):
    hello = {"type": "Hello", "worker": 0, "loader": 1, "pid": os.getpid()}
    return {**hello, **fields}


def _endless(line):
    """A message that says it is of 4 GiB, and is on its way."""
    line.sendall(struct.pack("=II", (1 << 32) - 1, 0))
    for _ in range(64):
        line.sendall(bytes(_MIB))


def _descriptors(line):
    with open(os.devnull, "rb") as file:
        for _ in range(64):
            socket.send_fds(line, [b"x"], [file.fileno()] * 60)


def _forge_worker(line):
    hello = _worker(inherited=[], mapped=[], high_fds=[512, 1024])
    with open(os.devnull, "rb") as file:
        socket.send_fds(line, [_message(hello, 1)], [file.fileno()])


ATTACKS = {"4 GiB": _endless, "descriptors": _descriptors, "a forged worker": _forge_worker}


def _addresses(tester):
    """Those of *tester* and the processes below it: others may run other tests meanwhile."""
    names = _NAME.findall(Path("/proc/net/unix").read_text(encoding="utf-8"))
    return {f"\0{name}" for name, pid in names if is_below(int(pid), {tester})}


def _attack_forever(attack, counter_fd, tester):
    """Each round connects to every supervisor of *tester*; each connection writes a byte."""
    lines = []
    while not is_dead(tester):
        for address in _addresses(tester):
            line = socket.socket(socket.AF_UNIX)
            line.settimeout(1)
            with contextlib.suppress(OSError):
                line.connect(address)
                os.write(counter_fd, b"1")
                attack(line)
            lines.append(line)
        while len(lines) > _SLOW:
            lines.pop(0).close()


@contextlib.contextmanager
def _start_attack(attack):
    """A process that descends from none of ours attacks; given is the file of its connections."""
    ours, theirs = os.pipe()
    tester, middle = os.getpid(), fork()
    if not middle:
        parent = os.getpid()
        if not (stranger := fork()):
            with contextlib.suppress(BaseException):
                until(lambda: os.getppid() != parent)
                _attack_forever(attack, theirs, tester)
            os._exit(1)
        os.write(theirs, stranger.to_bytes(4, "little"))
        os._exit(0)
    os.waitpid(middle, 0)
    os.close(theirs)
    stranger = int.from_bytes(os.read(ours, 4), "little")
    end = os.pidfd_open(stranger)
    os.set_blocking(ours, False)
    try:
        yield ours
    finally:
        signal.pidfd_send_signal(end, signal.SIGKILL)
        os.close(end)
        os.close(ours)


def _wait_for_rounds(connections):
    sizes = []

    def enough():
        with contextlib.suppress(BlockingIOError):
            sizes.append(len(os.read(connections, 1 << 16)))
        return sum(sizes) >= _ROUNDS

    assert until(enough)


def _usage(pid):
    """The descriptors and the memory of a process, in MiB."""
    resident = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return len(os.listdir(f"/proc/{pid}/fd")), int(resident[1]) // 1024


def test_strangers_under_inject(records):
    with inject(ReadError("*/00.rec")) as injection:
        for number, (name, attack) in enumerate(ATTACKS.items(), 1):
            injection.refresh()
            descriptors, memory = _usage(injection._client.pid)
            with _start_attack(attack) as connections:
                _wait_for_rounds(connections)
                read = epoch(alone(Records(records)))
                _wait_for_rounds(connections)
                injection.refresh()
                usage = _usage(injection._client.pid)
            assert ("Errno 5" in read.text, name) == (True, name)
            assert (number, number) == (injection.fired, len(injection.workers))
            assert usage[0] <= descriptors + 8, name
            assert usage[1] <= memory + 4, name


def test_who_is_below():
    ours, theirs = os.pipe()
    child = fork()
    if not child:
        grandchild = fork()
        if grandchild:
            os.write(theirs, grandchild.to_bytes(4, "little"))
        signal.pause()
    grandchild = int.from_bytes(os.read(ours, 4), "little")
    own_pid = os.getpid()
    try:
        below_here = [
            is_below(pid, {own_pid}) for pid in (own_pid, child, grandchild, os.getppid(), 1, 0)
        ]
        below_child = [is_below(pid, {child}) for pid in (own_pid, child, grandchild)]
    finally:
        for pid in (grandchild, child):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ours)
        os.close(theirs)
    assert [True, True, True, False, False, False] == below_here
    assert [False, True, True] == below_child
    assert not is_below(child, {own_pid})


JUNK = {
    "no JSON": (_message(b"\xff{"), 0),
    "deep": (_message(b"[" * 100_000), 0),
    "no descriptor": (_message(_worker()), 0),
    "a list": (_message([1, 2], 1), 1),
    "too few words": (_message({"type": "Hello", "pid": os.getpid()}, 1), 1),
    "another message": (_message({"type": "WorkerIdle"}, 1), 1),
    "no known message": (_message(_worker(type="Hi"), 1), 1),
    "a listener that is none": (_message(_worker(), 1), 1),
    "another process": (_message(_worker(pid=1, fakes=True), 1), 1),
    "many descriptors": (_message(_worker(), 62), 62),
    "more descriptors than a message has": (_message(_worker(), 200), 200),
    "half a message with descriptors": (_message(_worker(), 62)[:-1], 62),
}


def test_strangers_are_sent_away(records):
    with inject(ReadError("*/00.rec")) as injection:
        descriptors = _usage(injection._client.pid)[0]
        for name, (data, count) in JUNK.items():
            with _connect_stranger(injection) as stranger, open(os.devnull, "rb") as file:
                socket.send_fds(stranger, [data], [file.fileno()] * count)
                assert b"" == _receive_end(stranger), name
            # It briefly has two more while it sends away a process that is not of this test.
            assert until(lambda: _usage(injection._client.pid)[0] <= descriptors), name
        read = epoch(alone(Records(records)))
    assert "Errno 5" in read.text
    assert (1, 1) == (injection.fired, len(injection.workers))


def _connect_stranger(injection):
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # With a timeout, connect(2) fails where the supervisor has not accepted the one before.
    stranger.connect(f"\0{injection._client.config.address}")
    stranger.settimeout(30)
    injection.refresh()  # It has answered the door by then.
    return stranger


def _receive_end(stranger):
    try:
        return stranger.recv(1)
    except ConnectionResetError:  # Not all of it was read.
        return b""
