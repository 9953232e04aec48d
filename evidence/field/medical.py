"""Datasets of volumes: MONAI and torchio."""

from __future__ import annotations

import json
from pathlib import Path

from field import data, tried


def _listed(folder: Path) -> list[dict]:
    return [{"image": str(path), "label": n % 2} for n, path in enumerate(_paths(folder))]


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.nii.gz"))


def _load():
    from monai import transforms

    return transforms.Compose(
        [
            transforms.LoadImaged("image", image_only=True),
            transforms.EnsureChannelFirstd("image"),
            transforms.ScaleIntensityd("image"),
        ]
    )


@tried("MONAI `Dataset`", "monai", "monai.data", "monai.transforms", "nibabel", write=data.volumes)
def monai_dataset(folder: Path):
    from monai.data import Dataset

    return Dataset(_listed(folder), _load())


@tried(
    "MONAI `Dataset`, random crops",
    "monai",
    "monai.data",
    "monai.transforms",
    "nibabel",
    write=data.volumes,
)
def monai_random(folder: Path):
    from monai import transforms
    from monai.data import Dataset

    crop = transforms.RandSpatialCropd("image", (8, 8, 8), random_size=False)
    flip = transforms.RandFlipd("image", prob=0.5, spatial_axis=0)
    return Dataset(_listed(folder), transforms.Compose([_load(), crop, flip]))


@tried(
    "MONAI `CacheDataset`", "monai", "monai.data", "monai.transforms", "nibabel", write=data.volumes
)
def monai_cache(folder: Path):
    from monai.data import CacheDataset

    return CacheDataset(_listed(folder), _load(), cache_rate=0.5, num_workers=0, progress=False)


@tried(
    "MONAI `PersistentDataset`",
    "monai",
    "monai.data",
    "monai.transforms",
    "nibabel",
    write=data.volumes,
)
def monai_persistent(folder: Path):
    from monai.data import PersistentDataset

    return PersistentDataset(_listed(folder), _load(), cache_dir=str(folder / "cache"))


def _decathlon(folder: Path) -> None:
    data.volumes(folder)
    listed = [{"image": f"./{path.name}", "label": 0} for path in _paths(folder)]
    (folder / "dataset.json").write_text(json.dumps({"training": listed}), encoding="utf-8")


@tried(
    "MONAI Decathlon list, MONAI `DataLoader`",
    "monai",
    "monai.data",
    "monai.transforms",
    "nibabel",
    write=_decathlon,
)
def monai_decathlon(folder: Path):
    from monai.data import DataLoader, Dataset, load_decathlon_datalist

    listed = load_decathlon_datalist(str(folder / "dataset.json"), False, "training")
    return DataLoader(Dataset(listed, _load()), batch_size=2, num_workers=2)


@tried(
    "MONAI `GridPatchDataset`",
    "monai",
    "monai.data",
    "monai.transforms",
    "nibabel",
    write=data.volumes,
)
def monai_patches(folder: Path):
    from monai.data import Dataset, GridPatchDataset, PatchIter

    class Images(Dataset):
        def __getitem__(self, index):
            return super().__getitem__(index)["image"]

    return GridPatchDataset(
        Images(_listed(folder), _load()), PatchIter((12, 12, 6)), with_coordinates=False
    )


def _subjects(folder: Path):
    import torchio as tio

    return [
        tio.Subject(image=tio.ScalarImage(path), label=n) for n, path in enumerate(_paths(folder))
    ]


def _as_tensors(subjects):
    import torch

    return torch.stack([each["image"].data for each in subjects])


@tried(
    "torchio `SubjectsDataset`",
    "torchio",
    "nibabel",
    "SimpleITK",
    write=data.volumes,
    loader={"batch_size": 2, "num_workers": 2, "collate_fn": _as_tensors},
)
def torchio_subjects(folder: Path):
    import torchio as tio

    return tio.SubjectsDataset(_subjects(folder), transform=tio.ZNormalization())


@tried(
    "torchio `SubjectsDataset`, random transforms",
    "torchio",
    "nibabel",
    "SimpleITK",
    write=data.volumes,
    loader={"batch_size": 2, "num_workers": 2, "collate_fn": _as_tensors},
)
def torchio_random(folder: Path):
    import torchio as tio

    transform = tio.Compose([tio.RandomFlip(), tio.RandomNoise()])
    return tio.SubjectsDataset(_subjects(folder), transform=transform)


@tried("torchio `SubjectsLoader`", "torchio", "nibabel", "SimpleITK", write=data.volumes)
def torchio_loader(folder: Path):
    import torchio as tio

    return tio.SubjectsLoader(tio.SubjectsDataset(_subjects(folder)), batch_size=2, num_workers=2)
