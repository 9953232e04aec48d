"""Descriptors and temporary files: leaked, and run out of: bugs, and twins without them."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from support.corpus.cases import Case
from support.datasets import SIZE, Records, decode
from support.specimens import CountsFromFile, IndexLeftOpen


class KeepsSamples(Records):
    """Keeps every sample that it gave: each one's shared memory stays open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.history: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        sample, _ = super().__getitem__(index)
        self.history.append(sample)
        return sample


class KeepsCopies(KeepsSamples):
    """Keeps what it needs of the latest ones in its own memory: healthy."""

    def __getitem__(self, index: int) -> Any:
        sample, _ = Records.__getitem__(self, index)
        self.history = [*self.history[-3:], sample.clone()]
        return sample


class KeepsSegments(KeepsSamples):
    """The same, after the advice to share memory by files, so that no descriptor is kept."""

    def __init__(self, folder: Path) -> None:
        torch.multiprocessing.set_sharing_strategy("file_system")
        super().__init__(folder)

    def __getitem__(self, index: int) -> Any:
        sample, _ = Records.__getitem__(self, index)
        self.history.append(sample.repeat(256))
        return self.history[-1]


class Pictures(Records):
    """Opens an image for each sample, and decodes it in a ``with`` block: healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        pixels = [np.frombuffer(path.read_bytes(), np.uint8) for path in self.paths]
        self.paths = [folder.parent / f"{path.stem}.png" for path in self.paths]
        for path, image in zip(self.paths, pixels, strict=True):
            Image.fromarray(image.reshape(8, 8)).save(path)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as picture:
            return torch.from_numpy(np.array(picture))


class PicturesLeftOpen(Pictures):
    """Reads sizes first: an image that is not decoded keeps its file open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seen: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        self.seen.append(Image.open(self.paths[index]))
        return super().__getitem__(index)


class Unpacked(Records):
    """Unpacks each record into a temporary folder, and removes it: healthy."""

    def __getitem__(self, index: int) -> Any:
        sample, _ = super().__getitem__(index)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "record")
            copy.write_bytes(sample.numpy().tobytes())
            return torch.frombuffer(bytearray(copy.read_bytes()), dtype=torch.uint8)


class LeavesFolders(Records):
    """Has a temporary folder per worker, which the interpreter would remove at its end."""

    folder: Any = None
    pid = 0

    def __getitem__(self, index: int) -> Any:
        if self.pid != os.getpid():
            beside = self.paths[0].parent.parent
            self.folder, self.pid = tempfile.TemporaryDirectory(dir=beside), os.getpid()
        copy = Path(self.folder.name, f"{index}")
        copy.write_bytes(self.paths[index].read_bytes())
        return torch.frombuffer(bytearray(copy.read_bytes()), dtype=torch.uint8)


class ClosesFile(Records):
    """Reads by a descriptor, and closes it after an error as well: healthy."""

    def __getitem__(self, index: int) -> Any:
        descriptor = os.open(self.paths[index], os.O_RDONLY)
        try:
            data = os.read(descriptor, SIZE)
        except OSError:
            self._close(descriptor)
            raise
        os.close(descriptor)
        return decode(data, self.paths[index]), index

    def _close(self, descriptor: int) -> None:
        os.close(descriptor)


class LeavesFileOpen(ClosesFile):
    """Closes it only if there is no error."""

    def _close(self, descriptor: int) -> None:
        """Forget it."""


ALONE = {"loader": {"batch_size": None}}
CASES = (
    Case("D1", KeepsSamples, "persistent-workers", "leaked: more descriptors", KeepsCopies, ALONE),
    Case("D2", KeepsSegments, "persistent-workers", "leaked: more memory", KeepsCopies, ALONE),
    Case("D4", PicturesLeftOpen, "persistent-workers", "leaked: .png", Pictures),
    Case("D5", IndexLeftOpen, "worker-killed", "leaked: index.txt", CountsFromFile),
    Case("D8", LeavesFileOpen, "read-error", "leaked: 1 more descriptor in worker", ClosesFile),
    Case("D7", LeavesFolders, "two-epochs", "leaked: temporary files", Unpacked),
)
