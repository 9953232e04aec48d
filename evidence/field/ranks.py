"""Datasets that several ranks train on, as users divide them among ranks, and as they forget to."""

from __future__ import annotations

from pathlib import Path

from torch.utils.data import DataLoader, DistributedSampler

from field import data, tried
from field.streams import Pictures, _litdata, _mosaic, _urls

RANKS = {"ranks": 2}


def place() -> tuple[int, int]:
    """This process's rank, and how many ranks there are."""
    from torch import distributed

    return distributed.get_rank(), distributed.get_world_size()


def _picture(sample):
    import torch

    return torch.tensor(list(sample["jpg"][-64:])), sample["__key__"]


@tried("webdataset `WebDataset`, no node splitter", "webdataset", write=data.shards, **RANKS)
def ranks_wds_plain(folder: Path):
    import webdataset as wds

    return wds.WebDataset(_urls(folder), shardshuffle=False).map(_picture)


@tried("webdataset `DataPipeline`, no node splitter", "webdataset", write=data.shards, **RANKS)
def ranks_wds_pipeline(folder: Path):
    import webdataset as wds

    return wds.DataPipeline(
        wds.SimpleShardList(_urls(folder)),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.map(_picture),
    )


@tried("webdataset `WebDataset`, `split_by_node`", "webdataset", write=data.shards, **RANKS)
def ranks_wds_split(folder: Path):
    import webdataset as wds

    return wds.WebDataset(_urls(folder), shardshuffle=False, nodesplitter=wds.split_by_node).map(
        _picture
    )


@tried(
    "webdataset `WebDataset`, `split_by_node`, 3 archives", "webdataset", write=data.shards, **RANKS
)
def ranks_wds_uneven(folder: Path):
    import webdataset as wds

    urls = _urls(folder)[:3]
    return wds.WebDataset(urls, shardshuffle=False, nodesplitter=wds.split_by_node).map(_picture)


@tried(
    "webdataset, `split_by_node`, shuffled, `WebLoader`", "webdataset", write=data.shards, **RANKS
)
def ranks_wds_loader(folder: Path):
    import webdataset as wds

    dataset = (
        wds.WebDataset(
            _urls(folder), shardshuffle=4, detshuffle=True, nodesplitter=wds.split_by_node
        )
        .shuffle(8)
        .map(_picture)
        .batched(3)
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=2).pipeline[0]


@tried("webdataset, resampled, `with_epoch`", "webdataset", write=data.shards, **RANKS)
def ranks_wds_resampled(folder: Path):
    import webdataset as wds

    dataset = wds.WebDataset(_urls(folder), resampled=True, nodesplitter=wds.split_by_node)
    return dataset.map(_picture).with_epoch(30)


def _stream(folder: Path):
    from datasets import load_dataset

    files = sorted(map(str, folder.glob("*.parquet")))
    return load_dataset("parquet", data_files=files, split="train", streaming=True)


@tried("Hugging Face streaming, not split", "datasets", write=data.parquet, **RANKS)
def ranks_hf_plain(folder: Path):
    return _stream(folder)


@tried(
    "Hugging Face streaming, `split_dataset_by_node`, 4 files",
    "datasets",
    write=data.parquet,
    **RANKS,
)
def ranks_hf_split(folder: Path):
    from datasets.distributed import split_dataset_by_node

    return split_dataset_by_node(_stream(folder), *place())


@tried(
    "Hugging Face streaming, shuffled, `split_dataset_by_node`, 4 files",
    "datasets",
    write=data.parquet,
    **RANKS,
)
def ranks_hf_shuffled(folder: Path):
    from datasets.distributed import split_dataset_by_node

    return split_dataset_by_node(_stream(folder).shuffle(seed=0, buffer_size=8), *place())


@tried(
    "Hugging Face streaming, `split_dataset_by_node`, 3 files",
    "datasets",
    write=data.parquet,
    **RANKS,
)
def ranks_hf_uneven(folder: Path):
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    files = sorted(map(str, folder.glob("*.parquet")))[:3]
    stream = load_dataset("parquet", data_files=files, split="train", streaming=True)
    return split_dataset_by_node(stream, *place())


def _table(folder: Path):
    from datasets import load_dataset

    files = sorted(map(str, folder.glob("*.parquet")))
    cache = str(folder.parent / "cache")
    return load_dataset("parquet", data_files=files, split="train", cache_dir=cache)


@tried("Hugging Face `Dataset`, Parquet", "datasets", write=data.parquet, **RANKS)
def ranks_hf_map(folder: Path):
    return _table(folder)


@tried("Hugging Face `Dataset.shard`", "datasets", write=data.parquet, **RANKS)
def ranks_hf_shard(folder: Path):
    rank, ranks = place()
    return DataLoader(_table(folder).shard(ranks, rank), 4, shuffle=True, num_workers=2)


@tried("litdata `StreamingDataset`", "litdata", write=_litdata, **RANKS)
def ranks_litdata(folder: Path):
    from litdata import StreamingDataset

    return StreamingDataset(str(folder), shuffle=False)


@tried("litdata `StreamingDataLoader`, shuffled", "litdata", write=_litdata, **RANKS)
def ranks_litdata_loader(folder: Path):
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(str(folder), shuffle=True, drop_last=True)
    return StreamingDataLoader(dataset, batch_size=4, num_workers=2)


@tried(
    "mosaicml-streaming `StreamingDataset`",
    "streaming",
    write=_mosaic,
    loader={"batch_size": 4, "num_workers": 2},
    **RANKS,
)
def ranks_mosaic(folder: Path):
    from streaming import StreamingDataset

    return StreamingDataset(local=str(folder), shuffle=False, batch_size=4)


@tried("mosaicml-streaming `StreamingDataLoader`, shuffled", "streaming", write=_mosaic, **RANKS)
def ranks_mosaic_loader(folder: Path):
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=4)
    return StreamingDataLoader(dataset, batch_size=4, num_workers=2)


def _module(folder: Path, *, with_sampler: bool):
    import lightning.pytorch as pl

    class Module(pl.LightningDataModule):
        def setup(self, stage=None):
            self.pictures = Pictures(folder)

        def train_dataloader(self):
            if not with_sampler:
                return DataLoader(self.pictures, 4, shuffle=True, num_workers=2)
            sampler = DistributedSampler(self.pictures)
            return DataLoader(self.pictures, 4, sampler=sampler, num_workers=2)

    return Module()


@tried(
    "lightning `LightningDataModule`, for a trainer that adds the sampler",
    "lightning",
    "lightning.pytorch",
    write=data.pictures,
    **RANKS,
)
def ranks_lightning_module(folder: Path):
    return _module(folder, with_sampler=False)


@tried(
    "lightning `LightningDataModule`, `DistributedSampler`",
    "lightning",
    "lightning.pytorch",
    write=data.pictures,
    **RANKS,
)
def ranks_lightning_sampler(folder: Path):
    return _module(folder, with_sampler=True)


@tried(
    "lightning `Fabric.setup_dataloaders`",
    "lightning",
    "lightning.fabric",
    write=data.pictures,
    **RANKS,
)
def ranks_fabric(folder: Path):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=place()[1], strategy="ddp")
    fabric.launch()
    return fabric.setup_dataloaders(DataLoader(Pictures(folder), 4, shuffle=True, num_workers=2))


def _prepared(dataset, shuffle: bool = True, workers=None, **options):
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
    loader = DataLoader(dataset, 4, shuffle=shuffle, num_workers=2, **(workers or {}))
    return accelerator.prepare(loader)


@tried("accelerate, prepared loader", "accelerate", "PIL", write=data.pictures, **RANKS)
def ranks_accelerate(folder: Path):
    return _prepared(Pictures(folder))


@tried(
    "accelerate, prepared loader, not shuffled", "accelerate", "PIL", write=data.pictures, **RANKS
)
def ranks_accelerate_ordered(folder: Path):
    return _prepared(Pictures(folder), shuffle=False)


@tried("accelerate, `split_batches`", "accelerate", "PIL", write=data.pictures, **RANKS)
def ranks_accelerate_split(folder: Path):
    return _prepared(Pictures(folder), split_batches=True)


@tried("accelerate, `dispatch_batches`", "accelerate", "PIL", write=data.pictures, **RANKS)
def ranks_accelerate_dispatch(folder: Path):
    return _prepared(Pictures(folder), dispatch_batches=True)


@tried("accelerate, `use_seedable_sampler`", "accelerate", "PIL", write=data.pictures, **RANKS)
def ranks_accelerate_seedable(folder: Path):
    return _prepared(Pictures(folder), use_seedable_sampler=True)


@tried("accelerate, a stream, dispatched", "accelerate", "datasets", write=data.parquet, **RANKS)
def ranks_accelerate_dispatched(folder: Path):
    numbers = _stream(folder).select_columns(["number", "values"])
    return _prepared(numbers.with_format("torch"), shuffle=False)


@tried(
    "accelerate, `use_seedable_sampler`, `set_seed`",
    "accelerate",
    "PIL",
    write=data.pictures,
    **RANKS,
)
def ranks_accelerate_seeded(folder: Path):
    from accelerate.utils import set_seed

    set_seed(7)
    return _prepared(Pictures(folder), use_seedable_sampler=True)


@tried("accelerate, persistent workers", "accelerate", "PIL", write=data.pictures, **RANKS)
def ranks_accelerate_persistent(folder: Path):
    return _prepared(Pictures(folder), workers={"persistent_workers": True})


@tried("accelerate, a stream", "accelerate", "datasets", write=data.parquet, **RANKS)
def ranks_accelerate_stream(folder: Path):
    return _prepared(_stream(folder), shuffle=False, dispatch_batches=False)


@tried(
    "torchdata `StatefulDataLoader`, no sampler",
    "torchdata",
    "torchdata.stateful_dataloader",
    "PIL",
    write=data.pictures,
    **RANKS,
)
def ranks_stateful_plain(folder: Path):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Pictures(folder), batch_size=4, shuffle=True, num_workers=2)


@tried(
    "torchdata `StatefulDataLoader`, `DistributedSampler`",
    "torchdata",
    "torchdata.stateful_dataloader",
    "PIL",
    write=data.pictures,
    **RANKS,
)
def ranks_stateful(folder: Path):
    from torchdata.stateful_dataloader import StatefulDataLoader

    pictures = Pictures(folder)
    sampler = DistributedSampler(pictures)
    return StatefulDataLoader(pictures, batch_size=4, sampler=sampler, num_workers=2)


@tried(
    "torchdata `StatefulDataLoader`, `StatefulDistributedSampler`",
    "torchdata",
    "torchdata.stateful_dataloader",
    "torchdata.stateful_dataloader.sampler",
    "PIL",
    write=data.pictures,
    **RANKS,
)
def ranks_stateful_sampler(folder: Path):
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    pictures = Pictures(folder)
    sampler = StatefulDistributedSampler(pictures)
    return StatefulDataLoader(pictures, batch_size=4, sampler=sampler, num_workers=2)
