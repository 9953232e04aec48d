"""Loaders and datasets of code that trains models, over files of about 100 kB each."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from field import data, tried


def _yolo(folder: Path) -> None:
    for part in "images", "labels":
        (folder / part / "train").mkdir(parents=True)
    for number in range(data.COUNT):
        (folder / f"images/train/{number:03}.jpg").write_bytes(data.jpeg(number, 256))
        (folder / f"labels/train/{number:03}.txt").write_text("0 0.5 0.5 0.25 0.25\n" * 2)


def _yolo_dataset(folder: Path, **options):
    from ultralytics.cfg import get_cfg
    from ultralytics.data import YOLODataset

    return YOLODataset(
        img_path=str(folder / "images/train"),
        data={"names": {0: "cat"}, "nc": 1, "channels": 3},
        imgsz=64,
        hyp=get_cfg(),
        task="detect",
        **options,
    )


_ULTRALYTICS = "ultralytics", "ultralytics.data", "ultralytics.cfg"


@tried("ultralytics `build_dataloader`, mosaic augmentation", *_ULTRALYTICS, write=_yolo)
def yolo_train(folder: Path):
    from ultralytics.data.build import build_dataloader

    return build_dataloader(_yolo_dataset(folder, augment=True), 4, 2, device="cpu")


@tried("ultralytics `build_dataloader`, for validation", *_ULTRALYTICS, write=_yolo)
def yolo_val(folder: Path):
    from ultralytics.data.build import build_dataloader

    return build_dataloader(_yolo_dataset(folder, augment=False), 4, 2, False, device="cpu")


@tried(
    'ultralytics `YOLODataset(cache="disk")`, in a copy of the folder',
    *_ULTRALYTICS,
    write=_yolo,
    copied=True,
)
def yolo_cache(folder: Path):
    dataset = _yolo_dataset(folder, augment=False, cache="disk")
    return DataLoader(dataset, 4, num_workers=2, collate_fn=dataset.collate_fn)


_TIMM = "timm", "timm.data"


def _timm(folder: Path, **options):
    from timm.data import create_dataset, create_loader

    return create_loader(
        create_dataset("", root=str(folder)),
        input_size=(3, 64, 64),
        batch_size=4,
        num_workers=2,
        use_prefetcher=False,
        device=torch.device("cpu"),
        **options,
    )


@tried("timm `create_loader(use_multi_epochs_loader=True)`", *_TIMM, write=data.large_pictures)
def timm_multi_epochs(folder: Path):
    return _timm(folder, is_training=True, use_multi_epochs_loader=True)


@tried("timm `MultiEpochsDataLoader`, in order", *_TIMM, write=data.large_pictures)
def timm_multi_epochs_plain(folder: Path):
    from timm.data import create_dataset
    from timm.data.loader import MultiEpochsDataLoader

    dataset = create_dataset("", root=str(folder), transform=as_small_tensor)
    return MultiEpochsDataLoader(dataset, batch_size=4, num_workers=2)


def as_small_tensor(image):
    """A picture as a tensor of 64 by 64."""
    return torch.from_numpy(np.array(image.resize((64, 64))))


@tried("timm `create_loader`, its `PrefetchLoader`", *_TIMM, write=data.large_pictures)
def timm_prefetch(folder: Path):
    from timm.data import create_dataset, create_loader

    dataset = create_dataset("", root=str(folder))
    device = torch.device("cpu")
    return create_loader(dataset, (3, 64, 64), 4, num_workers=2, device=device)


@tried("timm `create_loader`, its `PrefetchLoader.loader`", *_TIMM, write=data.large_pictures)
def timm_prefetched(folder: Path):
    return timm_prefetch(folder).loader


@tried("timm `create_loader` with `FastCollateMixup`", *_TIMM, write=data.large_pictures)
def timm_mixup(folder: Path):
    from timm.data import FastCollateMixup

    mixup = FastCollateMixup(mixup_alpha=0.8, num_classes=2)
    return _timm(folder, is_training=True, collate_fn=mixup)


class FlowAugmentor:
    """RAFT: a crop and a change of the brightness, by NumPy's global generator."""

    def __call__(self, images: np.ndarray, flow: np.ndarray):
        """A crop of two pictures and the flow between them."""
        y, x = np.random.randint(16), np.random.randint(16)  # noqa: NPY002  # as RAFT does
        factor = np.float32(np.random.uniform(0.6, 1.4))  # noqa: NPY002  # as RAFT does
        return images[:, y : y + 96, x : x + 96] * factor, flow[y : y + 96, x : x + 96]


def read_flow(path: str) -> np.ndarray:
    """RAFT `readFlow`, which lengthens a short file by repeating it."""
    with open(path, "rb") as file:
        magic = np.fromfile(file, np.float32, count=1)
        if magic != 202021.25:
            raise ValueError("Magic number incorrect. Invalid .flo file")
        w, h = np.fromfile(file, np.int32, count=1), np.fromfile(file, np.int32, count=1)
        values = np.fromfile(file, np.float32, count=2 * int(w[0]) * int(h[0]))
        return np.resize(values, (int(h[0]), int(w[0]), 2))


class FlyingChairs(Dataset):
    """RAFT `FlowDataset`: each worker seeds its generators once, by its number."""

    def __init__(self, folder: Path) -> None:
        self.flows = sorted(map(str, folder.glob("*.flo")))
        self.seeded = False
        self.augmentor = FlowAugmentor()

    def __len__(self) -> int:
        return len(self.flows)

    def __getitem__(self, index: int):
        from PIL import Image

        info = torch.utils.data.get_worker_info()
        if not self.seeded and info is not None:
            torch.manual_seed(info.id)
            np.random.seed(info.id)  # noqa: NPY002  # as RAFT does
            random.seed(info.id)
            self.seeded = True
        path = self.flows[index % len(self.flows)]
        images = [
            np.array(Image.open(path.replace(".flo", f"_img{n}.ppm")), np.float32) for n in (1, 2)
        ]
        images, flow = self.augmentor(np.stack(images), read_flow(path))
        return torch.from_numpy(images), torch.from_numpy(flow)


def _chairs(folder: Path) -> None:
    from PIL import Image

    for number in range(data.COUNT):
        flow = data.random(number).standard_normal((112, 112, 2)).astype(np.float32)
        head = np.float32(202021.25).tobytes() + np.array([112, 112], np.int32).tobytes()
        (folder / f"{number:05}.flo").write_bytes(head + flow.tobytes())
        for side in 1, 2:
            picture = Image.fromarray(data.noise(number * 2 + side, 112, 112, 3))
            picture.save(folder / f"{number:05}_img{side}.ppm")


@tried("RAFT-like `FlyingChairs`, shuffled", "numpy", "PIL", write=_chairs)
def raft_like(folder: Path):
    return DataLoader(
        FlyingChairs(folder), 4, shuffle=True, num_workers=2, pin_memory=False, drop_last=True
    )


class SampleDataset(Dataset):
    """stable-audio-tools: the time of loading in each sample, another file for a bad one."""

    def __init__(self, folder: Path) -> None:
        self.filenames = sorted(map(str, folder.glob("*.wav")))
        self.size = 50_000

    def __len__(self) -> int:
        return len(self.filenames)

    def __getitem__(self, index: int):
        import time

        import soundfile

        path = self.filenames[index]
        try:
            start = time.time()
            audio, rate = soundfile.read(path, dtype="float32")
            info = {"path": path, "sample_rate": rate, "load_time": time.time() - start}
            padded = np.zeros(self.size, np.float32)
            padded[: len(audio)] = audio[: self.size]
            return torch.from_numpy(padded), info
        except Exception as error:  # noqa: BLE001  # as stable-audio-tools does
            print(f"Couldn't load file {path}: {error}")
            return self[random.randrange(len(self))]


def _sounds(folder: Path) -> None:
    from scipy.io import wavfile

    for number in range(data.COUNT):
        samples = data.random(number).integers(-(2**15), 2**15, 50_000).astype(np.int16)
        wavfile.write(folder / f"{number:03}.wav", 16000, samples)


@tried("stable-audio-tools-like `SampleDataset`", "soundfile", write=_sounds)
def stable_audio_like(folder: Path):
    return DataLoader(SampleDataset(folder), 4, shuffle=True, num_workers=2)


class Pairs(Dataset):
    """Two pictures at a time, by a loader that is made for each sample."""

    def __init__(self, pictures) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int):
        pair = torch.utils.data.Subset(self.pictures, [index, (index + 1) % len(self)])
        (batch,) = DataLoader(pair, batch_size=2, num_workers=0)
        return batch


@tried("pairs, by a `DataLoader` in `__getitem__`", "PIL", write=data.large_pictures, code="own")
def nested_loader(folder: Path):
    from field.streams import Pictures

    return Pairs(Pictures(folder))


class OpenedLater(Dataset):
    """Rows of an HDF5 file that `worker_init_fn` opens in each worker."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, None

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int):
        return torch.from_numpy(self.file["x"][index])


def open_file(worker: int) -> None:
    """Open the file of this worker's copy of the dataset."""
    import h5py

    dataset = torch.utils.data.get_worker_info().dataset
    dataset.file = h5py.File(dataset.path)


def _large_hdf5(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "x.h5", "w") as file:
        rows = data.random(0).standard_normal((32, 50_000)).astype(np.float32)
        file.create_dataset("x", data=rows, chunks=(1, 50_000))


@tried("h5py file opened by `worker_init_fn`", "h5py", write=_large_hdf5, code="own")
def h5_opened_later(folder: Path):
    return DataLoader(OpenedLater(folder / "x.h5"), 4, num_workers=2, worker_init_fn=open_file)
