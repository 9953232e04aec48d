"""Datasets of pictures: torchvision, timm, open_clip, ultralytics, BasicSR."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np

from field import data, tried


def _to_tensor():
    from torchvision import transforms

    return transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])


def _augment():
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.RandomResizedCrop(32),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.2),
            transforms.ToTensor(),
        ]
    )


@tried("torchvision `ImageFolder`", "torchvision", write=data.pictures)
def tv_image_folder(folder: Path):
    from torchvision import datasets

    return datasets.ImageFolder(str(folder), transform=_to_tensor())


@tried("torchvision `ImageFolder`, random augmentation", "torchvision", write=data.pictures)
def tv_image_folder_random(folder: Path):
    from torchvision import datasets

    return datasets.ImageFolder(str(folder), transform=_augment())


@tried("torchvision `ImageFolder`, transforms v2, random", "torchvision", write=data.pictures)
def tv_image_folder_v2(folder: Path):
    import torch
    from torchvision import datasets
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(32),
            v2.RandAugment(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    return datasets.ImageFolder(str(folder), transform=transform)


def load_array(path: str):
    """A .npy file as a tensor."""
    import torch

    return torch.from_numpy(np.load(path))


@tried("torchvision `DatasetFolder` of .npy", "torchvision", write=data.array_files)
def tv_dataset_folder(folder: Path):
    from torchvision import datasets

    return datasets.DatasetFolder(str(folder), loader=load_array, extensions=(".npy",))


def _idx(folder: Path) -> None:
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True)
    for part, count in ("train", 64), ("t10k", 16):
        images = data.noise(count, count, 28, 28)
        head = struct.pack(">iiii", 0x803, count, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">ii", 0x801, count)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(head + bytes(n % 10 for n in range(count)))


@tried("torchvision `MNIST`", "torchvision", write=_idx)
def tv_mnist(folder: Path):
    from torchvision import datasets

    return datasets.MNIST(str(folder), transform=_to_tensor())


def _voc(folder: Path) -> None:
    base = folder / "VOCdevkit/VOC2012"
    for name in "JPEGImages", "SegmentationClass", "Annotations", "ImageSets/Segmentation":
        (base / name).mkdir(parents=True)
    names = [f"2007_{number:06}" for number in range(12)]
    (base / "ImageSets/Segmentation/train.txt").write_text("\n".join(names) + "\n")
    for number, name in enumerate(names):
        (base / f"JPEGImages/{name}.jpg").write_bytes(data.jpeg(number))
        (base / f"SegmentationClass/{name}.png").write_bytes(data.png(number))


@tried("torchvision `VOCSegmentation`", "torchvision", write=_voc)
def tv_voc(folder: Path):
    from torchvision import datasets

    return datasets.VOCSegmentation(
        str(folder), image_set="train", transform=_to_tensor(), target_transform=_to_tensor()
    )


def _coco(folder: Path) -> None:
    data.pictures(folder)
    paths = sorted(folder.glob("*/*.jpg"))
    images = [
        {"id": n, "file_name": str(path.relative_to(folder)), "width": 48, "height": 48}
        for n, path in enumerate(paths)
    ]
    boxes = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 9, 9], "area": 81, "iscrowd": 0}
        for n in range(len(paths))
    ]
    annotations = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
    (folder / "annotations.json").write_text(json.dumps(annotations), encoding="utf-8")


@tried(
    "torchvision `CocoDetection`",
    "torchvision",
    "pycocotools",
    write=_coco,
    loader={"collate_fn": list},
)
def tv_coco(folder: Path):
    from torchvision import datasets

    return datasets.CocoDetection(
        str(folder), str(folder / "annotations.json"), transform=_to_tensor()
    )


def _lsun(folder: Path) -> None:
    import lmdb

    with (
        lmdb.open(str(folder / "bedroom_train_lmdb"), map_size=1 << 24) as store,
        store.begin(write=True) as transaction,
    ):
        for number in range(data.COUNT):
            transaction.put(f"{number:08}".encode(), data.jpeg(number))


@tried("torchvision `LSUN`", "torchvision", "lmdb", write=_lsun)
def tv_lsun(folder: Path):
    import os

    from torchvision import datasets

    os.chdir(folder)  # It writes its list of keys into the working folder.
    return datasets.LSUN(str(folder), classes=["bedroom_train"], transform=_to_tensor())


def _emnist_like(folder: Path) -> None:
    for number in range(8):
        with gzip.open(folder / f"{number}.npy.gz", "wb") as file:
            np.save(file, data.noise(number, 32, 32))


def load_gzipped(path: str):
    """A compressed .npy file as a tensor."""
    import torch

    with gzip.open(path) as file:
        return torch.from_numpy(np.load(file))


class GzippedArrays:
    """Compressed arrays."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*.gz")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        return load_gzipped(self.paths[index])


@tried("own class over .npy.gz (gzip, NumPy)", write=_emnist_like)
def npy_gz(folder: Path):
    return GzippedArrays(folder)


@tried("timm `ImageDataset`", "timm", "timm.data", write=data.pictures)
def timm_image_dataset(folder: Path):
    from timm.data import ImageDataset

    return ImageDataset(str(folder), transform=_to_tensor())


@tried(
    "timm `IterableImageDataset` over tar shards",
    "timm",
    "timm.data",
    "webdataset",
    write=data.shards,
)
def timm_iterable(folder: Path):
    from timm.data import IterableImageDataset

    (folder / "_info.json").write_text(
        json.dumps(
            {
                "splits": {
                    "train": {
                        "filenames": [f"shard-{n:03}.tar" for n in range(4)],
                        "shard_lengths": [6] * 4,
                        "num_samples": 24,
                    }
                }
            }
        )
    )
    return IterableImageDataset(
        str(folder),
        reader="wds/",
        split="train",
        batch_size=4,
        num_samples=24,
        transform=_to_tensor(),
    )


@tried("timm `create_loader`, training", "timm", "timm.data", write=data.pictures)
def timm_create_loader(folder: Path):
    import torch
    from timm.data import ImageDataset, create_loader

    return create_loader(
        ImageDataset(str(folder)),
        (3, 32, 32),
        4,
        is_training=True,
        use_prefetcher=False,
        num_workers=2,
        device=torch.device("cpu"),
        persistent_workers=False,
    )


@tried("open_clip `CsvDataset`", "open_clip", "open_clip_train.data", write=data.captions)
def clip_csv(folder: Path):
    from open_clip_train.data import CsvDataset

    return CsvDataset(
        str(folder / "captions.csv"), _to_tensor(), "filepath", "title", tokenizer=_tokens
    )


def _tokens(texts):
    import torch

    return torch.tensor([[len(text), *text.encode()[:8]] for text in texts])


@tried(
    "open_clip webdataset pipeline, evaluation",
    "open_clip",
    "open_clip_train.data",
    write=data.shards,
)
def clip_wds(folder: Path):
    return open_clip_loader(folder, 24, is_train=False)


def open_clip_loader(folder: Path, samples: int, *, is_train: bool):
    from types import SimpleNamespace

    from open_clip_train.data import get_wds_dataset

    args = SimpleNamespace(
        val_data=f"{folder}/shard-{{000..003}}.tar",
        train_data=f"{folder}/shard-{{000..003}}.tar",
        val_num_samples=samples,
        train_num_samples=samples,
        train_data_upsampling_factors=None,
        dataset_resampled=False,
        seed=0,
        batch_size=4,
        workers=2,
        world_size=1,
        distributed=False,
    )
    return get_wds_dataset(args, _to_tensor(), is_train=is_train, tokenizer=_tokens).dataloader


def _yolo(folder: Path) -> None:
    (folder / "images/train").mkdir(parents=True)
    (folder / "labels/train").mkdir(parents=True)
    for number in range(12):
        (folder / f"images/train/{number:03}.jpg").write_bytes(data.jpeg(number))
        (folder / f"labels/train/{number:03}.txt").write_text("0 0.5 0.5 0.25 0.25\n")


@tried("ultralytics `YOLODataset`", "ultralytics", "ultralytics.data", write=_yolo)
def yolo(folder: Path):
    from torch.utils.data import DataLoader
    from ultralytics.data import YOLODataset

    dataset = YOLODataset(
        img_path=str(folder / "images/train"),
        data={"names": {0: "cat"}, "nc": 1, "channels": 3},
        imgsz=32,
        augment=False,
        task="detect",
    )
    return DataLoader(dataset, 4, num_workers=2, collate_fn=dataset.collate_fn)


def _pairs(folder: Path) -> None:
    for name in "gt", "lq":
        (folder / name).mkdir()
        for number in range(12):
            (folder / f"{name}/{number:03}.png").write_bytes(data.png(number))


@tried("BasicSR `PairedImageDataset`", "basicsr", "basicsr.data", write=_pairs)
def basicsr_paired(folder: Path):
    from basicsr.data.paired_image_dataset import PairedImageDataset

    return PairedImageDataset(
        {
            "dataroot_gt": str(folder / "gt"),
            "dataroot_lq": str(folder / "lq"),
            "io_backend": {"type": "disk"},
            "phase": "val",
            "scale": 1,
        }
    )
