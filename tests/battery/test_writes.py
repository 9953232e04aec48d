"""Checks of what workers write: a failed write must not spoil the next reading."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery.checks.workers import write_error
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


def write_recordings(folder: Path, count: int = 16) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        noise = np.random.default_rng(number).integers(-9999, 9999, LENGTH).astype(np.int16)
        wavfile.write(folder / f"{number:02}.wav", RATE, noise)
    return folder


NAMES = [write_error.name]


@pytest.fixture(name="recordings")
def _recordings(tmp_path):
    return write_recordings(tmp_path / "recordings")


def _contents(folder):
    results = {}
    for path in sorted(folder.iterdir()):
        about = os.stat(path)
        results[path.name] = (path.read_bytes(), about.st_ino, about.st_ctime_ns)
    return results


def _check(make_dataset, only=NAMES, **options):
    return {
        result.check: result
        for result in check_dataset(make_dataset, only=only, on_fail=None, **options)
    }


def test_nothing_of_the_user_is_harmed(recordings):
    contents = _contents(recordings)
    for result in _check(lambda: Spectrograms(recordings)).values():
        assert not result.applies
        assert "found the files that the fault-free run had written" in result.explanation
        assert "Let make_dataset take a folder" in result.explanation
    new_contents = _contents(recordings)
    assert {name: new_contents[name] for name in contents} == contents
    for index, path in enumerate(Spectrograms(recordings).paths):
        dataset = Spectrograms(recordings)[index]
        os.unlink(path.replace(".wav", ".spec.pt"))
        assert torch.equal(dataset, Spectrograms(recordings)[index])


def test_a_folder_that_is_not_the_trials_own(records, tmp_path):
    class Logs(Records):
        def __getitem__(self, index):
            with open(tmp_path / "log", "a") as file:
                file.write(f"{index}\n")
            return super().__getitem__(index)

    result = _check(lambda: Logs(records), "write-error")["write-error"]
    assert not result.applies
    assert f"its workers write {tmp_path / 'log'}, but writes only fail" in result.explanation
