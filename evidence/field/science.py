"""Science: xbatcher, anndata, tonic, Minari, DICOM, FASTA."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from field import data, tried
from field.records import Arrays


def _netcdf(folder: Path) -> None:
    import xarray

    values = data.random(0).random((64, 40, 40)).astype(np.float32)
    rows = xarray.Dataset({"x": (("time", "a", "b"), values)})
    rows.to_netcdf(folder / "x.nc", engine="h5netcdf")


@tried(
    "xbatcher `MapDataset`, h5netcdf",
    "xbatcher",
    "xbatcher.loaders.torch",
    "xarray",
    "h5netcdf",
    write=_netcdf,
)
def xbatcher_h5(folder: Path):
    import xarray
    import xbatcher
    from xbatcher.loaders.torch import MapDataset

    opened = xarray.open_dataset(folder / "x.nc", engine="h5netcdf")["x"]
    return MapDataset(xbatcher.BatchGenerator(opened, {"time": 4, "a": 40, "b": 40}))


def _h5ad(folder: Path) -> None:
    import anndata
    import scipy.sparse

    matrix = scipy.sparse.random(64, 200, density=0.3, format="csr", random_state=0)
    anndata.AnnData(matrix.astype(np.float32)).write_h5ad(folder / "x.h5ad")


class Backed:
    """Rows of a backed AnnData that each worker opens."""

    def __init__(self, path: Path) -> None:
        self.path, self.opened = str(path), None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int):
        import anndata

        if self.opened is None:
            self.opened = anndata.read_h5ad(self.path, backed="r")
        return torch.from_numpy(self.opened.X[index].toarray())


@tried("anndata, backed, opened by the worker", "anndata", write=_h5ad)
def anndata_backed(folder: Path):
    return Backed(folder / "x.h5ad")


class Numbered(Arrays):
    """An array and its number."""

    def __getitem__(self, index: int):
        return super().__getitem__(index), index


@tried("tonic `DiskCachedDataset`", "tonic", write=data.array_files)
def tonic_cached(folder: Path):
    import tonic

    return tonic.DiskCachedDataset(Numbered(folder), cache_path=str(folder / "cache"))


def _episodes(folder: Path) -> None:
    import gymnasium
    import minari

    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    env = minari.DataCollector(gymnasium.make("CartPole-v1"))
    for episode in range(16):
        env.reset(seed=episode)
        env.action_space.seed(episode)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
    env.create_dataset(
        "cartpole/test-v0",
        algorithm_name="random",
        author="nobody",
        author_email="nobody@example.org",
        code_permalink="none",
    )


def as_list(samples):
    """Episodes have any length."""
    return [(each.id, each.observations, each.actions) for each in samples]


@tried(
    "Minari `MinariDataset`",
    "minari",
    "gymnasium",
    write=_episodes,
    loader={"num_workers": 2, "batch_size": 2, "collate_fn": as_list},
)
def minari_episodes(folder: Path):
    import minari

    return minari.load_dataset("cartpole/test-v0")


def _dicoms(folder: Path) -> None:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    for number in range(16):
        path = folder / f"{number:02}.dcm"
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = CTImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset = FileDataset(str(path), {}, file_meta=meta, preamble=bytes(128))
        dataset.Rows = dataset.Columns = 32
        dataset.BitsAllocated = dataset.BitsStored = 16
        dataset.HighBit, dataset.SamplesPerPixel, dataset.PixelRepresentation = 15, 1, 0
        dataset.PhotometricInterpretation = "MONOCHROME2"
        dataset.PixelData = data.noise(number, 32 * 32 * 2).tobytes()
        dataset.save_as(path, enforce_file_format=True)


class Slices:
    """A slice a file."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*.dcm")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        import pydicom

        return torch.from_numpy(pydicom.dcmread(self.paths[index]).pixel_array.astype(np.int32))


@tried("pydicom `dcmread`, a slice a file", "pydicom", write=_dicoms)
def dicom_files(folder: Path):
    return Slices(folder)


def _fasta(folder: Path) -> None:
    with open(folder / "x.fa", "w", encoding="ascii") as file:
        for number in range(8):
            file.write(f">chr{number}\n")
            letters = data.random(number).choice(list("ACGT"), (100, 60))
            file.writelines("".join(line) + "\n" for line in letters)


class Genome:
    """hyena-dna: DNA of a place, by a FASTA file that is opened in `__init__`."""

    def __init__(self, path: Path) -> None:
        import pyfaidx

        self.genome = pyfaidx.Fasta(str(path))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int):
        return str(self.genome[f"chr{index % 8}"][index * 50 : index * 50 + 200])


@tried("hyena-dna-like: pyfaidx `Fasta` opened in `__init__`", "pyfaidx", write=_fasta)
def fasta_kept(folder: Path):
    return Genome(folder / "x.fa")
