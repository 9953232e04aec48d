"""The small data that the dataset classes are tried over."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from pathlib import Path

import numpy as np

COUNT = 16
CLASSES = "cat", "dog"


def random(seed: int) -> np.random.Generator:
    """Random numbers that are the same each time."""
    return np.random.default_rng(seed)


def noise(seed: int, *shape: int) -> np.ndarray:
    """Bytes that no compression makes much shorter."""
    return random(seed).integers(0, 256, shape, dtype=np.uint8)


def _image(seed: int, kind: str, size: int = 48) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(noise(seed, size, size, 3)).save(file, format=kind)
    return file.getvalue()


def jpeg(seed: int, size: int = 48) -> bytes:
    """A picture of noise."""
    return _image(seed, "JPEG", size)


def png(seed: int) -> bytes:
    """The same without loss."""
    return _image(seed, "PNG")


def pictures(folder: Path) -> None:
    """JPEG files in a folder for each class."""
    for name in CLASSES:
        (folder / name).mkdir()
    for number in range(COUNT):
        path = folder / CLASSES[number % 2] / f"{number:03}.jpg"
        path.write_bytes(jpeg(number))


def large_pictures(folder: Path, size: int = 256) -> None:
    """The same of about 100 kB each."""
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    for number in range(COUNT):
        path = folder / CLASSES[number % 2] / f"{number:03}.jpg"
        path.write_bytes(jpeg(number, size))


def captions(folder: Path) -> None:
    """Pictures, and a table of their captions."""
    pictures(folder)
    with open(folder / "captions.csv", "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter="\t")
        rows.writerow(["filepath", "title"])
        for path in sorted(folder.glob("*/*.jpg")):
            rows.writerow([str(path), f"a picture called {path.stem}"])


def records(folder: Path) -> None:
    """Records of numbers in one file."""
    np.arange(COUNT * 256, dtype=np.uint16).tofile(folder / "tokens.bin")


def array_files(folder: Path) -> None:
    """A .npy file for each sample, in a folder for each class."""
    for name in CLASSES:
        (folder / name).mkdir()
    for number in range(COUNT):
        values = random(number).standard_normal((8, 16)).astype(np.float32)
        np.save(folder / CLASSES[number % 2] / f"{number:03}.npy", values)


def volumes(folder: Path) -> None:
    """Compressed NIfTI volumes."""
    import nibabel

    for number in range(8):
        values = random(number).integers(0, 1000, (12, 12, 12)).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), folder / f"{number:02}.nii.gz")


def shards(folder: Path) -> None:
    """Four tar archives of pictures and labels, as webdataset has them."""
    for shard in range(4):
        with tarfile.open(folder / f"shard-{shard:03}.tar", "w") as archive:
            for number in range(shard * 6, shard * 6 + 6):
                _add(archive, f"{number:03}.jpg", jpeg(number))
                _add(archive, f"{number:03}.txt", f"a picture {number}".encode())
                _add(archive, f"{number:03}.cls", str(number % 2).encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def rows(count: int = 64) -> list[dict]:
    """Rows of a table."""
    return [{"number": n, "text": f"line {n} " * 8, "values": [n, n + 1]} for n in range(count)]


def json_lines(folder: Path) -> None:
    """Two texts with a row of JSON a line."""
    for part in range(2):
        text = "".join(json.dumps(row) + "\n" for row in rows()[part::2])
        (folder / f"part-{part}.jsonl").write_text(text, encoding="utf-8")


def parquet(folder: Path) -> None:
    """Four Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for part in range(4):
        pq.write_table(pa.Table.from_pylist(rows()[part::4]), folder / f"part-{part}.parquet")


def sounds(folder: Path) -> None:
    """WAV files of noise."""
    from scipy.io import wavfile

    for number in range(COUNT):
        samples = random(number).integers(-(2**15), 2**15, 2000).astype(np.int16)
        wavfile.write(folder / f"{number:03}.wav", 8000, samples)
