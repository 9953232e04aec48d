"""A pytest plugin: every test is armed with a fault that never happens.

Loaders without workers are let through, since ``inject`` refuses them: they would read in pytest's
own process, which is never armed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.iterator import LoaderMonitor
from pytest_dataloader_faults.faults import ReadError

_armed_iterator = LoaderMonitor.iterator


@functools.wraps(_armed_iterator)
def _iterator(self: Any, loader: Any, make: Any) -> Any:
    return _armed_iterator(self, loader, make) if loader.num_workers else make(loader)


LoaderMonitor.iterator = _iterator


@pytest.fixture(autouse=True)
def _armed() -> Iterator[None]:
    with inject(ReadError("/nonexistent/*"), require_fired=False):
        yield
