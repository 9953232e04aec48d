"""Tables: Hugging Face, Arrow, Parquet, Polars, SQLite, shelve, Lance."""

from __future__ import annotations

import shelve
import sqlite3
from pathlib import Path

from field import data, tried
from pytest_dataloader_faults import part_of


@tried("Hugging Face `Dataset`, from Parquet", "datasets", write=data.parquet)
def hf_parquet(folder: Path):
    from datasets import Dataset

    files = sorted(map(str, folder.glob("*.parquet")))
    return Dataset.from_parquet(files, cache_dir=str(folder / "cache"))


def _saved(folder: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(data.rows()).save_to_disk(str(folder / "saved"))


@tried("Hugging Face `load_from_disk`", "datasets", write=_saved)
def hf_disk(folder: Path):
    from datasets import load_from_disk

    return load_from_disk(str(folder / "saved"))


@tried("Hugging Face `load_from_disk(keep_in_memory=True)`", "datasets", write=_saved)
def hf_disk_in_memory(folder: Path):
    from datasets import load_from_disk

    return load_from_disk(str(folder / "saved"), keep_in_memory=True)


@tried("Hugging Face `load_from_disk`, `with_format('torch')`", "datasets", write=_saved)
def hf_torch(folder: Path):
    return hf_disk(folder).select_columns(["number", "values"]).with_format("torch")


@tried("Hugging Face `DatasetDict`", "datasets", write=_saved)
def hf_dict(folder: Path):
    from datasets import DatasetDict

    rows = hf_disk(folder)
    splits = DatasetDict({"train": rows.select(range(40)), "test": rows.select(range(40, 64))})
    return part_of(splits, "train")()


def _images(folder: Path) -> None:
    from datasets import Dataset, Image

    data.pictures(folder)
    paths = sorted(map(str, folder.rglob("*.jpg")))
    table = Dataset.from_dict({"image": paths, "label": list(range(len(paths)))})
    table.cast_column("image", Image()).save_to_disk(str(folder / "saved"))


def _to_array(rows):
    import numpy as np
    import torch

    return {
        "image": [torch.from_numpy(np.array(each.convert("RGB"))) for each in rows["image"]],
        "label": rows["label"],
    }


@tried("Hugging Face `Image` column, `set_transform`", "datasets", "PIL", write=_images)
def hf_images(folder: Path):
    return hf_disk(folder).with_transform(_to_array)


@tried("Hugging Face imagefolder", "datasets", "PIL", write=data.pictures)
def hf_imagefolder(folder: Path):
    from datasets import load_dataset

    rows = load_dataset(
        "imagefolder",
        data_files=sorted(map(str, folder.glob("*/*.jpg"))),
        split="train",
        cache_dir=str(folder / "cache"),
        drop_labels=True,
    )
    return rows.with_transform(_only_array)


def _only_array(rows):
    return {"image": _to_array({"image": rows["image"], "label": 0})["image"]}


class ParquetRows:
    """Rows of Parquet files by pandas-like access: one row group a file."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*.parquet")))

    def __len__(self) -> int:
        return len(self.paths) * 16

    def __getitem__(self, index: int):
        import pyarrow.parquet as pq

        file = pq.ParquetFile(self.paths[index // 16])
        return file.read_row_group(0).slice(index % 16, 1).to_pylist()[0]


@tried("pyarrow `ParquetFile`, a row a sample", "pyarrow", "pyarrow.parquet", write=data.parquet)
def arrow_rows(folder: Path):
    return ParquetRows(folder)


class Scanned:
    """An Arrow dataset that is kept on the object."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.dataset

        files = sorted(map(str, folder.glob("*.parquet")))
        self.table = pyarrow.dataset.dataset(files, format="parquet")
        self.count = self.table.count_rows()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        return self.table.take([index], use_threads=False).to_pylist()[0]


@tried(
    "pyarrow `dataset.dataset(...).take`",
    "pyarrow",
    "pyarrow.dataset",
    write=data.parquet,
    code="own",
)
def arrow_dataset(folder: Path):
    return Scanned(folder)


class PolarsRows:
    """Rows of a lazily scanned table."""

    def __init__(self, folder: Path) -> None:
        self.pattern = f"{folder}/*.parquet"

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int):
        import polars as pl

        return pl.scan_parquet(self.pattern).slice(index * 4, 4).collect().to_dicts()


@tried(
    "polars `scan_parquet`, spawn",
    "polars",
    write=data.parquet,
    loader={"num_workers": 2, "batch_size": 4, "multiprocessing_context": "spawn"},
)
def polars_rows(folder: Path):
    return PolarsRows(folder)


def _sqlite(folder: Path) -> None:
    with sqlite3.connect(folder / "x.db") as store:
        store.execute("create table records (number integer primary key, data blob)")
        store.executemany(
            "insert into records values (?, ?)",
            [(n, data.noise(n, 3000).tobytes()) for n in range(32)],
        )
    store.close()


class SqliteRows:
    """A connection for each process, opened by the first sample."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.store: sqlite3.Connection | None = None

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int):
        if self.store is None:
            self.store = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        query = "select data from records where number = ?"
        return self.store.execute(query, (index,)).fetchone()[0]


@tried("own class over sqlite3, opened by the worker", write=_sqlite)
def sqlite_rows(folder: Path):
    return SqliteRows(str(folder / "x.db"))


def _shelf(folder: Path) -> None:
    with shelve.open(str(folder / "shelf")) as store:
        for number in range(16):
            store[str(number)] = data.noise(number, 300)


class Shelf:
    """A shelf for each process, opened by the first sample."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.store = None

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int):
        if self.store is None:
            self.store = shelve.open(self.path, flag="r")
        return self.store[str(index)]


@tried("own class over shelve", write=_shelf)
def shelf(folder: Path):
    return Shelf(str(folder / "shelf"))


def _lance(folder: Path) -> None:
    import lance
    import pyarrow as pa

    lance.write_dataset(pa.Table.from_pylist(data.rows()), str(folder / "x.lance"))


class LanceRows:
    """A Lance table, opened in each process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.table = None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int):
        import lance

        if self.table is None:
            self.table = lance.dataset(self.path)
        return self.table.take([index]).to_pylist()[0]


@tried(
    "Lance, opened by the worker, spawn",
    "lance",
    write=_lance,
    loader={"num_workers": 2, "batch_size": 4, "multiprocessing_context": "spawn"},
)
def lance_rows(folder: Path):
    return LanceRows(str(folder / "x.lance"))


@tried(
    "scikit-learn `load_files` as a `TensorDataset`",
    "sklearn",
    "sklearn.datasets",
    write=lambda folder: None,
)
def sklearn_digits(folder: Path):
    import torch
    from sklearn.datasets import load_digits
    from torch.utils.data import TensorDataset

    digits = load_digits()
    return TensorDataset(torch.from_numpy(digits.data[:64]), torch.from_numpy(digits.target[:64]))
