"""Arrays and graphs: memmap, HDF5, zarr, safetensors, tensordict, PyG, LMDB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from field import data, tried


class Windows:
    """Windows of a file of tokens that is mapped anew for each sample, as nanoGPT does."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int):
        tokens = np.memmap(self.path, dtype=np.uint16, mode="r")
        start = index * 64
        x = torch.from_numpy(tokens[start : start + 64].astype(np.int64))
        y = torch.from_numpy(tokens[start + 1 : start + 65].astype(np.int64))
        return x, y


@tried("nanoGPT-like memmap, mapped by each sample", "numpy", write=data.records)
def nanogpt(folder: Path):
    return Windows(str(folder / "tokens.bin"))


@tried("torch `TensorDataset` over np.memmap", "torch", write=data.records)
def tensor_memmap(folder: Path):
    tokens = np.memmap(folder / "tokens.bin", dtype=np.int16, mode="r", shape=(32, 128))
    return TensorDataset(torch.from_numpy(np.asarray(tokens)))


def _npy(folder: Path) -> None:
    np.save(folder / "x.npy", data.noise(0, 32, 700))


class Rows:
    """Rows of an array that is kept on the object."""

    def __init__(self, values) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int):
        return np.array(self.values[index])


@tried("`np.load(mmap_mode='r')` on the object", "numpy", write=_npy, code="own")
def npy_mapped(folder: Path):
    return Rows(np.load(folder / "x.npy", mmap_mode="r"))


def _hdf5(folder: Path) -> None:
    import h5py

    for part in range(4):
        with h5py.File(folder / f"{part}.h5", "w") as file:
            file["kspace"] = data.noise(part, 6, 32, 32)


class Slices:
    """Slices of volumes in HDF5 files, opened for each sample, as fastMRI does."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(map(str, folder.glob("*.h5")))
        self.slices = [(path, number) for path in paths for number in range(6)]

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, index: int):
        import h5py

        path, number = self.slices[index]
        with h5py.File(path, "r") as file:
            return file["kspace"][number]


@tried("fastMRI-like slices, opened by each sample", "h5py", write=_hdf5)
def h5_slices(folder: Path):
    return Slices(folder)


class KeptHdf5:
    """An HDF5 file that is opened when the dataset is made."""

    def __init__(self, path: str) -> None:
        import h5py

        self.values = h5py.File(path, "r")["kspace"]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int):
        return self.values[index]


@tried("h5py file opened in `__init__`", "h5py", write=_hdf5, code="own")
def h5_kept(folder: Path):
    return KeptHdf5(str(folder / "0.h5"))


class LazyHdf5(KeptHdf5):
    """An HDF5 file that each worker opens with its first sample."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.values = None

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int):
        if self.values is None:
            super().__init__(self.path)
        return self.values[index]


@tried(
    "h5py file opened by the worker",
    "h5py",
    write=_hdf5,
    loader={"num_workers": 2, "batch_size": 1},
)
def h5_lazy(folder: Path):
    return LazyHdf5(str(folder / "0.h5"))


def _zarr(folder: Path) -> None:
    import zarr

    store = zarr.create_array(
        str(folder / "x.zarr"), shape=(16, 32, 32), chunks=(1, 32, 32), dtype="u1"
    )
    store[:] = data.noise(0, 16, 32, 32)


class ZarrRows:
    """A zarr array, opened in each process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.values = None

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int):
        import zarr

        if self.values is None:
            self.values = zarr.open_array(self.path, mode="r")
        return np.asarray(self.values[index])


@tried("zarr array, opened by the worker", "zarr", write=_zarr)
def zarr_rows(folder: Path):
    return ZarrRows(str(folder / "x.zarr"))


def _safetensors(folder: Path) -> None:
    from safetensors.torch import save_file

    for number in range(8):
        values = torch.from_numpy(data.noise(number, 3, 400))
        save_file({"x": values}, str(folder / f"{number}.safetensors"))


class SafeTensors:
    """A file for each sample."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*.safetensors")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        from safetensors import safe_open

        with safe_open(self.paths[index], framework="pt") as file:
            return file.get_tensor("x")


@tried("safetensors `safe_open`", "safetensors", "safetensors.torch", write=_safetensors)
def safetensors_files(folder: Path):
    return SafeTensors(folder)


class TorchFiles:
    """A .pt file for each sample."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*.pt")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        return torch.load(self.paths[index])


def _torch_files(folder: Path) -> None:
    for number in range(12):
        torch.save({"x": torch.from_numpy(data.noise(number, 40, 40))}, folder / f"{number:02}.pt")


@tried("`torch.load` of a file a sample", "torch", write=_torch_files)
def torch_files(folder: Path):
    return TorchFiles(folder)


def _tensordict(folder: Path) -> None:
    from tensordict import TensorDict

    values = {"x": torch.from_numpy(data.noise(0, 32, 200)), "y": torch.arange(32)}
    TensorDict(values, batch_size=[32]).memmap(str(folder / "td"))


def first(batch):
    """A TensorDict has its own batches."""
    return batch


@tried(
    "tensordict memmap `TensorDict`",
    "tensordict",
    write=_tensordict,
    loader={"num_workers": 2, "batch_size": 4, "collate_fn": first},
)
def tensordict_memmap(folder: Path):
    from tensordict import TensorDict

    return TensorDict.load_memmap(str(folder / "td"))


def stacked(samples):
    """Samples that are TensorDicts, as one."""
    return torch.stack(samples)


@tried(
    "tensordict samples, stacked",
    "tensordict",
    write=_tensordict,
    loader={"num_workers": 2, "batch_size": 4, "collate_fn": stacked},
)
def tensordict_rows(folder: Path):
    return TensorDictRows(str(folder / "td"))


class TensorDictRows:
    """A TensorDict a sample."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int):
        from tensordict import TensorDict

        return TensorDict.load_memmap(self.path)[index]


def _graph(number: int):
    from torch_geometric.data import Data

    x = torch.from_numpy(data.noise(number, 5, 3)).float()
    return Data(x=x, edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), y=torch.tensor([number]))


def _pyg_in_memory_class():
    from torch_geometric.data import InMemoryDataset

    class Graphs(InMemoryDataset):
        def __init__(self, root):
            super().__init__(root)
            self.load(self.processed_paths[0])

        @property
        def processed_file_names(self):
            return ["graphs.pt"]

        def process(self):
            self.save([_graph(number) for number in range(24)], self.processed_paths[0])

    return Graphs


@tried(
    "PyG `InMemoryDataset`, PyG `DataLoader`",
    "torch_geometric",
    "torch_geometric.data",
    "torch_geometric.loader",
    write=lambda folder: None,
)
def pyg_memory(folder: Path):
    from torch_geometric.loader import DataLoader

    return DataLoader(_pyg_in_memory_class()(str(folder)), batch_size=4, num_workers=2)


def _pyg_files_class():
    from torch_geometric.data import Dataset

    class Graphs(Dataset):
        @property
        def processed_file_names(self):
            return [f"{number:02}.pt" for number in range(12)]

        def process(self):
            for number, path in enumerate(self.processed_paths):
                torch.save(_graph(number), path)

        def len(self):
            return 12

        def get(self, index):
            return torch.load(self.processed_paths[index], weights_only=False)

    return Graphs


@tried(
    "PyG `Dataset`, a file a graph",
    "torch_geometric",
    "torch_geometric.data",
    "torch_geometric.loader",
    write=lambda folder: None,
)
def pyg_files(folder: Path):
    from torch_geometric.loader import DataLoader

    return DataLoader(_pyg_files_class()(str(folder)), batch_size=4, num_workers=2)


def _on_disk(folder: Path) -> None:
    dataset = _open_on_disk(folder)
    for number in range(24):
        dataset.append(_graph(number))
    dataset.close()


def _open_on_disk(folder: Path):
    from torch_geometric.data import OnDiskDataset

    return OnDiskDataset(str(folder))


@tried(
    "PyG `OnDiskDataset`",
    "torch_geometric",
    "torch_geometric.data",
    "torch_geometric.loader",
    write=_on_disk,
)
def pyg_disk(folder: Path):
    from torch_geometric.loader import DataLoader

    return DataLoader(_open_on_disk(folder), batch_size=4, num_workers=2)


def _lmdb(folder: Path) -> None:
    import lmdb

    with (
        lmdb.open(str(folder / "x.mdb"), subdir=False, map_size=1 << 24) as store,
        store.begin(write=True) as transaction,
    ):
        for number in range(24):
            transaction.put(b"%04d" % number, data.jpeg(number))


class LmdbPictures:
    """An LMDB environment that is opened in `__init__`, as torchfast and many others do."""

    def __init__(self, path: str) -> None:
        import lmdb

        self.store = lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int):
        with self.store.begin() as transaction:
            return transaction.get(b"%04d" % index)[:64]


@tried("LMDB opened in `__init__`", "lmdb", write=_lmdb, code="own")
def lmdb_kept(folder: Path):
    return LmdbPictures(str(folder / "x.mdb"))


class LazyLmdb(LmdbPictures):
    """An LMDB environment that each worker opens with its first sample."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.store = None

    def __getitem__(self, index: int):
        if self.store is None:
            super().__init__(self.path)
        return super().__getitem__(index)


@tried("LMDB opened by the worker", "lmdb", write=_lmdb)
def lmdb_lazy(folder: Path):
    return LazyLmdb(str(folder / "x.mdb"))
