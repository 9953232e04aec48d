"""Die while a batch is on its way to the loader [runs in the DataLoader worker].

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


def die_sending(number: int) -> None:
    """End this process by signal *number* within the next message that it sends.

    To be called when all that was made before has arrived.
    """

    def send(connection: Any, message: Any) -> None:
        os.write(connection.fileno(), message[: len(message) // 2])
        os.kill(os.getpid(), number)

    Connection._send = send  # type: ignore[attr-defined]
