"""Files of records: deeplake, Megatron, array_record, grain, tfrecord."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import torch

from field import data, tried


def _lake(folder: Path) -> None:
    import deeplake

    lake = deeplake.create(str(folder / "lake"))
    lake.add_column("x", deeplake.types.Array("uint8", 1))
    lake.add_column("n", "int32")
    values = [data.noise(number, 4096) for number in range(32)]
    lake.append({"x": values, "n": np.arange(32, dtype=np.int32)})
    lake.commit()


@tried("deeplake `.pytorch()`", "deeplake", write=_lake)
def deeplake_torch(folder: Path):
    import deeplake

    return deeplake.open_read_only(str(folder / "lake")).pytorch()


def _documents(folder: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(folder / "x.bin"), dtype=np.int32)
    for number in range(24):
        tokens = data.random(number).integers(0, 50000, 64).astype(np.int32)
        builder.add_document(torch.from_numpy(tokens), [64])
    builder.finalize(str(folder / "x.idx"))


@tried(
    "megatron-core `IndexedDataset`",
    "megatron.core",
    "megatron.core.datasets.indexed_dataset",
    write=_documents,
)
def megatron_mapped(folder: Path):
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    return IndexedDataset(str(folder / "x"), mmap=True)


def _array_records(folder: Path) -> None:
    """In another process: array_record starts threads, and each trial is forked from this one."""
    path = str(folder / "x.array_record")
    process = multiprocessing.get_context("spawn").Process(target=_write_array_records, args=[path])
    process.start()
    process.join()
    assert process.exitcode == 0, process.exitcode


def _write_array_records(path: str) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(path, "group_size:1")
    for number in range(32):
        writer.write(data.noise(number, 256).tobytes())
    writer.close()


class ArrayRecords:
    """The records of a file as tensors; `__getitems__` is what a batch is read by."""

    def __init__(self, path: str) -> None:
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        self.source = ArrayRecordDataSource(path)

    def __len__(self) -> int:
        return len(self.source)

    def __getitems__(self, indices: list[int]):
        return [_tensor(each) for each in self.source.__getitems__(indices)]

    def __getitem__(self, index: int):
        return _tensor(self.source[index])


def _tensor(content: bytes):
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


_ARRAY_RECORD = "array_record", "array_record.python.array_record_data_source"


@tried("array_record `ArrayRecordDataSource`", *_ARRAY_RECORD, write=_array_records)
def array_record_source(folder: Path):
    return ArrayRecords(str(folder / "x.array_record"))


@tried("grain `MapDataset` over files", "grain", "grain.python", write=data.array_files)
def grain_files(folder: Path):
    import grain

    return grain.MapDataset.source(Arrays(folder)).seed(7).shuffle().map(torch.from_numpy)


class Arrays:
    """A .npy file a sample."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*/*.npy")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        return np.load(self.paths[index])


def _tfrecords(folder: Path) -> None:
    from tfrecord.tools.tfrecord2idx import create_index
    from tfrecord.writer import TFRecordWriter

    writer = TFRecordWriter(str(folder / "x.tfrecord"))
    for number in range(24):
        image = data.noise(number, 200).tobytes()
        writer.write({"image": (image, "byte"), "label": (number, "int")})
    writer.close()
    create_index(str(folder / "x.tfrecord"), str(folder / "x.index"))


def _read_tfrecords(folder: Path, index: str | None):
    from tfrecord.torch.dataset import TFRecordDataset

    description = {"image": "byte", "label": "int"}
    return TFRecordDataset(str(folder / "x.tfrecord"), index, description)


_TFRECORD = "tfrecord", "tfrecord.torch.dataset"


@tried("tfrecord `TFRecordDataset` with an index", *_TFRECORD, write=_tfrecords)
def tfrecord_index(folder: Path):
    return _read_tfrecords(folder, str(folder / "x.index"))


@tried("tfrecord `TFRecordDataset` without an index", *_TFRECORD, write=_tfrecords)
def tfrecord_plain(folder: Path):
    return _read_tfrecords(folder, None)
