"""Checks of what workers write: a failed write must not spoil the next reading."""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery.checks.writes import WRITES
from support.datasets import Records
from support.results import failure_of, failures_of
from support.rows import slow
from support.vits import AtomicSpectrograms, Spectrograms, write_recordings
from support.waiting import until

NAMES = [check.name for check in WRITES]
POISONED = "after the fault was removed, a new pass over the same dataset object raised"


@pytest.fixture(name="recordings")
def _recordings(tmp_path):
    return write_recordings(tmp_path / "recordings")


def _copied(kind, recordings, folder):
    return kind(shutil.copytree(recordings, folder / "copy"))


def _contents(folder):
    """Each file in *folder*: what is in it, its inode, and when it was changed last."""
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


def test_a_torn_spectrogram_is_found(recordings):
    """In the trial's own folder. The recordings are as they were, and there is nothing else.

    One read error makes a short recording, whose spectrogram would be kept for good.
    """
    contents = _contents(recordings)
    make_dataset = functools.partial(_copied, Spectrograms, recordings)
    half = failure_of(make_dataset, "read-error-transient")
    assert half.verdict in {"corrupted", "poisoned", "failed_unclearly"}
    for result in failures_of(make_dataset, NAMES):
        assert result.verdict == "poisoned", result.explanation
        assert POISONED in result.explanation
        assert "rename the file with os.replace()" in result.explanation
        assert result.outcome.fired
    assert _contents(recordings) == contents


def test_the_twin_that_renames_passes(recordings):
    make_dataset = functools.partial(_copied, AtomicSpectrograms, recordings)
    results = _check(make_dataset)
    assert [] == [each.explanation for each in results.values() if not each.passed]
    assert all(each.outcome.fired for each in results.values())
    assert {results[name].verdict for name in NAMES} == {"failed_cleanly"}


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

    result = _check(lambda: Logs(records), "disk-full")["disk-full"]
    assert not result.applies
    assert f"its workers write {tmp_path / 'log'}, but writes only fail" in result.explanation


class _Ignoring(AtomicSpectrograms):
    def save(self, spec, filename):
        try:
            super().save(spec, filename)
        except (OSError, RuntimeError):  # torch raises both.
            os.unlink(f"{filename}.{os.getpid()}")


class _ToAPath(AtomicSpectrograms):
    def save(self, spec, filename):
        torch.save(spec, f"{filename}.part")
        os.replace(f"{filename}.part", filename)


def test_torch_save_hides_why_a_write_failed(recordings):
    result = failure_of(functools.partial(_copied, _ToAPath, recordings), "disk-full")
    assert result.verdict == "failed_unclearly"
    assert "Pass it a file opened with open()" in result.explanation


class _Folders(AtomicSpectrograms):
    """A folder for each, which gets its name when all is in it."""

    def __getitem__(self, index):
        path = Path(f"{self.paths[index]}.d")
        if not path.exists():
            part = Path(f"{path}.{os.getpid()}")
            part.mkdir(exist_ok=True)
            self.fill(part / "spectrogram", super().read(self.paths[index]).numpy().tobytes())
            os.rename(part, path)
        return torch.frombuffer(bytearray((path / "spectrogram").read_bytes()), dtype=torch.float32)

    def fill(self, path, data):
        path.write_bytes(data)


class _TornFolders(_Folders):
    def fill(self, path, data):
        with contextlib.suppress(OSError):
            super().fill(path, data)


@pytest.mark.parametrize(("kind", "passes"), [slow(_Folders, True), (_TornFolders, False)])
def test_a_folder_that_gets_its_name_when_all_is_in_it(recordings, kind, passes):
    results = _check(
        functools.partial(_copied, kind, recordings), ["write-error", "worker-killed-writing"]
    )
    assert all(each.outcome.fired for each in results.values())
    assert results["write-error"].passed is passes, results["write-error"].explanation


class _DropsErrors(AtomicSpectrograms):
    """np.save() raises no error of the write of the data."""

    def __getitem__(self, index):
        path = f"{self.paths[index]}.npy"
        if not os.path.exists(path):
            with open(f"{path}.{os.getpid()}", "wb") as file:
                np.save(file, super().read(self.paths[index]).numpy()[:32])
            os.rename(file.name, path)
        return torch.from_numpy(np.load(path))


@pytest.mark.parametrize("batch_size", [3, slow(4)])
def test_a_disk_gets_full_in_a_header_and_in_data(recordings, batch_size):
    loader = {"num_workers": 2, "batch_size": batch_size}
    make_dataset = functools.partial(_copied, _DropsErrors, recordings)
    result = failure_of(make_dataset, "disk-full", loader=loader)
    assert "Some writers ignore write errors" in result.explanation


def test_a_cache_may_be_lost(recordings):
    results = _check(
        functools.partial(_copied, _Ignoring, recordings), ["write-error", "disk-full"]
    )
    assert ["survived"] * 2 == [each.verdict for each in results.values()]


REFERENCE = 2
"""The first processes of a battery: the probe of the kernel, and the reference."""
_BATTERY = """
import pathlib, shutil, sys
from pytest_dataloader_faults import check_dataset
from support.vits import Spectrograms
recordings = pathlib.Path(sys.argv[1])
print("started", flush=True)
check_dataset(
    lambda folder: Spectrograms(shutil.copytree(recordings, folder / "copy")),
    only={names!r},
    on_fail=None,
)
"""


def test_a_killed_battery_harms_nothing(recordings, tmp_path):
    contents = _contents(recordings)
    script, temporary = tmp_path / "battery.py", tmp_path / "temporary"
    temporary.mkdir()
    script.write_text(_BATTERY.format(names=NAMES))
    battery = subprocess.Popen(
        [sys.executable, script, recordings],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)},
    )
    with battery:
        battery.stdout.readline()
        wardens = set()
        until(lambda: wardens.update(_children(battery.pid)) or len(wardens) > REFERENCE)
        battery.kill()
    assert len(wardens) > REFERENCE
    assert until(lambda: not any(map(psutil.pid_exists, wardens)))
    assert until(lambda: os.listdir(temporary) == [])
    assert _contents(recordings) == contents


def _children(pid):
    return {each.pid for each in psutil.Process(pid).children()}
