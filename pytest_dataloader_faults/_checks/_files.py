"""Checks that put the files at risk which a dataset reads. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pytest_dataloader_faults._checks._base import (
    Check,
    Plan,
    Recon,
    Unsuitable,
    on_content,
    on_opened,
    on_read,
    path_of,
)
from pytest_dataloader_faults.faults import ClosedDescriptor, OpenError, ReadError, TruncatedFile

_HALVES = 2


def _read_in_the_middle(times: int | None) -> Callable[[Recon], Plan]:
    def plan(recon: Recon) -> Plan:
        if recon.is_blind and not recon.read:
            return recon.nothing("read")
        if recon.reads < _HALVES:
            return Unsuitable(f"the busiest worker makes {recon.reads} reads, fewer than {_HALVES}")
        # Of an even number of items this is the last read of one, not the first of the next: it is
        # for content, and not for a header.
        nth = max(_HALVES, recon.reads // _HALVES)
        return (ReadError(path_of(recon.read), nth=nth, times=times),)

    return plan


FILES = (
    Check("open-error", "files that cannot be opened are no surprise", on_opened(OpenError)),
    Check("read-error-first", "the disk fails at the first read", on_read(ReadError)),
    Check("read-error-later", "the disk fails half way", _read_in_the_middle(None)),
    Check("read-error-transient", "one read fails, the next works", _read_in_the_middle(1)),
    Check(
        "truncated-half",
        "files end in the middle",
        on_content(lambda path: TruncatedFile(path, keep=0.5)),
    ),
    Check(
        "truncated-empty",
        "files are empty",
        on_content(lambda path: TruncatedFile(path, keep=0)),
    ),
    Check(
        "closed-descriptor",
        "a descriptor is closed under the dataset",
        on_content(ClosedDescriptor),
    ),
)
