"""What dataset classes of well-known repositories do when a read fails, written anew.

The repositories are no packages. Each class here has the way of its namesake with files, caches
and errors, and nothing else of it.
"""

from __future__ import annotations

import logging
import os
import random
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from field import data, tried
from field.arrays import LmdbPictures
from field.audio_video import Sounds
from field.streams import Pictures


class CachedSpectra(Sounds):
    """VITS: the spectrum is saved next to the sound, and loaded from there."""

    def __getitem__(self, index: int):
        from scipy.io import wavfile

        path = self.paths[index]
        cache = path.replace(".wav", ".spec.pt")
        if os.path.exists(cache):
            return torch.load(cache)
        rate, values = wavfile.read(path)
        assert rate == 8000
        sound = torch.from_numpy(values.astype(np.float32))
        spectrum = torch.stft(sound, 256, return_complex=True).abs()
        torch.save(spectrum, cache)
        return spectrum


@tried("VITS-like: a cache beside the data", "scipy", "scipy.io", write=data.sounds)
def vits_cache(folder: Path):
    return CachedSpectra(folder)


def _cold(folder: Path) -> None:
    data.sounds(folder)


@tried("VITS-like, the factory empties the cache", "scipy", "scipy.io", write=_cold)
def vits_cold(folder: Path):
    for path in folder.glob("*.spec.pt"):
        path.unlink()
    return CachedSpectra(folder)


class Another(Pictures):
    """jepa: while a sample cannot be loaded, another random one is."""

    def __getitem__(self, index: int):
        while True:
            try:
                return super().__getitem__(index), index
            except Exception:  # noqa: BLE001  # as there
                index = random.randrange(len(self))


@tried(
    "jepa-like: another random sample in place of an error",
    "torch",
    "PIL",
    write=data.pictures,
    deadline=15.0,
)
def jepa_like(folder: Path):
    return Another(folder)


class Retried(Pictures):
    """RealESRGAN: three tries, each after the first with another file."""

    def __getitem__(self, index: int):
        tries = 3
        while tries > 0:
            try:
                with open(self.paths[index], "rb") as file:
                    content = file.read()
            except OSError:
                index = random.randint(0, len(self))
            else:
                break
            finally:
                tries -= 1
        return torch.frombuffer(bytearray(content[-512:]), dtype=torch.uint8)


@tried("RealESRGAN-like: three tries with other files", "torch", "PIL", write=data.pictures)
def realesrgan_like(folder: Path):
    return Retried(folder)


class Dummy(LmdbPictures):
    """deep-text-recognition: a black picture and a dummy label in place of an IOError."""

    def __getitem__(self, index: int):
        import io

        from PIL import Image

        try:
            with self.store.begin() as transaction:
                content = transaction.get(b"%04d" % index)
            picture, label = np.array(Image.open(io.BytesIO(content))), str(index)
        except OSError:
            picture, label = np.zeros((48, 48, 3), np.uint8), "[dummy_label]"
        return torch.from_numpy(picture), label


def _lmdb(folder: Path) -> None:
    from field.arrays import _lmdb as write

    write(folder)


@tried("deep-text-recognition-like: LMDB, a black dummy", "lmdb", "PIL", write=_lmdb)
def deep_text_like(folder: Path):
    return Dummy(str(folder / "x.mdb"))


class BlackFiles(Pictures):
    """The same of files."""

    def __getitem__(self, index: int):
        try:
            return super().__getitem__(index), str(index)
        except OSError:
            return torch.zeros(48, 48, 3, dtype=torch.uint8), "[dummy_label]"


@tried("deep-text-recognition-like: files, a black dummy", "torch", "PIL", write=data.pictures)
def deep_text_files(folder: Path):
    return BlackFiles(folder)


class Recursive(Pictures):
    """mmps: a bare except, and a random other sample by recursion."""

    def __getitem__(self, index: int):
        try:
            return super().__getitem__(index)
        except:  # noqa: E722  # as there
            return self[random.randrange(len(self))]


@tried("mmps-like: bare except, a random other sample", "torch", "PIL", write=data.pictures)
def mmps_like(folder: Path):
    return Recursive(folder)


class Neighbour(Pictures):
    """mmengine and timm: the next sample, with a line in the log, and an end after ten."""

    def __getitem__(self, index: int):
        for offset in range(10):
            try:
                return super().__getitem__((index + offset) % len(self))
            except OSError as error:
                last_error = error
                logging.getLogger(__name__).warning("skipped %s: %s", index + offset, error)
        raise RuntimeError("no sample could be read") from last_error


@tried("mmengine-like: the next sample, logged", "torch", "PIL", write=data.pictures)
def neighbour(folder: Path):
    return Neighbour(folder)


class RetriedRead(Pictures):
    """A read that fails is tried twice more, and the error is raised then."""

    def __getitem__(self, index: int):
        for retries in 2, 1, 0:
            try:
                return super().__getitem__(index)
            except OSError:
                if not retries:
                    raise
        raise AssertionError


@tried("own class: a read is tried three times", "torch", "PIL", write=data.pictures)
def retried(folder: Path):
    return RetriedRead(folder)


def _zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "x.zip", "w") as archive:
        for number in range(64):
            archive.writestr(f"{number:03}.png", data.png(number))


class ZipFolder:
    """stylegan2-ada: a zip archive that is opened by the first picture, which `__init__` reads."""

    def __init__(self, path: Path) -> None:
        self.path, self.zip = str(path), None
        self.names = sorted(self.archive().namelist())
        self.shape = self[0].shape

    def archive(self) -> zipfile.ZipFile:
        """The open archive."""
        if self.zip is None:
            self.zip = zipfile.ZipFile(self.path)
        return self.zip

    def __getstate__(self) -> dict:
        return {**self.__dict__, "zip": None}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int):
        from PIL import Image

        with self.archive().open(self.names[index]) as file:
            return torch.from_numpy(np.array(Image.open(file)))


@tried("stylegan2-ada-like zip, opened in `__init__`", "torch", "PIL.Image", write=_zip)
def zip_folder(folder: Path):
    return ZipFolder(folder / "x.zip")


def _climate(folder: Path) -> None:
    for number in range(3):
        values = data.random(number).random((6, 8, 8)).astype(np.float32)
        np.savez(folder / f"{number}.npz", x=values)


class Climate(IterableDataset):
    """ClimaX: each worker has `len(files) // workers` files, and the rest is dropped."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(map(str, folder.glob("*.npz")))

    def __iter__(self):
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        share = len(self.files) // workers
        for path in self.files[number * share : number * share + share]:
            with np.load(path) as opened:
                yield from torch.from_numpy(opened["x"])


@tried("ClimaX-like stream of 3 files", "numpy", write=_climate)
def climax_three(folder: Path):
    return Climate(folder)
