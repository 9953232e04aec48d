"""Hypothesis strategies: faults, schedules of them, loaders, and ways to use a dataset.

There is one strategy per fault, named in the plural. All arguments are by keyword, and one that
cannot be used raises Hypothesis' ``InvalidArgument``. These arguments mean the same in each:

*files*
    The files to put at risk: a glob, several globs or, better, ``survey(make_dataset)``. With a
    survey, Hypothesis draws only files and operations that the dataset really uses.
*max_nth*
    The latest operation that may be the first to fail.
*max_at*
    The latest batch of a worker at which a fault of workers may happen.
*max_workers*
    The most workers that the loader may have.

Examples shrink towards fewer faults, the first file, its first operation, one worker, and a fault
that stays.
"""

from __future__ import annotations

from pytest_dataloader_faults.strategies._files import (
    closed_descriptors,
    corrupted_files,
    hung_reads,
    open_errors,
    read_errors,
    short_reads,
    slow_reads,
    truncated_files,
)
from pytest_dataloader_faults.strategies._loaders import dataset_access, loader_options
from pytest_dataloader_faults.strategies._network import (
    closed_connections,
    connect_errors,
    connection_resets,
)
from pytest_dataloader_faults.strategies._schedules import DEFAULT_KINDS as DEFAULT_KINDS
from pytest_dataloader_faults.strategies._schedules import fault_schedules, faults
from pytest_dataloader_faults.strategies._workers import (
    descriptor_exhaustions,
    exited_workers,
    hung_workers,
    killed_workers,
    pin_memory_thread_deaths,
    shared_memory_exhaustions,
)
from pytest_dataloader_faults.strategies._writes import short_writes, write_errors

__all__ = (
    "closed_connections",
    "closed_descriptors",
    "connect_errors",
    "connection_resets",
    "corrupted_files",
    "dataset_access",
    "descriptor_exhaustions",
    "exited_workers",
    "fault_schedules",
    "faults",
    "hung_reads",
    "hung_workers",
    "killed_workers",
    "loader_options",
    "open_errors",
    "pin_memory_thread_deaths",
    "read_errors",
    "shared_memory_exhaustions",
    "short_reads",
    "short_writes",
    "slow_reads",
    "truncated_files",
    "write_errors",
)
