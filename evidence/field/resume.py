"""Loaders and streams that save their state, as users begin again from it, and some that cannot."""

from __future__ import annotations

import json
from pathlib import Path

from torch.utils.data import IterableDataset, RandomSampler, get_worker_info

from field import data, tried
from field.ranks import _stream, _table
from field.streams import Lines, Pictures, _gzipped_lines, _litdata, _mosaic

RESUME = {"part": "resume"}
_MANY = 64
_BATCH = 2
"""There are 16 pictures, so eight batches."""


def _stateful(dataset, batch_size: int = _BATCH, **options):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, batch_size=batch_size, num_workers=2, **options)


def _of_torchdata(title: str, *packages: str, write=data.pictures):
    """A row of torchdata's loader."""
    uses = "torchdata", "torchdata.stateful_dataloader", *packages
    return tried(f"torchdata `StatefulDataLoader`, {title}", *uses, write=write, **RESUME)


@_of_torchdata("in order", "PIL")
def resume_stateful(folder: Path):
    return _stateful(Pictures(folder))


@_of_torchdata("`shuffle=True`", "PIL")
def resume_stateful_shuffled(folder: Path):
    return _stateful(Pictures(folder), shuffle=True)


def _many_pictures(folder: Path) -> None:
    for number in range(_MANY):
        (folder / f"{number:03}.jpg").write_bytes(data.jpeg(number))


@_of_torchdata("`shuffle=True`, more samples than are looked at", "PIL", write=_many_pictures)
def resume_stateful_many(folder: Path):
    return _stateful(Pictures(folder), shuffle=True)


@_of_torchdata("torch's `RandomSampler`", "PIL")
def resume_stateful_torch_sampler(folder: Path):
    pictures = Pictures(folder)
    return _stateful(pictures, sampler=RandomSampler(pictures))


@_of_torchdata("torchdata's `RandomSampler`", "torchdata.stateful_dataloader.sampler", "PIL")
def resume_stateful_own_sampler(folder: Path):
    from torchdata.stateful_dataloader.sampler import RandomSampler as WithState

    pictures = Pictures(folder)
    return _stateful(pictures, sampler=WithState(pictures))


@_of_torchdata("`StatefulDistributedSampler`", "torchdata.stateful_dataloader.sampler", "PIL")
def resume_stateful_distributed(folder: Path):
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    pictures = Pictures(folder)
    sampler = StatefulDistributedSampler(pictures, num_replicas=1, rank=0)
    return _stateful(pictures, sampler=sampler)


@_of_torchdata("`persistent_workers`, shuffled", "PIL")
def resume_stateful_persistent(folder: Path):
    return _stateful(Pictures(folder), shuffle=True, persistent_workers=True)


@_of_torchdata("a stream without a state", write=_gzipped_lines)
def resume_stateful_stream(folder: Path):
    return _stateful(Lines(sorted(map(str, folder.glob("*.gz")))), batch_size=4)


class Shards(IterableDataset):
    """The lines of texts in a random order of the texts, each worker its share; with a state."""

    def __init__(self, paths: list[str]) -> None:
        self.paths, self.order, self.at, self.line = paths, None, 0, 0

    def __iter__(self):
        import random

        info = get_worker_info()
        mine = self.paths[info.id :: info.num_workers] if info else self.paths
        if self.order is None:
            self.order = random.sample(range(len(mine)), len(mine))
        while self.at < len(self.order):
            lines = Path(mine[self.order[self.at]]).read_text(encoding="utf-8").splitlines()
            while self.line < len(lines):
                self.line += 1
                yield json.loads(lines[self.line - 1])
            self.at, self.line = self.at + 1, 0
        self.order, self.at = None, 0

    def state_dict(self):
        """The order of the texts, and the place in it."""
        return {"order": self.order, "at": self.at, "line": self.line}

    def load_state_dict(self, state):
        """Go on from that place."""
        self.order, self.at, self.line = state["order"], state["at"], state["line"]


def _lines(folder: Path) -> None:
    for part in range(4):
        text = "".join(json.dumps(row) + "\n" for row in data.rows()[part::4])
        (folder / f"part-{part}.jsonl").write_text(text, encoding="utf-8")


@_of_torchdata("own stream of shuffled shards, with a state", write=_lines)
def resume_stateful_shards(folder: Path):
    return _stateful(Shards(sorted(map(str, folder.glob("*.jsonl")))), batch_size=4)


@tried("own stream of shuffled shards, with a state, alone", "torch", write=_lines, **RESUME)
def resume_shards(folder: Path):
    return Shards(sorted(map(str, folder.glob("*.jsonl"))))


def _of_huggingface(title: str, **settings):
    """A row of its streams, which have a state of their own."""
    options = {**settings, **RESUME}
    return tried(f"Hugging Face streaming, {title}", "datasets", write=data.parquet, **options)


@_of_huggingface("4 files over 2 workers")
def resume_hf(folder: Path):
    return _stream(folder)


@_of_huggingface("4 files, 1 worker", loader={"batch_size": 4, "num_workers": 1})
def resume_hf_one_worker(folder: Path):
    return _stream(folder)


@_of_huggingface("3 files over 2 workers")
def resume_hf_uneven(folder: Path):
    (folder / "part-3.parquet").unlink(missing_ok=True)
    return _stream(folder)


@_of_huggingface("mapped in batches")
def resume_hf_mapped(folder: Path):
    return _stream(folder).map(_twice, batched=True, batch_size=5)


def _twice(rows):
    return {**rows, "twice": [2 * number for number in rows["number"]]}


@_of_huggingface("shuffled, `buffer_size=16`")
def resume_hf_shuffled(folder: Path):
    return _stream(folder).shuffle(seed=0, buffer_size=16)


@_of_huggingface("shuffled, `buffer_size=16`, 1 worker", loader={"batch_size": 4, "num_workers": 1})
def resume_hf_shuffled_one(folder: Path):
    return resume_hf_shuffled(folder)


@_of_huggingface("in a `StatefulDataLoader`")
def resume_hf_loader(folder: Path):
    return _stateful(_stream(folder), batch_size=4)


@_of_huggingface("`split_dataset_by_node`, in a `StatefulDataLoader`")
def resume_hf_node(folder: Path):
    from datasets.distributed import split_dataset_by_node

    return _stateful(split_dataset_by_node(_stream(folder), 0, 2), batch_size=4)


@tried(
    "Hugging Face `Dataset`, in a `StatefulDataLoader`, shuffled",
    "datasets",
    write=data.parquet,
    **RESUME,
)
def resume_hf_map(folder: Path):
    return _stateful(_table(folder), shuffle=True)


def _litdata_stream(folder: Path, **options):
    from litdata import StreamingDataset

    return StreamingDataset(str(folder), **options)


def _litdata_loader(folder: Path, **options):
    from litdata import StreamingDataLoader

    return StreamingDataLoader(_litdata_stream(folder, **options), batch_size=4, num_workers=2)


@tried("litdata `StreamingDataset`, alone", "litdata", write=_litdata, **RESUME)
def resume_litdata(folder: Path):
    return _litdata_stream(folder, shuffle=False)


@tried("litdata `StreamingDataLoader`, in order", "litdata", write=_litdata, **RESUME)
def resume_litdata_loader(folder: Path):
    return _litdata_loader(folder, shuffle=False)


@tried("litdata `StreamingDataLoader`, shuffled", "litdata", write=_litdata, **RESUME)
def resume_litdata_shuffled(folder: Path):
    return _litdata_loader(folder, shuffle=True)


def _mosaic_stream(folder: Path, **options):
    from streaming import StreamingDataset

    return StreamingDataset(local=str(folder), batch_size=4, **options)


def _mosaic_loader(folder: Path, **options):
    from streaming import StreamingDataLoader

    return StreamingDataLoader(_mosaic_stream(folder, **options), batch_size=4, num_workers=2)


@tried(
    "mosaicml-streaming `StreamingDataset`, alone",
    "streaming",
    write=_mosaic,
    loader={"batch_size": 4, "num_workers": 2},
    **RESUME,
)
def resume_mosaic(folder: Path):
    return _mosaic_stream(folder, shuffle=False)


@tried("mosaicml-streaming `StreamingDataLoader`, in order", "streaming", write=_mosaic, **RESUME)
def resume_mosaic_loader(folder: Path):
    return _mosaic_loader(folder, shuffle=False)


@tried("mosaicml-streaming `StreamingDataLoader`, shuffled", "streaming", write=_mosaic, **RESUME)
def resume_mosaic_shuffled(folder: Path):
    return _mosaic_loader(folder, shuffle=True)


def _prepared(loader, **options):
    from accelerate import Accelerator, DataLoaderConfiguration

    config = DataLoaderConfiguration(use_stateful_dataloader=True, **options)
    return Accelerator(cpu=True, dataloader_config=config).prepare(loader)


def _plain(folder: Path, **options):
    from torch.utils.data import DataLoader

    return DataLoader(Pictures(folder), _BATCH, num_workers=2, **options)


def _of_accelerate(title: str, *packages: str):
    uses = "accelerate", "torchdata.stateful_dataloader", *packages
    return tried(
        f"accelerate, `use_stateful_dataloader`, {title}", *uses, write=data.pictures, **RESUME
    )


@_of_accelerate("in order", "PIL")
def resume_accelerate(folder: Path):
    return _prepared(_plain(folder))


@_of_accelerate("shuffled", "PIL")
def resume_accelerate_shuffled(folder: Path):
    return _prepared(_plain(folder, shuffle=True))


@_of_accelerate("shuffled, `use_seedable_sampler`", "PIL")
def resume_accelerate_seedable(folder: Path):
    return _prepared(_plain(folder, shuffle=True), use_seedable_sampler=True)


@tried(
    "lightning `LightningDataModule`, `StatefulDataLoader`, shuffled",
    "lightning",
    "lightning.pytorch",
    "torchdata.stateful_dataloader",
    write=data.pictures,
    **RESUME,
)
def resume_lightning_module(folder: Path):
    import lightning.pytorch as pl

    class Module(pl.LightningDataModule):
        def train_dataloader(self):
            return _stateful(Pictures(folder), shuffle=True)

    return Module()


@tried(
    "lightning `Fabric.setup_dataloaders`, `StatefulDataLoader`",
    "lightning",
    "lightning.fabric",
    "torchdata.stateful_dataloader",
    write=data.pictures,
    **RESUME,
)
def resume_fabric(folder: Path):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    return fabric.setup_dataloaders(_stateful(Pictures(folder), shuffle=True))


@tried("torchdata `nodes.Loader`", "torchdata", "torchdata.nodes", write=data.pictures, **RESUME)
def resume_nodes(folder: Path):
    from field.streams import torchdata_nodes

    return torchdata_nodes(folder)
