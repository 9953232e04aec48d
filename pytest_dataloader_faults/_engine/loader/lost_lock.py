"""A deadlock of torch's own, reported while it lasts [runs where the loader does].

Some facts about a lock that is never released. ``multiprocessing.Queue.put`` acquires the lock
``_notempty`` by a ``with`` statement. When a worker dies, torch's handler of SIGCHLD raises in the
main thread, and where it does so between the acquisition and the first line of that block, nothing
releases the lock. torch ends an iterator by ``_mark_worker_as_unavailable``, which puts into the
same queue, and waits forever. The queue's own thread holds that lock for microseconds at a time.

Under ``inject`` the loop is the user's, and torch does there what it always does. All that can be
done is to say what it waits for.
"""

from __future__ import annotations

import sys
import time
from typing import Any

_PATIENCE = 5.0
_MESSAGE = (
    "pytest-dataloader-faults: this loop hangs in torch, not in the dataset. A DataLoader worker"
    " died while torch was putting indices into its queue, torch's SIGCHLD handler raised inside"
    " multiprocessing.Queue.put, and the lock of that queue was never released: the loader now"
    " waits for it forever in _mark_worker_as_unavailable. A small prefetch_factor makes this"
    " rare; run_trial() does not meet it\n"
)


def report_lost_lock(queue: Any) -> None:
    """Write to standard error if the lock of *queue* stays locked for seconds."""
    until = time.monotonic() + _PATIENCE
    # Not acquired here: torch's handler could raise before it would be released.
    while queue._notempty._lock.locked():
        if time.monotonic() > until:
            sys.stderr.write(_MESSAGE)
            return
        time.sleep(0.01)
