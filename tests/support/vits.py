"""Spectrograms as VITS keeps them (github.com/jaywalnut310/vits, data_utils.py, get_audio).

Each lies next to its recording, and is made by the first one that needs it.
"""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import wavfile

from support.datasets import Records

RATE, LENGTH = 8000, 4096


class Spectrograms(Records):
    """Reads with scipy, which takes an error of a read for the end of the file; saves in place."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*.wav")))

    def __getitem__(self, index: int) -> Any:
        filename = self.paths[index]
        spec_filename = filename.replace(".wav", ".spec.pt")
        if os.path.exists(spec_filename):
            return torch.load(spec_filename)
        audio = self.read(filename)
        spec = torch.stft(audio, 256, return_complex=True, window=torch.ones(256)).abs()
        self.save(spec, spec_filename)
        return spec

    def read(self, filename: str) -> torch.Tensor:
        _, audio = wavfile.read(filename)
        return torch.from_numpy(audio.astype(np.float32))

    def save(self, spec: torch.Tensor, filename: str) -> None:
        torch.save(spec, filename)


class AtomicSpectrograms(Spectrograms):
    """The same, checked and renamed: healthy."""

    def read(self, filename: str) -> torch.Tensor:
        with open(filename, "rb") as file:
            data = file.read()
        (size,) = struct.unpack_from("<I", data, 4)
        if size + 8 != len(data):
            message = f"{filename} has {len(data)} bytes, and its header says {size + 8}"
            raise ValueError(message)
        return torch.from_numpy(np.frombuffer(data, np.int16, offset=44).astype(np.float32))

    def save(self, spec: torch.Tensor, filename: str) -> None:
        """Under another name, until all of it is there. To a path, torch.save hides the errno."""
        part = f"{filename}.{os.getpid()}"
        with open(part, "wb") as file:
            torch.save(spec, file)
        os.replace(part, filename)


def write_recordings(folder: Path, count: int = 16) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        noise = np.random.default_rng(number).integers(-9999, 9999, LENGTH).astype(np.int16)
        wavfile.write(folder / f"{number:02}.wav", RATE, noise)
    return folder
