"""Hypothesis strategies: faults, schedules of them, loaders, and ways to use a dataset.

All arguments are by keyword, and one that cannot be used raises Hypothesis' ``InvalidArgument``.
These arguments mean the same in each:

*files*
    The files to put at risk: a glob, several globs or, better, ``survey(make_dataset)``. With a
    survey, Hypothesis draws only files and operations that the dataset really uses.
*kinds*
    The fault classes to choose from; by default ``DEFAULT_KINDS``.
*max_workers*
    The most workers that the loader may have.

Examples shrink towards fewer faults, the first file, its first operation, one worker, and a fault
that stays. A fault of your own choice is ``st.builds(ReadError, path=st.just("*.jpg"), ...)``: all
are plain dataclasses, which refuse what cannot be.
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
