"""A process under faults, in touch with its supervisor [runs in the DataLoader worker].

Die while a batch is on its way to the loader [runs in the DataLoader worker].

Some facts about torch's queue of results. All workers of a loader write to one pipe, each from a
thread that takes a lock that lies in shared memory for as long as it writes
(multiprocessing/queues.py, ``_feed``). Who dies with it leaves half a message in the pipe, and a
lock that nobody opens any more: no other worker can pass anything from then on. So the loader has
to give up at once, which it does, by the signal of its child's death.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

from pytest_dataloader_faults._engine.protocol import Channel, Message


class WorkerSession:
    """This process, under faults."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._epoch = self._begun = 0

    def restart(self) -> None:
        """Count the fetches of an epoch from 1."""
        self._epoch += 1
        self._begun = 0

    def begin(self) -> None:
        """Tell that a fetch begins, and wait for leave to go on."""
        self._begun += 1
        self._ask({"begin": self._begun, "epoch": self._epoch})

    def begin_sample(self, sample: int, *, alone: bool) -> None:
        """Tell that a sample begins, and wait for leave to go on."""
        self._ask({"sample": sample, "alone": alone})

    def _ask(self, question: dict[str, Any]) -> None:
        self._tell(question)
        more = True
        while more:
            answer, descriptors = self._channel.receive()
            if "close" in answer:
                self._obey(answer, descriptors)
                more = answer["more"]
            else:
                _suffer(answer, self._channel.fileno())

    def end(self, *, ended: bool) -> None:
        """Tell that the fetch is over; *ended*: there are no more."""
        self._tell({"done": self._begun, "ended": ended})

    def idle(self) -> None:
        """Tell that no fetch will ever begin."""
        self._tell({"idle": True})

    def disarm(self) -> None:
        """The scope is at its end. Called where this process outlives it."""

    def _tell(self, message: Message) -> None:
        self._channel.send(message)

    def _obey(self, orders: dict[str, Any], descriptors: list[int]) -> None:
        carry_out(orders, descriptors)


def carry_out(orders: dict[str, Any], descriptors: list[int]) -> None:
    """Close and exchange what the supervisor says; its descriptors are ours to close."""
    for fd in orders["close"]:
        os.close(fd)
    for fd, place in orders["replace"]:
        _exchange(fd, descriptors[place])
    for fd in descriptors:
        os.close(fd)


def _suffer(task: dict[str, Any], channel: int) -> None:
    """Leave, now or later, or stand still until the supervisor writes again."""
    if "exit" in task:
        os._exit(task["exit"])
    if "sending" in task:
        die_sending(task["sending"])
        return
    if task["hold"]:
        from pytest_dataloader_faults._engine.kernel.linux import wait_holding_the_lock

        wait_holding_the_lock(channel)


def _exchange(fd: int, source: int) -> None:
    """Make *fd* a descriptor of *source*'s file, at the same offset."""
    offset = os.lseek(fd, 0, os.SEEK_CUR)
    fresh = os.open(f"/proc/self/fd/{source}", os.O_RDONLY | os.O_CLOEXEC)
    os.lseek(fresh, offset, os.SEEK_SET)
    os.dup2(fresh, fd, inheritable=os.get_inheritable(fd))
    os.close(fresh)


def die_sending(number: int) -> None:
    """End this process by signal *number* within the next message that it sends.

    To be called when all that was made before has arrived.
    """

    def send(connection: Any, message: Any) -> None:
        os.write(connection.fileno(), message[: len(message) // 2])
        os.kill(os.getpid(), number)

    Connection._send = send  # type: ignore[attr-defined]
