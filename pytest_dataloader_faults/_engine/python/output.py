"""What Python code writes by descriptors [runs in the worker]."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, ClassVar

from pytest_dataloader_faults._engine.policy import Operation
from pytest_dataloader_faults._engine.policy.writes import OF_INHERITED, write_actions
from pytest_dataloader_faults._engine.python.descriptors import (
    DescriptorTable,
    slice_buffers,
    total_length,
)
from pytest_dataloader_faults.faults.base import Place


def _length_to_write(files: DescriptorTable, fd: int, call: str, length: int = 0) -> int:
    """How many of *length* bytes a write may put into *fd*; raises the error of a fault."""
    tracked, faults = files.observe(fd), files.policy.faults
    if tracked is None or Place.WRITE not in faults.sees:
        return length
    if Place.WRITE in tracked.places:
        actions = write_actions(files.policy, Operation(call, tracked.path), length)
        return files.carry_out(actions, length)
    if faults.has_fault_in(tracked.path, Place.WRITE):
        files.policy.count_unobserved(OF_INHERITED)
    return length


class OutputFunctions:
    """The replacements of functions that write, by the names that they have in ``os``."""

    def __init__(self, files: DescriptorTable) -> None:
        self._files = files
        self._system = files.system

    def sendfile(self, out_fd: int, in_fd: int, offset: int | None, count: int) -> int:
        _length_to_write(self._files, out_fd, "sendfile")
        allowed_length = self._files.allowed_length(in_fd, "sendfile", count, offset)
        return int(self._system.sendfile(out_fd, in_fd, offset, allowed_length))

    def copy_file_range(
        self, src: int, dst: int, count: int, *offsets: Any, **keywords: Any
    ) -> int:
        _length_to_write(self._files, dst, "copy_file_range")
        allowed_length = self._files.allowed_length(src, "copy_file_range", count)
        return int(self._system.copy_file_range(src, dst, allowed_length, *offsets, **keywords))

    def splice(self, src: int, dst: int, count: int, *offsets: Any, **keywords: Any) -> int:
        _length_to_write(self._files, dst, "splice")
        allowed_length = self._files.allowed_length(src, "splice", count)
        return int(self._system.splice(src, dst, allowed_length, *offsets, **keywords))

    def write(self, fd: int, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        return int(
            self._system.write(fd, view[: _length_to_write(self._files, fd, "write", len(view))])
        )

    def pwrite(self, fd: int, data: Any, offset: int, /) -> int:
        view = memoryview(data).cast("B")
        length = _length_to_write(self._files, fd, "pwrite64", len(view))
        return int(self._system.pwrite(fd, view[:length], offset))

    def writev(self, fd: int, buffers: Sequence[Any], /) -> int:
        length = _length_to_write(self._files, fd, "writev", total_length(buffers))
        return int(self._system.writev(fd, slice_buffers(length, buffers)))

    def pwritev(self, fd: int, buffers: Sequence[Any], offset: int, flags: int = 0, /) -> int:
        length = _length_to_write(self._files, fd, "pwritev2", total_length(buffers))
        return int(self._system.pwritev(fd, slice_buffers(length, buffers), offset, flags))

    def posix_fallocate(self, fd: int, offset: int, length: int, /) -> None:
        _length_to_write(self._files, fd, "fallocate")
        self._system.posix_fallocate(fd, offset, length)

    def fsync(self, fd: Any) -> None:
        _length_to_write(self._files, _number(fd), "fsync")
        self._system.fsync(fd)

    def fdatasync(self, fd: Any) -> None:
        _length_to_write(self._files, _number(fd), "fdatasync")
        self._system.fdatasync(fd)


def _number(file: Any) -> int:
    """The descriptor of *file*, which may be an object that has one."""
    return int(file if isinstance(file, int) else file.fileno())


class OutputFileIO(io.FileIO):
    """A FileIO that queries the policy before it writes."""

    files: ClassVar[DescriptorTable]

    def write(self, data: Any, /) -> int:
        """Write once, at most as many bytes as the policy allows."""
        view = memoryview(data).cast("B")
        length = _length_to_write(self.files, super().fileno(), "write", len(view))
        return super().write(view[:length])
