"""Loaders that bring the fake files to their workers [runs where the loader does]."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pytest_dataloader_faults._fake._settled import SettleWorker
from pytest_dataloader_faults._fake._spared import spared
from pytest_dataloader_faults._fake._state import fake_files


@contextlib.contextmanager
def with_workers() -> Iterator[None]:
    """While it lasts, pyfakefs and loaders with workers get along. Enter it before pyfakefs starts.

    Only loaders of a torch that is imported already are helped.
    """
    with spared(), contextlib.ExitStack() as patches:
        if "torch" in sys.modules:
            from torch.utils.data import DataLoader

            from pytest_dataloader_faults._engine._iterator import with_iterators_of_their_own

            for kind in with_iterators_of_their_own(DataLoader):
                original = kind._get_iterator
                patches.callback(setattr, kind, "_get_iterator", original)
                kind._get_iterator = _bringing(original)
        yield


def _bringing(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_iterator(loader: Any) -> Any:
        if not loader.num_workers or fake_files() is None:
            return original(loader)
        with _laden(loader):
            return original(loader)

    return get_iterator


@contextlib.contextmanager
def _laden(loader: Any) -> Iterator[None]:
    from pytest_dataloader_faults._fake._parcel import DatasetKind

    kind, then = loader._dataset_kind, loader.worker_init_fn
    loader._dataset_kind = bringing = DatasetKind.of(loader)
    loader.worker_init_fn = SettleWorker(then)
    try:
        yield
    finally:
        loader._dataset_kind, loader.worker_init_fn = kind, then
        bringing.forget()
