"""Loaders and streams of frameworks for one field each, over files of about 100 kB each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from field import data, tried
from field.training import _yolo
from field.vision import open_clip_loader


def _tokens(folder: Path) -> None:
    for number in range(4):
        tokens = data.random(number).integers(0, 50_000, 50_000).astype(np.uint16)
        tokens.tofile(folder / f"part-{number}.npy")


def _olmo_tokens(folder: Path):
    from olmo.data import MemMapDataset

    return MemMapDataset(
        *sorted(map(str, folder.glob("part-*.npy"))),
        chunk_size=2048,
        memmap_dtype=np.uint16,
        include_instance_metadata=True,
    )


_OLMO = "olmo", "olmo.data"


@tried("OLMo `IterableDataset` over `MemMapDataset`", *_OLMO, write=_tokens)
def olmo_stream(folder: Path):
    from olmo.config import PaddingDirection
    from olmo.data import DataCollator, IterableDataset

    dataset = IterableDataset(
        _olmo_tokens(folder), 4, seed=6198, world_size=1, rank=0, fs_local_rank=0, num_threads=0
    )
    collator = DataCollator(pad_direction=PaddingDirection.right, pad_token_id=1)
    return DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=collator, drop_last=True)


@tried("OLMo `IterableDataset`, torch's collation", *_OLMO, write=_tokens)
def olmo_stream_plain(folder: Path):
    from olmo.data import IterableDataset

    dataset = IterableDataset(
        _olmo_tokens(folder), 4, seed=6198, world_size=1, rank=0, fs_local_rank=0, num_threads=0
    )
    return DataLoader(dataset, batch_size=4, num_workers=2)


@tried("OLMo `MemMapDataset`", *_OLMO, write=_tokens)
def olmo_tokens(folder: Path):
    return _olmo_tokens(folder)


def _disk_dataset(folder: Path) -> None:
    import deepchem

    shards = [
        (
            data.random(n).standard_normal((16, 1024)),
            data.random(n + 100).standard_normal((16, 1)),
            data.random(n + 200).random((16, 1)),
            np.array([f"{n}-{m}" for m in range(16)]),
        )
        for n in range(4)
    ]
    deepchem.data.DiskDataset.create_dataset(shards, str(folder))


_DEEPCHEM = "deepchem", "deepchem.data"


@tried("deepchem `DiskDataset.make_pytorch_dataset`", *_DEEPCHEM, write=_disk_dataset)
def deepchem_torch(folder: Path):
    import deepchem

    dataset = deepchem.data.DiskDataset(str(folder))
    return dataset.make_pytorch_dataset(batch_size=None, deterministic=True)


@tried("deepchem `make_pytorch_dataset(batch_size=8)`", *_DEEPCHEM, write=_disk_dataset)
def deepchem_batches(folder: Path):
    import deepchem

    dataset = deepchem.data.DiskDataset(str(folder))
    stream = dataset.make_pytorch_dataset(batch_size=8, deterministic=True)
    return DataLoader(stream, batch_size=None, num_workers=2, collate_fn=as_tensors)


def as_tensors(batch):
    """The arrays of a batch as tensors, and its ids."""
    x, y, w, ids = batch
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(w), list(ids)


def _large_shards(folder: Path) -> None:
    import tarfile

    for shard in range(4):
        with tarfile.open(folder / f"shard-{shard:03}.tar", "w") as archive:
            for number in range(shard * 5, shard * 5 + 5):
                data._add(archive, f"{number:03}.jpg", data.jpeg(number, 128))
                data._add(archive, f"{number:03}.txt", f"a picture {number}".encode())


_OPEN_CLIP = "open_clip", "open_clip_train.data", "webdataset"


@tried("open_clip evaluation, as its refusal says", *_OPEN_CLIP, write=_large_shards)
def clip_stage(folder: Path):
    return open_clip_loader(folder, 20, is_train=False).pipeline[0]


@tried("open_clip training, as its refusal says", *_OPEN_CLIP, write=_large_shards)
def clip_train_stage(folder: Path):
    return open_clip_loader(folder, 20, is_train=True).pipeline[0]


def _subjects_of_100_kb(folder: Path) -> None:
    import nibabel

    for number in range(8):
        values = data.random(number).integers(0, 1000, (40, 40, 40)).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), folder / f"{number:02}.nii.gz")


@tried(
    "torchio `Queue`, `SubjectsLoader`",
    "torchio",
    "nibabel",
    "SimpleITK",
    write=_subjects_of_100_kb,
)
def torchio_queue(folder: Path):
    import torchio as tio

    from field.medical import _subjects

    queue = tio.Queue(
        tio.SubjectsDataset(_subjects(folder)),
        max_length=8,
        samples_per_volume=2,
        sampler=tio.UniformSampler(16),
        num_workers=0,
    )
    return tio.SubjectsLoader(queue, batch_size=4, num_workers=2)


def _energon(folder: Path) -> None:
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    _large_shards(folder)
    names = [f"shard-{n:03}.tar" for n in range(4)]
    WebdatasetPreparator.prepare_dataset(
        folder, names, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )
    (folder / ".nv-meta/dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CaptioningWebdataset\n"
        "field_map:\n  image: jpg\n  caption: txt\n"
    )


@tried("megatron-energon `get_savable_loader`", "megatron.energon", write=_energon)
def energon_loader(folder: Path):
    from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
    )
    return get_savable_loader(dataset)


def _midi(folder: Path) -> None:
    from symusic import Note, Score, Track

    for number in range(data.COUNT):
        pitches = data.random(number).integers(40, 90, 2_000)
        score = Score(480)
        track = Track()
        for at, pitch in enumerate(pitches.tolist()):
            track.notes.append(Note(at * 120, 100, pitch, 64))
        score.tracks.append(track)
        score.dump_midi(str(folder / f"{number:03}.mid"))


@tried("miditok `DatasetMIDI`, `DataCollator`", "miditok", "symusic", write=_midi)
def miditok_files(folder: Path):
    from miditok import REMI
    from miditok.pytorch_data import DataCollator, DatasetMIDI

    tokenizer = REMI()
    dataset = DatasetMIDI(
        sorted(folder.glob("*.mid")),
        tokenizer,
        max_seq_len=512,
        bos_token_id=tokenizer["BOS_None"],
        eos_token_id=tokenizer["EOS_None"],
    )
    return DataLoader(dataset, 4, num_workers=2, collate_fn=DataCollator(tokenizer.pad_token_id))


class Expressions:
    """Rows of an HDF5 file that is opened for each fetch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 64

    def __getitem__(self, indices):
        import h5py

        with h5py.File(self.path) as file:
            return torch.from_numpy(file["x"][np.sort(indices)])


def _expressions(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "x.h5", "w") as file:
        rows = data.random(0).standard_normal((64, 8000)).astype(np.float32)
        file.create_dataset("x", data=rows, chunks=(1, 8000))


@tried("scdataset `scDataset`, `BlockShuffling`", "scdataset", "h5py", write=_expressions)
def scdataset_blocks(folder: Path):
    from scdataset import BlockShuffling, scDataset

    strategy = BlockShuffling(block_size=4)
    dataset = scDataset(Expressions(folder / "x.h5"), strategy, batch_size=4, fetch_factor=2)
    return DataLoader(dataset, batch_size=None, num_workers=2)


def _datatrove(folder: Path) -> None:
    for number in range(4):
        tokens = data.random(number).integers(0, 30_000, 50_000).astype(np.uint16)
        tokens.tofile(folder / f"{number:05}.ds")


@tried("datatrove `DatatroveFolderDataset`", "datatrove.utils.dataset", write=_datatrove)
def datatrove_folder(folder: Path):
    from datatrove.utils.dataset import DatatroveFolderDataset

    return DatatroveFolderDataset(str(folder), seq_len=2047, filename_pattern="*.ds", shuffle=True)


def _of_yolo(folder: Path) -> None:
    _yolo(folder)
    (folder / "data.yaml").write_text("names: [cat]\nnc: 1\n")


def as_pair(batch):
    """The pictures and the boxes of a batch."""
    pictures = torch.stack([torch.from_numpy(image) for _, image, _ in batch])
    return pictures, [torch.from_numpy(boxes.xyxy) for _, _, boxes in batch]


@tried("supervision `DetectionDataset.from_yolo`", "supervision", "cv2", write=_of_yolo)
def supervision_yolo(folder: Path):
    import supervision as sv

    dataset = sv.DetectionDataset.from_yolo(
        str(folder / "images/train"), str(folder / "labels/train"), str(folder / "data.yaml")
    )
    return DataLoader(dataset, 4, num_workers=2, collate_fn=as_pair)


def _paths(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.nii.gz")))


@tried("MONAI `ThreadDataLoader`", "monai", "monai.data", "nibabel", write=_subjects_of_100_kb)
def monai_thread_loader(folder: Path):
    from monai.data import Dataset as OfMonai
    from monai.data import ThreadDataLoader
    from monai.transforms import LoadImage

    dataset = OfMonai(_paths(folder), LoadImage(image_only=True))
    return ThreadDataLoader(dataset, batch_size=2, num_workers=2)


def _rasters(folder: Path) -> None:
    import rasterio
    from rasterio.transform import from_origin

    for number in range(4):
        place = from_origin(500_000 + number * 2560, 5_000_000, 10, 10)
        profile = {
            "width": 256,
            "height": 256,
            "count": 1,
            "dtype": "uint16",
            "compress": "deflate",
        }
        path = folder / f"{number}.tif"
        with rasterio.open(path, "w", crs="EPSG:32633", transform=place, **profile) as file:
            file.write(data.random(number).integers(0, 9999, (256, 256)).astype(np.uint16), 1)


@tried("torchgeo `RasterDataset`, `GridGeoSampler`", "torchgeo", "rasterio", write=_rasters)
def torchgeo_rasters(folder: Path):
    from torchgeo.datasets import RasterDataset, stack_samples
    from torchgeo.samplers import GridGeoSampler

    dataset = RasterDataset(str(folder))
    sampler = GridGeoSampler(dataset, size=128, stride=128)
    return DataLoader(dataset, 4, num_workers=2, sampler=sampler, collate_fn=stack_samples)


def _registered(folder: Path) -> None:
    import h5torch

    file = h5torch.File(str(folder / "x.h5t"), "w")
    rows = data.random(0).standard_normal((64, 8000)).astype(np.float32)
    file.register(rows, axis="central")
    file.register(np.arange(64, dtype=np.int64), axis=0, name="label")
    file.close()


@tried("h5torch `Dataset`", "h5torch", "h5py", write=_registered)
def h5torch_rows(folder: Path):
    import h5torch

    return h5torch.Dataset(str(folder / "x.h5t"), sampling=0)
