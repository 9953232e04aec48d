"""Strategies for the faults of TCP connections, one per fault."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from hypothesis import strategies as st

from pytest_dataloader_faults import faults
from pytest_dataloader_faults._arguments import ints
from pytest_dataloader_faults.faults._network import CONNECT_ERRNOS
from pytest_dataloader_faults.strategies._choices import Files, operations, require, require_some
from pytest_dataloader_faults.strategies._files import TIMES, drawn

_ERRNOS = (errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTUNREACH)
_MOST = 1024


@st.composite
def connect_errors(
    draw: st.DrawFn,
    *,
    files: Files = None,
    errnos: Iterable[int] = _ERRNOS,
    max_nth: int | None = None,
    max_workers: int = 2,
) -> faults.ConnectError:
    """``ConnectError`` with one of *errnos*, for good or up to three times."""
    chosen = tuple(require_some(sorted(CONNECT_ERRNOS), errnos=errnos))
    targets = operations(files, "connect to", max_nth)
    return drawn(draw, faults.ConnectError, targets, max_workers, errno=chosen, times=TIMES)


@st.composite
def connection_resets(
    draw: st.DrawFn,
    *,
    files: Files = None,
    max_bytes: int = _MOST,
    max_nth: int | None = None,
    max_workers: int = 2,
) -> faults.ConnectionReset:
    """``ConnectionReset``: an answer is cut off by a reset, after up to *max_bytes*."""
    targets, after = operations(files, "connect to", max_nth), _places(max_bytes)
    return drawn(draw, faults.ConnectionReset, targets, max_workers, after=after, times=TIMES)


@st.composite
def closed_connections(
    draw: st.DrawFn,
    *,
    files: Files = None,
    max_bytes: int = _MOST,
    max_nth: int | None = None,
    max_workers: int = 2,
) -> faults.ConnectionClosed:
    """``ConnectionClosed``: an answer ends early, after up to *max_bytes*."""
    targets, after = operations(files, "connect to", max_nth), _places(max_bytes)
    return drawn(draw, faults.ConnectionClosed, targets, max_workers, after=after, times=TIMES)


def _places(most: int) -> tuple[int, ...]:
    require(ints(0), max_bytes=most)
    return tuple(sorted({0, most // 4, most}))
