"""Datasets that read or map their files in the constructor: tokens, pickles, tables, indices."""

from __future__ import annotations

import bisect
import json
import pickle
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from field import data, tried
from field.arrays import Rows, _hdf5
from field.records import _documents
from field.tables import _sqlite


class Batches:
    """nanoGPT: windows at random places of tokens that are mapped once; here by the index."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int):
        random = torch.Generator().manual_seed(index)
        start = int(torch.randint(len(self.tokens) - 64, (1,), generator=random))
        x = torch.from_numpy(self.tokens[start : start + 64].astype(np.int64))
        y = torch.from_numpy(self.tokens[start + 1 : start + 65].astype(np.int64))
        return x, y


@tried("nanoGPT-like `get_batch`, mapped in `__init__`", "numpy", write=data.records)
def nanogpt_batches(folder: Path):
    return Batches(folder / "tokens.bin")


class Blocks:
    """Blocks of tokens, as many as the size of the file says."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")

    def __len__(self) -> int:
        return len(self.tokens) // 128

    def __getitem__(self, index: int):
        return torch.from_numpy(self.tokens[index * 128 : index * 128 + 128].astype(np.int64))


@tried("np.memmap, its length from the size of the file", "numpy", write=data.records, code="own")
def memmap_blocks(folder: Path):
    return Blocks(folder / "tokens.bin")


_HEADER = struct.Struct("<7sQBQ")


def _packed(folder: Path) -> None:
    for number in range(4):
        tokens = data.random(number).integers(0, 30000, 512).astype(np.uint16)
        head = _HEADER.pack(b"LITPKDS", 1, 8, len(tokens))
        (folder / f"train_{number:010}.bin").write_bytes(head + tokens.tobytes())


class Packed(IterableDataset):
    """TinyLlama: files of blocks with a header; the first one's says how many blocks each has."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator:
        info = get_worker_info()
        mine = self.paths[info.id :: info.num_workers] if info else self.paths
        blocks = None
        mapped = []
        for path in mine:
            if blocks is None:
                with open(path, "rb") as file:
                    magic, version, code, size = _HEADER.unpack(file.read(_HEADER.size))
                assert (magic, version, code) == (b"LITPKDS", 1, 8)
                blocks = size // 64
            mapped.append(memoryview(np.memmap(path, mode="r", offset=_HEADER.size)))
        order = np.random.default_rng(12345).permutation(len(mine) * blocks)
        for block in order:
            buffer, offset = mapped[block // blocks], block % blocks * 128
            tokens = np.frombuffer(buffer, dtype=np.uint16, count=64, offset=offset)
            yield torch.from_numpy(tokens.astype(np.int64))


@tried("TinyLlama-like `PackedDataset`, one pass", "numpy", write=_packed)
def packed_like(folder: Path):
    return Packed(sorted(map(str, folder.glob("*.bin"))))


@tried(
    "megatron-core `IndexedDataset`, `mmap=False`",
    "megatron.core",
    "megatron.core.datasets.indexed_dataset",
    write=_documents,
)
def megatron_file(folder: Path):
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    return IndexedDataset(str(folder / "x"), mmap=False)


_INDEX = struct.Struct("<9sQBQ")


def _fairseq(folder: Path) -> None:
    values = [data.random(number).integers(0, 30000, 64) for number in range(24)]
    (folder / "x.bin").write_bytes(b"".join(each.astype(np.uint16).tobytes() for each in values))
    sizes = np.full(24, 64, np.int32)
    pointers = np.arange(24, dtype=np.int64) * 128
    head = _INDEX.pack(b"MMIDIDX\0\0", 1, 8, 24)
    (folder / "x.idx").write_bytes(head + sizes.tobytes() + pointers.tobytes())


class Indexed:
    """fairseq `MMapIndexedDataset`: an index and tokens, both read once and mapped."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        with open(f"{prefix}.idx", "rb") as file:
            magic, version, code, self.count = _INDEX.unpack(file.read(_INDEX.size))
        assert (magic, version, code) == (b"MMIDIDX\0\0", 1, 8)
        index = memoryview(self._mapped(f"{prefix}.idx"))
        self.sizes = np.frombuffer(index, np.int32, self.count, _INDEX.size)
        self.pointers = np.frombuffer(index, np.int64, self.count, _INDEX.size + 4 * self.count)
        self.tokens = memoryview(self._mapped(f"{prefix}.bin"))

    def __getstate__(self) -> str:
        return self.prefix

    def __setstate__(self, prefix: str) -> None:
        self.__init__(prefix)

    @staticmethod
    def _mapped(path: str) -> np.memmap:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass
        return np.memmap(path, mode="r")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        size, pointer = self.sizes[index], self.pointers[index]
        return torch.from_numpy(
            np.frombuffer(self.tokens, np.uint16, size, pointer).astype(np.int64)
        )


@tried("fairseq-like `MMapIndexedDataset`", "numpy", write=_fairseq)
def fairseq_like(folder: Path):
    return Indexed(str(folder / "x"))


def _cifar(folder: Path) -> None:
    base = folder / "cifar-10-batches-py"
    base.mkdir()
    for part in range(5):
        rows = {"data": data.noise(part, 8, 3072), "labels": [n % 10 for n in range(8)]}
        (base / f"data_batch_{part + 1}").write_bytes(pickle.dumps(rows))


class Cifar:
    """torchvision `CIFAR10`: five pickles, read in `__init__`; without its check of MD5 sums."""

    def __init__(self, root: Path) -> None:
        self.data, self.targets = [], []
        for part in range(1, 6):
            with open(root / f"cifar-10-batches-py/data_batch_{part}", "rb") as file:
                entry = pickle.load(file, encoding="latin1")
                self.data.append(entry["data"])
                self.targets.extend(entry["labels"])
        self.data = np.vstack(self.data).reshape(-1, 3, 32, 32)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int):
        return torch.from_numpy(self.data[index]), self.targets[index]


@tried("torchvision-like `CIFAR10`, without its MD5 sums", "numpy", write=_cifar)
def cifar_like(folder: Path):
    return Cifar(folder)


def _mnist(folder: Path) -> None:
    head = struct.pack(">iiii", 0x803, 64, 28, 28)
    (folder / "images-idx3-ubyte").write_bytes(head + data.noise(0, 64, 28, 28).tobytes())
    head = struct.pack(">ii", 0x801, 64)
    (folder / "labels-idx1-ubyte").write_bytes(head + bytes(n % 10 for n in range(64)))


def _read_idx(path: Path) -> torch.Tensor:
    content = path.read_bytes()
    magic = int(content[:4].hex(), 16)
    dimensions = magic % 256
    assert 1 <= dimensions <= 3
    assert 8 <= magic // 256 <= 14
    start = 4 + 4 * dimensions
    shape = [int(content[place : place + 4].hex(), 16) for place in range(4, start, 4)]
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(*shape)


class Mnist:
    """torchvision `MNIST`: two files, read whole in `__init__`."""

    def __init__(self, root: Path) -> None:
        self.data = _read_idx(root / "images-idx3-ubyte")
        self.targets = _read_idx(root / "labels-idx1-ubyte").long()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int):
        return self.data[index], int(self.targets[index])


@tried("torchvision-like `MNIST`", "numpy", write=_mnist)
def mnist_like(folder: Path):
    return Mnist(folder)


def _medmnist(folder: Path) -> None:
    parts = {}
    for part, count in ("train", 546), ("val", 78), ("test", 156):
        parts[f"{part}_images"] = data.noise(count, count, 28, 28)
        parts[f"{part}_labels"] = np.arange(count).reshape(-1, 1) % 2
    np.savez(folder / "breastmnist.npz", **parts)


def as_array(image):
    """A picture as a tensor."""
    return torch.from_numpy(np.array(image))


@tried("medmnist `BreastMNIST`", "medmnist", write=_medmnist)
def medmnist_npz(folder: Path):
    import medmnist

    return medmnist.BreastMNIST(split="val", root=str(folder), transform=as_array)


def _arrow(folder: Path) -> None:
    import pyarrow as pa

    for part in range(2):
        rows = [{"image": data.jpeg(n), "caption": f"caption {n}"} for n in range(part, 32, 2)]
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(folder / f"coco_{part}.arrow"), "wb") as sink:
            writer = pa.RecordBatchFileWriter(sink, table.schema)
            writer.write_table(table, max_chunksize=4)
            writer.close()


class Captioned:
    """ViLT: tables of pictures that are mapped; a table that is not there is left out."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        import pyarrow as pa

        paths = [folder / f"{name}.arrow" for name in names]
        tables = [
            pa.ipc.RecordBatchFileReader(pa.memory_map(str(path), "r")).read_all()
            for path in paths
            if path.is_file()
        ]
        self.table = pa.concat_tables(tables, promote_options="default")
        self.texts = self.table["caption"].to_pandas().tolist()

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int):
        import io

        from PIL import Image

        picture = Image.open(io.BytesIO(self.table["image"][index].as_py())).convert("RGB")
        return as_array(picture), self.texts[index]


@tried("ViLT-like `BaseDataset`, Arrow, mapped", "pyarrow", "pandas", "PIL", write=_arrow)
def vilt_like(folder: Path):
    return Captioned(folder, ["coco_0", "coco_1"])


def _episodes(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "data/chunk-000").mkdir(parents=True)
    for part in range(4):
        rows = [
            {"episode_index": part, "index": n, "state": data.random(n).random(6).tolist()}
            for n in range(part * 16, part * 16 + 16)
        ]
        path = folder / f"data/chunk-000/file-{part:03}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
    (folder / "info.json").write_text(json.dumps({"total_episodes": 4, "total_frames": 64}))


def to_torch(items):
    """Lists of numbers as tensors."""
    return {key: [torch.tensor(each) for each in values] for key, values in items.items()}


class Robot:
    """LeRobot: Parquet that `datasets` makes an Arrow cache of; counts are those of info.json."""

    def __init__(self, folder: Path) -> None:
        from datasets import Dataset

        info = json.loads((folder / "info.json").read_text())
        paths = sorted(map(str, folder.glob("data/*/*.parquet")))
        if not paths:
            raise FileNotFoundError(f"{folder} has no Parquet file")
        self.rows = Dataset.from_parquet(paths, cache_dir=str(folder / "cache"))
        self.rows.set_transform(to_torch)
        episodes = set(map(int, self.rows.unique("episode_index")))
        if not episodes.issuperset(range(info["total_episodes"])):
            raise FileNotFoundError("some episodes are missing")
        self.count = info["total_frames"]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        return self.rows[index]


@tried("LeRobot-like Parquet, real `datasets`", "datasets", write=_episodes)
def lerobot_like(folder: Path):
    return Robot(folder)


def _tensors(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({f"{n:03}": torch.from_numpy(data.noise(n, 400)) for n in range(32)}, folder / "x.st")


class KeptTensors:
    """A file of tensors that is opened, and so mapped, in `__init__`."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self.file = safe_open(path, framework="pt")
        self.names = sorted(self.file.keys())

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int):
        return self.file.get_tensor(self.names[index])


_SAFE = "safetensors", "safetensors.torch"


@tried("safetensors `safe_open` in `__init__`", *_SAFE, write=_tensors, code="own")
def safetensors_kept(folder: Path):
    return KeptTensors(folder / "x.st")


def _tensor(folder: Path) -> None:
    torch.save(torch.from_numpy(data.noise(0, 32, 700)), folder / "x.pt")


@tried("`torch.load(mmap=True)` on the object", "torch", write=_tensor, code="own")
def torch_mapped(folder: Path):
    return Rows(torch.load(folder / "x.pt", mmap=True))


@tried("`torch.load` of all samples in `__init__`", "torch", write=_tensor, code="own")
def torch_whole(folder: Path):
    return Rows(torch.load(folder / "x.pt"))


def _raw(folder: Path) -> None:
    data.noise(0, 32, 700).tofile(folder / "x.bin")


@tried("`np.fromfile(...).reshape(-1, n)` in `__init__`", "numpy", write=_raw, code="own")
def fromfile_rows(folder: Path):
    return Rows(np.fromfile(folder / "x.bin", dtype=np.uint8).reshape(-1, 700))


class Parsed:
    """Lines of JSON that are parsed in `__init__`, as scripts for fine-tuning do."""

    def __init__(self, paths: list[Path]) -> None:
        self.rows = []
        for path in paths:
            with open(path, encoding="utf-8") as file:
                self.rows += [json.loads(line) for line in file]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int):
        return self.rows[index]


@tried("JSON lines, all parsed in `__init__`", write=data.json_lines, code="own")
def json_parsed(folder: Path):
    return Parsed(sorted(folder.glob("*.jsonl")))


@tried("pandas `read_parquet` in `__init__`", "pandas", "pyarrow", write=data.parquet, code="own")
def pandas_parquet(folder: Path):
    import pandas as pd

    frames = [pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))]
    return Rows(pd.concat(frames)["number"].to_numpy())


def _table(folder: Path) -> None:
    lines = "".join(f"{n},{n * 7}\n" for n in range(400))
    (folder / "x.csv").write_text(f"a,b\n{lines}", encoding="utf-8")


@tried("pandas `read_csv` in `__init__`", "pandas", write=_table, code="own")
def pandas_csv(folder: Path):
    import pandas as pd

    return Rows(pd.read_csv(folder / "x.csv").to_numpy())


class CountedSqlite:
    """Rows that `__init__` counts; each process opens the file with its first sample."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as store:
            (self.count,) = store.execute("select count(*) from records").fetchone()
        store.close()
        self.store: sqlite3.Connection | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        if self.store is None:
            self.store = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        query = "select data from records where number = ?"
        return self.store.execute(query, (index,)).fetchone()[0]


@tried("sqlite3, rows counted in `__init__`", write=_sqlite, code="own")
def sqlite_counted(folder: Path):
    return CountedSqlite(folder / "x.db")


class WholeHdf5:
    """Volumes that are read whole in `__init__`."""

    def __init__(self, folder: Path) -> None:
        import h5py

        self.volumes = []
        for path in sorted(folder.glob("*.h5")):
            with h5py.File(path, "r") as file:
                self.volumes.append(file["kspace"][()])
        self.ends = np.cumsum([len(each) for each in self.volumes]).tolist()

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int):
        number = bisect.bisect_right(self.ends, index)
        return self.volumes[number][index - self.ends[number]]


@tried("h5py, volumes read in `__init__`", "h5py", write=_hdf5, code="own")
def h5_whole(folder: Path):
    return WholeHdf5(folder)
