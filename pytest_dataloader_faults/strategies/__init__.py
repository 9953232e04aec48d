"""Hypothesis strategies: faults, schedules of them, loaders, and ways to use a dataset.

Pass all arguments by keyword. An invalid one raises Hypothesis' ``InvalidArgument``. These
arguments mean the same in all strategies:

*files*
    The files to inject faults into: a glob, or several. With one glob per file, a schedule can
    damage a single file.
*kinds*
    The fault classes to choose from; by default ``DEFAULT_KINDS``.
*max_workers*
    The maximum number of workers of the loader.

Examples shrink towards fewer faults, the first file, its first operation, one worker, and a
permanent fault. To draw one fault yourself, use ``st.builds(ReadError, path=st.just("*.jpg"))``:
all faults are plain dataclasses, which reject invalid values.
"""

from __future__ import annotations

from pytest_dataloader_faults.strategies.schedules import DEFAULT_KINDS as DEFAULT_KINDS
from pytest_dataloader_faults.strategies.schedules import (
    dataset_access,
    fault_schedules,
    faults,
    loader_options,
)

__all__ = ("dataset_access", "fault_schedules", "faults", "loader_options")
