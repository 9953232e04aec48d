"""Strategies for the faults of writing, one per fault."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from hypothesis import strategies as st

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._arguments import COUNT
from pytest_dataloader_faults.faults._writes import WRITE_ERRNOS
from pytest_dataloader_faults.strategies._choices import Files, operations, require, require_some
from pytest_dataloader_faults.strategies._files import FEW, TIMES, drawn

_ERRNOS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)


@st.composite
def write_errors(
    draw: st.DrawFn,
    *,
    files: Files = None,
    errnos: Iterable[int] = _ERRNOS,
    max_nth: int | None = None,
    max_workers: int = 2,
) -> faults.WriteError:
    """``WriteError`` with one of *errnos*: writes fail, for good or up to three times."""
    chosen = tuple(require_some(sorted(WRITE_ERRNOS), errnos=errnos))
    targets = operations(files, "write", max_nth)
    return drawn(draw, faults.WriteError, targets, max_workers, errno=chosen, times=TIMES)


@st.composite
def short_writes(
    draw: st.DrawFn,
    *,
    files: Files = None,
    max_bytes: int = 16,
    max_nth: int | None = None,
    max_workers: int = 2,
) -> faults.ShortWrite:
    """``ShortWrite``: up to three writes take at most *max_bytes*."""
    require(COUNT, max_bytes=max_bytes)
    targets, sizes = operations(files, "write", max_nth), tuple(range(1, max_bytes + 1))
    return drawn(draw, faults.ShortWrite, targets, max_workers, max_bytes=sizes, times=FEW)
