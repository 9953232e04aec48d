"""Datasets that list folders: torchvision, MONAI, PyG, scikit-learn, pyarrow, Hugging Face."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from field import data, tried
from field.arrays import Rows
from field.vision import _pairs, _to_tensor


def _caltech(folder: Path) -> None:
    base = folder / "caltech101/101_ObjectCategories"
    for name in (*data.CLASSES, "BACKGROUND_Google"):
        (base / name).mkdir(parents=True)
        for number in range(1, 9):
            path = base / name / f"image_{number:04}.jpg"
            path.write_bytes(data.jpeg(len(name) * 100 + number))


@tried("torchvision `Caltech101`", "torchvision", "scipy.io", write=_caltech)
def tv_caltech101(folder: Path):
    from torchvision import datasets

    return datasets.Caltech101(str(folder), transform=_to_tensor())


def _caltech256(folder: Path) -> None:
    for place, name in enumerate(data.CLASSES, 1):
        base = folder / f"caltech256/256_ObjectCategories/{place:03}.{name}"
        base.mkdir(parents=True)
        for number in range(1, 9):
            path = base / f"{place:03}_{number:04}.jpg"
            path.write_bytes(data.jpeg(place * 100 + number))


@tried("torchvision `Caltech256`", "torchvision", write=_caltech256)
def tv_caltech256(folder: Path):
    from torchvision import datasets

    return datasets.Caltech256(str(folder), transform=_to_tensor())


def _kitti(folder: Path) -> None:
    base = folder / "Kitti/raw/training"
    for name in "image_2", "label_2":
        (base / name).mkdir(parents=True)
    for number in range(12):
        (base / f"image_2/{number:06}.png").write_bytes(data.png(number))
        boxes = f"Car 0.00 0 -1.58 {number} 1 9 9 1.6 1.7 3.7 1.8 1.5 8.4 -1.6\n"
        (base / f"label_2/{number:06}.txt").write_text(boxes)


@tried("torchvision `Kitti`", "torchvision", write=_kitti, loader={"collate_fn": list})
def tv_kitti(folder: Path):
    from torchvision import datasets

    return datasets.Kitti(str(folder), transform=_to_tensor())


def _cityscapes(folder: Path) -> None:
    for part in "leftImg8bit", "gtFine":
        for city in "aachen", "bochum":
            (folder / part / "train" / city).mkdir(parents=True)
    for number in range(12):
        city = ("aachen", "bochum")[number % 2]
        name = f"{city}_{number:06}_000019"
        image = folder / f"leftImg8bit/train/{city}/{name}_leftImg8bit.png"
        image.write_bytes(data.png(number))
        mask = folder / f"gtFine/train/{city}/{name}_gtFine_labelIds.png"
        mask.write_bytes(data.png(number + 100))


@tried("torchvision `Cityscapes`", "torchvision", write=_cityscapes)
def tv_cityscapes(folder: Path):
    from torchvision import datasets

    return datasets.Cityscapes(
        str(folder), target_type="semantic", transform=_to_tensor(), target_transform=_to_tensor()
    )


def _omniglot(folder: Path) -> None:
    for alphabet in "Greek", "Latin":
        for character in "character01", "character02":
            base = folder / "omniglot-py/images_background" / alphabet / character
            base.mkdir(parents=True)
            for number in range(4):
                path = base / f"{number:04}.png"
                path.write_bytes(data.png(len(list(folder.rglob("*.png")))))


@tried("torchvision `Omniglot`, without its MD5 sum", "torchvision", write=_omniglot)
def tv_omniglot(folder: Path):
    from torchvision import datasets

    class Omniglot(datasets.Omniglot):
        def _check_integrity(self):
            return True

    return Omniglot(str(folder), transform=_to_tensor())


def _mednist(folder: Path) -> None:
    for name in "AbdomenCT", "BreastMRI":
        base = folder / "MedNIST" / name
        base.mkdir(parents=True)
        for number in range(16):
            content = data.jpeg(len(name) * 100 + number)
            (base / f"{number:06}.jpeg").write_bytes(content)


def as_pixels(row):
    """The picture of a row of MedNIST, and its label."""
    from PIL import Image

    return torch.from_numpy(np.array(Image.open(row["image"]))), row["label"]


_MONAI = "monai", "monai.apps", "monai.data", "monai.transforms"


@tried("MONAI `MedNISTDataset`, validation", *_MONAI, write=_mednist)
def monai_mednist(folder: Path):
    from monai.apps import MedNISTDataset

    return MedNISTDataset(
        folder, "validation", as_pixels, val_frac=0.4, cache_rate=0.0, num_workers=0
    )


def _labeled_pictures(folder: Path) -> None:
    (folder / "pictures").mkdir()
    data.pictures(folder / "pictures")


def _as_labeled_array(rows):
    from field.tables import _to_array

    return _to_array(rows)


@tried("Hugging Face imagefolder, `data_dir`", "datasets", "PIL", write=_labeled_pictures)
def hf_imagefolder_labels(folder: Path):
    from datasets import load_dataset

    rows = load_dataset(
        "imagefolder",
        data_dir=str(folder / "pictures"),
        split="train",
        cache_dir=str(folder / "cache"),
    )
    return rows.with_transform(_as_labeled_array)


@tried(
    "scikit-learn `load_files`, as rows",
    "sklearn",
    "sklearn.datasets",
    write=data.array_files,
    code="own",
)
def sklearn_files(folder: Path):
    from sklearn.datasets import load_files

    bunch = load_files(str(folder))
    return Labeled(bunch.data, bunch.target)


class Labeled:
    """Contents of files, and their labels."""

    def __init__(self, contents, labels) -> None:
        self.contents, self.labels = contents, labels

    def __len__(self) -> int:
        return len(self.contents)

    def __getitem__(self, index: int):
        return self.contents[index], int(self.labels[index])


@tried("pyarrow `dataset(folder)`", "pyarrow", "pyarrow.dataset", write=data.parquet, code="own")
def arrow_folder(folder: Path):
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(str(folder), format="parquet").to_table(use_threads=False)
    return Rows(table["number"].to_numpy())


def _meshes(folder: Path) -> None:
    names = "bathtub bed chair desk dresser monitor night_stand sofa table toilet".split()
    for number, name in enumerate(names):
        for part in "train", "test":
            base = folder / "raw" / name / part
            base.mkdir(parents=True)
            for mesh in range(2):
                rows = data.random(number * 10 + mesh).random((3, 3)).round(4).tolist()
                lines = "".join(" ".join(map(str, row)) + "\n" for row in rows)
                path = base / f"{name}_{mesh:04}.off"
                path.write_text(f"OFF\n3 1 0\n{lines}3 0 1 2\n")


_PYG = "torch_geometric", "torch_geometric.datasets", "torch_geometric.loader"


@tried("PyG `ModelNet`, in a copy of the folder", *_PYG, write=_meshes, copied=True)
def pyg_modelnet(folder: Path):
    from torch_geometric.datasets import ModelNet
    from torch_geometric.loader import DataLoader

    return DataLoader(ModelNet(str(folder)), batch_size=4, num_workers=2)


def _penn_fudan(folder: Path) -> None:
    for name, kind in ("PNGImages", 0), ("PedMasks", 100):
        (folder / name).mkdir()
        for number in range(12):
            suffix = "_mask" if kind else ""
            path = folder / name / f"FudanPed{number:05}{suffix}.png"
            path.write_bytes(data.png(number + kind))


def _pixels(path: Path):
    from PIL import Image

    return torch.from_numpy(np.array(Image.open(path)))


class PennFudan:
    """torchvision's tutorial about detection: two sorted listings, paired by position."""

    def __init__(self, root: Path) -> None:
        import os

        self.root = root
        self.imgs = sorted(os.listdir(root / "PNGImages"))
        self.masks = sorted(os.listdir(root / "PedMasks"))

    def __len__(self) -> int:
        return len(self.imgs)

    def __getitem__(self, index: int):
        image = _pixels(self.root / "PNGImages" / self.imgs[index])
        return image, _pixels(self.root / "PedMasks" / self.masks[index])


@tried("torchvision tutorial's `PennFudanDataset`-like", "torch", "PIL", write=_penn_fudan)
def penn_fudan_like(folder: Path):
    return PennFudan(folder)


class Carvana:
    """milesial's U-Net: the names of a listing that is not sorted, and a mask by its name."""

    def __init__(self, images: Path, masks: Path) -> None:
        import os

        self.images, self.masks = images, masks
        self.names = [
            os.path.splitext(name)[0]
            for name in os.listdir(images)
            if (images / name).is_file() and not name.startswith(".")
        ]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int):
        name = self.names[index]
        images, masks = list(self.images.glob(f"{name}.*")), list(self.masks.glob(f"{name}.*"))
        assert len(images) == 1, f"Either no image or multiple images found for {name}: {images}"
        assert len(masks) == 1, f"Either no mask or multiple masks found for {name}: {masks}"
        return _pixels(images[0]), _pixels(masks[0])


def _first_part(folder: Path):
    from torch.utils.data import random_split

    dataset = Carvana(folder / "gt", folder / "lq")
    count = len(dataset) // 3
    return random_split(dataset, [len(dataset) - count, count], torch.Generator().manual_seed(0))[0]


@tried("U-Net-like `BasicDataset`, its `random_split`", "torch", "PIL", write=_pairs)
def unet_like(folder: Path):
    return _first_part(folder)
