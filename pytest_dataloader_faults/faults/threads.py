"""The fault of threads and processes: none can be started."""

from __future__ import annotations

import errno as _errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_dataloader_faults.faults.base import TIMES, Effect, Place, Triggered, kind


@kind
@dataclass(frozen=True, slots=True, repr=False)
class ThreadExhaustion(Triggered):
    """No thread and no process can be started (EAGAIN), as at the limit of a container.

    While a worker makes a batch, clone(2), clone3(2), fork(2) and vfork(2) fail with EAGAIN in the
    worker and in processes that it started.

    Python then raises "can't start new thread", or BlockingIOError for a process. Threads of torch
    itself are not affected, and neither is a thread that started before.
    """

    happens_in: ClassVar = Place.START
    effects: ClassVar = Effect.ERROR
    needs_worker: ClassVar = True
    errno = _errno.EAGAIN
    nth: int = 1
    times: int | None = None

    operation: ClassVar = "starts"
    drawn: ClassVar = {"times": TIMES}
    unseen_in_fake_files: ClassVar = "libraries start their threads in C"

    def explain_unmatched(self, counts: Mapping[str, int]) -> str:  # noqa: ARG002  # they are no files
        """Nothing else matches it than a start."""
        return "no targeted worker started a thread or a process while it made a batch"

    def message_patterns(self, _call: str) -> tuple[str, ...]:
        """What a message contains if it says that something could not be started.

        The last one is Python's, for a ThreadPool of which not all threads start.
        """
        return (
            r"(can(not|'t)|could not|unable|fail\w*).{0,40}\b(start|creat|spawn|fork|launch)\w*",
            r"\b(thread|process|fork)\w* (creation )?fail|(thread|process)\w* limit",
            r"'DummyProcess' object has no attribute 'terminate'",
        )
