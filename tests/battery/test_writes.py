"""Checks of what workers write: a failed write must not spoil the next reading."""

import functools
import os
import shutil

import pytest
import torch

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery.checks.writes import write_error
from support.datasets import Records
from support.results import failure_of
from support.vits import AtomicSpectrograms, Spectrograms, write_recordings

NAMES = [write_error.name]


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


class _ToAPath(AtomicSpectrograms):
    def save(self, spec, filename):
        torch.save(spec, f"{filename}.part")
        os.replace(f"{filename}.part", filename)


def test_torch_save_hides_why_a_write_failed(recordings):
    result = failure_of(functools.partial(_copied, _ToAPath, recordings), "write-error")
    assert result.verdict == "failed_unclearly"
    assert "Pass it a file opened with open()" in result.explanation
