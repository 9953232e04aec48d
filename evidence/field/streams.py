"""Streams: webdataset, litdata, mosaicml-streaming, Hugging Face, torchdata."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from torch.utils.data import IterableDataset, get_worker_info

from field import data, tried


def _urls(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.tar")))


def _picture(sample):
    import torch

    return torch.tensor(list(sample["jpg"][:64])), int(sample["cls"])


def _webdataset(folder: Path, **options):
    import webdataset as wds

    return wds.WebDataset(_urls(folder), shardshuffle=False, **options)


@tried("webdataset `WebDataset`", "webdataset", write=data.shards)
def wds_plain(folder: Path):
    return _webdataset(folder).map(_picture)


@tried(
    "webdataset, `handler=warn_and_continue`, may skip",
    "webdataset",
    write=data.shards,
    contract={"may_skip": True},
)
def wds_continue(folder: Path):
    import webdataset as wds

    return _webdataset(folder, handler=wds.warn_and_continue).map(_picture)


@tried("webdataset, decode, shuffle, batched, `WebLoader`", "webdataset", "PIL", write=data.shards)
def wds_loader(folder: Path):
    import webdataset as wds

    dataset = _webdataset(folder).shuffle(8).decode("rgb").to_tuple("jpg", "cls").batched(3)
    return wds.WebLoader(dataset, batch_size=None, num_workers=2)


@tried("webdataset `DataPipeline`", "webdataset", write=data.shards)
def wds_pipeline(folder: Path):
    import webdataset as wds

    return wds.DataPipeline(
        wds.SimpleShardList(_urls(folder)),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.map(_picture),
    )


def as_picture(sample):
    """The bytes and the class of a sample of wids."""
    import torch

    picture = sample[".jpg"].read()
    return torch.tensor(list(picture[:64])), int(sample[".cls"].read())


@tried("wids `ShardListDataset`, `ChunkedSampler`", "wids", write=data.shards)
def wids_shards(folder: Path):
    import wids
    from torch.utils.data import DataLoader

    shards = [{"url": url, "nsamples": 6} for url in _urls(folder)]
    dataset = wids.ShardListDataset(
        shards, localname=str, transformations=as_picture, dataset_name="shards"
    )
    sampler = wids.ChunkedSampler(dataset, chunksize=12, shuffle=True)
    return DataLoader(dataset, batch_size=4, num_workers=2, sampler=sampler)


def _number(index: int) -> dict:
    return {"index": index, "values": data.noise(index, 512)}


def _litdata(folder: Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes=4096)
    for number in range(32):
        writer[number] = _number(number)
    writer.done()
    writer.merge()


@tried("litdata `StreamingDataset`", "litdata", write=_litdata)
def litdata_stream(folder: Path):
    from litdata import StreamingDataset

    return StreamingDataset(str(folder), shuffle=False)


@tried("litdata `StreamingDataset`, chunks only", "litdata", write=_litdata, files="*/chunk-*.bin")
def litdata_chunks(folder: Path):
    from litdata import StreamingDataset

    return StreamingDataset(str(folder), shuffle=False)


@tried("litdata `StreamingDataLoader`", "litdata", write=_litdata)
def litdata_loader(folder: Path):
    from litdata import StreamingDataLoader, StreamingDataset

    return StreamingDataLoader(StreamingDataset(str(folder)), batch_size=4, num_workers=2)


def _mosaic(folder: Path) -> None:
    from streaming import MDSWriter

    columns = {"text": "str", "number": "int"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=4096) as out:
        for number in range(32):
            out.write({"text": f"text {number} " * 40, "number": number})


@tried(
    "mosaicml-streaming `StreamingDataset`",
    "streaming",
    write=_mosaic,
    loader={"batch_size": 4, "num_workers": 2},
)
def mosaic(folder: Path):
    from streaming import StreamingDataset

    return StreamingDataset(local=str(folder), shuffle=False, batch_size=4)


@tried("Hugging Face streaming, Parquet", "datasets", write=data.parquet)
def hf_stream_parquet(folder: Path):
    from datasets import load_dataset

    files = sorted(map(str, folder.glob("*.parquet")))
    return load_dataset("parquet", data_files=files, split="train", streaming=True)


@tried("Hugging Face streaming, JSON lines", "datasets", write=data.json_lines)
def hf_stream_json(folder: Path):
    from datasets import load_dataset

    files = sorted(map(str, folder.glob("*.jsonl")))
    return load_dataset("json", data_files=files, split="train", streaming=True)


@tried("Hugging Face streaming, shuffled", "datasets", write=data.parquet)
def hf_stream_shuffled(folder: Path):
    return hf_stream_parquet(folder).shuffle(seed=0, buffer_size=16)


@tried(
    "torchdata `StatefulDataLoader` over pictures",
    "torchdata",
    "torchdata.stateful_dataloader",
    "PIL",
    write=data.pictures,
)
def stateful_loader(folder: Path):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Pictures(folder), batch_size=4, num_workers=2)


class Pictures:
    """A picture per file, as a tensor."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.rglob("*.jpg")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        import numpy as np
        import torch
        from PIL import Image

        with Image.open(self.paths[index]) as image:
            return torch.from_numpy(np.array(image.convert("RGB")))


class Lines(IterableDataset):
    """The lines of compressed texts, each worker its share of the files."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __iter__(self):
        info = get_worker_info()
        mine = self.paths[info.id :: info.num_workers] if info else self.paths
        for path in mine:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                yield from map(json.loads, file)


def _gzipped_lines(folder: Path) -> None:
    for part in range(4):
        with gzip.open(folder / f"{part}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in data.rows()[part::4])


@tried("own stream over .jsonl.gz, `get_worker_info`", write=_gzipped_lines)
def gzip_lines(folder: Path):
    return Lines(sorted(map(str, folder.glob("*.gz"))))


@tried("torch `ChainDataset` of two streams", "torch", write=_gzipped_lines)
def chain_dataset(folder: Path):
    from torch.utils.data import ChainDataset

    paths = sorted(map(str, folder.glob("*.gz")))
    return ChainDataset([Lines(paths[:2]), Lines(paths[2:])])


@tried("torchdata `nodes.Loader`", "torchdata", "torchdata.nodes", write=data.pictures)
def torchdata_nodes(folder: Path):
    from torch.utils.data import SequentialSampler
    from torchdata import nodes

    pictures = Pictures(folder)
    node = nodes.MapStyleWrapper(pictures, SequentialSampler(pictures))
    return nodes.Loader(nodes.Batcher(node, 4))


class RandomWindows(IterableDataset):
    """Endless random windows of a file of tokens; each worker has a seed of its own."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __iter__(self):
        import random

        import numpy as np
        import torch

        info = get_worker_info()
        rng = random.Random(42 + (info.id if info else 0))
        tokens = np.memmap(self.path, dtype=np.uint16, mode="r")
        while True:
            start = rng.randrange(len(tokens) - 65)
            window = torch.from_numpy(tokens[start : start + 65].astype(np.int64))
            yield window[:-1], window[1:]


@tried("llama2.c-like endless random stream", "numpy", write=data.records)
def llama_stream(folder: Path):
    return RandomWindows(str(folder / "tokens.bin"))


class Finite(IterableDataset):
    """The first windows of such a stream."""

    def __init__(self, path: str) -> None:
        self.inner = RandomWindows(path)

    def __iter__(self):
        import itertools

        return itertools.islice(iter(self.inner), 24)


@tried("llama2.c-like random stream, 24 a worker", "numpy", write=data.records)
def llama_stream_finite(folder: Path):
    return Finite(str(folder / "tokens.bin"))
