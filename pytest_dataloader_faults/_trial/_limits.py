"""What a trial's process may have, where that is less than this machine allows [in the trial]."""

from __future__ import annotations

import os
import resource


def limit_descriptors(count: int | None) -> None:
    """Allow *count* descriptors besides those that are open, here and in all that is started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count is not None:
        room = max(map(int, os.listdir("/proc/self/fd"))) + 1 + count
        limit = room if soft == resource.RLIM_INFINITY else min(soft, room)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
