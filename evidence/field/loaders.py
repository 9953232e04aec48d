"""Ordinary options of loaders and samplers, and wrappers of torch, over pictures."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)

from field import data, tried
from field.streams import Pictures
from pytest_dataloader_faults import part_of


@tried("torch `ConcatDataset` of `Subset`s", "torch", "PIL", write=data.pictures)
def concat(folder: Path):
    pictures = Pictures(folder)
    return ConcatDataset([Subset(pictures, range(8)), Subset(pictures, range(8, 16))])


@tried("torch `random_split`, first part", "torch", "PIL", write=data.pictures)
def split(folder: Path):
    return random_split(Pictures(folder), [12, 4], torch.Generator().manual_seed(1))[0]


@tried("`WeightedRandomSampler`", "torch", "PIL", write=data.pictures)
def weighted(folder: Path):
    pictures = Pictures(folder)
    sampler = WeightedRandomSampler([1.0, 3.0] * 8, 16)
    return DataLoader(pictures, 4, num_workers=2, sampler=sampler)


@tried("`batch_sampler`, `RandomSampler`", "torch", "PIL", write=data.pictures)
def batch_sampler(folder: Path):
    pictures = Pictures(folder)
    batches = BatchSampler(RandomSampler(pictures), 5, drop_last=True)
    return DataLoader(pictures, num_workers=2, batch_sampler=batches)


def _seed_worker(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)  # noqa: NPY002  # as users do
    random.seed(torch.initial_seed() % 2**32)


@tried(
    "shuffle, persistent, prefetch, timeout, pin, `generator`, `worker_init_fn`",
    "torch",
    "PIL",
    write=data.pictures,
)
def all_options(folder: Path):
    return DataLoader(
        Pictures(folder),
        4,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=4,
        timeout=20,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator().manual_seed(3),
        worker_init_fn=_seed_worker,
    )


@tried("spawn workers", "torch", "PIL", write=data.pictures)
def spawned(folder: Path):
    return DataLoader(Pictures(folder), 4, num_workers=2, multiprocessing_context="spawn")


@tried("forkserver workers", "torch", "PIL", write=data.pictures)
def forkserver(folder: Path):
    return DataLoader(Pictures(folder), 4, num_workers=2, multiprocessing_context="forkserver")


@tried("`batch_size=None`, map-style", "torch", "PIL", write=data.pictures)
def unbatched(folder: Path):
    return DataLoader(Pictures(folder), batch_size=None, num_workers=2)


class Augmented(Pictures):
    """A random crop, flip and noise by three sources of random numbers."""

    def __getitem__(self, index: int):
        picture = super().__getitem__(index)
        top = random.randrange(8)
        column = int(np.random.randint(8))  # noqa: NPY002  # as users do
        crop = picture[top : top + 32, column : column + 32].float()
        if torch.rand(()) < 0.5:
            crop = crop.flip(1)
        return crop


@tried("own augmentation: random, NumPy, torch", "torch", "PIL", write=data.pictures)
def augmented(folder: Path):
    return Augmented(folder)


class NewGenerator(Augmented):
    """A crop by a generator that no seed reaches."""

    def __getitem__(self, index: int):
        top = np.random.default_rng().integers(8)
        return Pictures.__getitem__(self, index)[top : top + 32]


@tried("own augmentation: a new `default_rng()` each time", "torch", "PIL", write=data.pictures)
def augmented_unseeded(folder: Path):
    return NewGenerator(folder)


class AnySize(Pictures):
    """A crop of a random size."""

    def __getitem__(self, index: int):
        size = random.randrange(16, 40)
        return super().__getitem__(index)[:size, :size]


@tried(
    "own augmentation: random sizes, list collate",
    "torch",
    "PIL",
    write=data.pictures,
    loader={"num_workers": 2, "batch_size": 4, "collate_fn": list},
)
def augmented_sizes(folder: Path):
    return AnySize(folder)


@tried("a dict of loaders", "torch", "PIL", write=data.pictures)
def loaders_dict(folder: Path):
    pictures = Pictures(folder)
    loaders = {
        name: DataLoader(Subset(pictures, part), 4, num_workers=2)
        for name, part in {"train": range(12), "val": range(12, 16)}.items()
    }
    return part_of(loaders, "train")()


@tried("lightning `LightningDataModule`", "lightning", "lightning.pytorch", write=data.pictures)
def lightning_module(folder: Path):
    import lightning.pytorch as pl

    class Module(pl.LightningDataModule):
        def __init__(self):
            super().__init__()
            self.folder = folder

        def setup(self, stage=None):
            pictures = Pictures(self.folder)
            self.train, self.val = Subset(pictures, range(12)), Subset(pictures, range(12, 16))

        def train_dataloader(self):
            return DataLoader(self.train, 4, shuffle=True, num_workers=2)

        def val_dataloader(self):
            return DataLoader(self.val, 4, num_workers=2)

    return part_of(Module(), "train")()
