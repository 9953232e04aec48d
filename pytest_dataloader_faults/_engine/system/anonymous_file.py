"""A file without a name: what was written before a process died is there still, no pipe fills up.

Its memory goes with the last process that has it open.
"""

from __future__ import annotations

import fcntl
import os


class AnonymousFile:
    """Each process that has it writes at its end. Closed by ``close``, and at exec(2)."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(f"pytest-dataloader-faults-{name}", os.MFD_CLOEXEC)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)

    def text(self, most: int | None = None) -> str:
        """The whole text, or its last *most* bytes."""
        size = os.fstat(self.fd).st_size
        start = 0 if most is None else max(0, size - most)
        return os.pread(self.fd, size - start, start).decode(errors="replace")

    def close(self) -> None:
        os.close(self.fd)
