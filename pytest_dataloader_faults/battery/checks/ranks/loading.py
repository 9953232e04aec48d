"""The loader of a rank: it delivers the part of the samples that the rank has [in a trial]."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, Sampler

from pytest_dataloader_faults._settings.jobs import Member
from pytest_dataloader_faults._trial.loaders import dataset_of, kind_of, outer_loader
from pytest_dataloader_faults.exceptions import UnusableDatasetError

_DISPATCHED = (
    "accelerate's dispatch_batches=True makes rank 0 draw the batches of all ranks, so it is not"
    " known which samples of a map-style dataset each rank gets. Prepare the loader with"
    " dispatch_batches=False"
)


def options_for(rank: Member, dataset: Any, options: dict[str, Any]) -> dict[str, Any]:
    """*options* of a loader that delivers the part of one *rank* of a map-style *dataset*."""
    if any(options.get(name) for name in ("sampler", "batch_sampler")):
        return options
    shuffle = options.get("shuffle", True)
    sampler: Sampler[Any] = DistributedSampler(dataset, rank.size, rank.number, shuffle=shuffle)
    return {**options, "shuffle": None, "sampler": sampler}


def require_own_batches(loader: DataLoader[Any]) -> None:
    """Refuse a map-style dataset of which one rank draws what others get."""
    is_dispatched = type(outer_loader(loader)).__name__ == "DataLoaderDispatcher"
    if is_dispatched and kind_of(dataset_of(loader)) == "map":
        raise UnusableDatasetError(_DISPATCHED)
