"""Real data for the example datasets, out of scikit-learn: two photographs and the digits."""

import io
import tarfile
import zlib
from importlib.metadata import distribution
from pathlib import Path

import h5py
import lmdb
import numpy as np
from PIL import Image

SAMPLES = Path(str(distribution("scikit-learn").locate_file("sklearn/datasets")))


def build(root: Path) -> Path:
    """Write every file below `root`, the same bytes each time, and return `root`."""
    digits = np.loadtxt(SAMPLES / "data/digits.csv.gz", delimiter=",", max_rows=64)
    pixels, labels = digits[:, :64], digits[:, 64].astype(np.uint8)
    _write_tiles(root)
    _write_raw(root, pixels[:32])
    pixels.tofile(root / "digits.bin")
    np.save(root / "digits.npy", pixels[:32])
    with h5py.File(root / "digits.h5", "w", libver="latest") as file:
        file.create_dataset("pixels", data=pixels[:32], chunks=(1, 64), compression="gzip")
        file.create_dataset("labels", data=labels[:32], chunks=(32,), compression="gzip")
    _write_lmdb(root, pixels[:48])
    return root


def _write_tiles(root: Path) -> None:
    """24 JPEG tiles of 64 x 64 pixels: one file each in tiles/, and all of them in tiles.tar."""
    (root / "tiles").mkdir(parents=True, exist_ok=True)
    with tarfile.open(root / "tiles.tar", "w") as archive:
        for number, tile in enumerate(_cut("china.jpg") + _cut("flower.jpg")):
            jpeg = io.BytesIO()
            tile.save(jpeg, "JPEG", quality=90)
            path = root / f"tiles/{number:03}.jpg"
            path.write_bytes(jpeg.getvalue())
            member = tarfile.TarInfo(path.name)
            member.size = jpeg.tell()
            jpeg.seek(0)
            archive.addfile(member, jpeg)


def _cut(name: str, size: int = 64) -> list[Image.Image]:
    """Twelve tiles from the middle of a photograph."""
    corners = [(x * size, y * size) for y in range(2, 5) for x in range(3, 7)]
    with Image.open(SAMPLES / "images" / name) as photograph:
        return [photograph.crop((x, y, x + size, y + size)) for x, y in corners]


def _write_raw(root: Path, pixels: np.ndarray) -> None:
    """One digit per file: 64 float64 values, then the CRC-32 of their bytes."""
    (root / "raw").mkdir(parents=True, exist_ok=True)
    for number, digit in enumerate(pixels):
        data = digit.tobytes()
        checksum = zlib.crc32(data).to_bytes(4, "little")
        (root / f"raw/{number:03}.bin").write_bytes(data + checksum)


def _write_lmdb(root: Path, pixels: np.ndarray) -> None:
    """The digits' pixels by their number, in digits.lmdb; an old file would be added to.

    It has ten pages, the root of its tree in the first half, and leaves up to the end. So a cut in
    the middle or before the last tenth is between two pages, and takes whole leaves. Of half a leaf
    the next record would be missing, or its page would be a SIGBUS, as luck has it.
    """
    path = root / "digits.lmdb"
    path.unlink(missing_ok=True)
    with (
        lmdb.open(str(path), subdir=False, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, digit in enumerate(pixels):
            transaction.put(b"%03d" % number, digit.tobytes(), append=True)
