"""An unclear error is a failure if the user's code raised it, and a warning if a library did."""

import importlib
import io
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from pytest_dataloader_faults import UnclearErrorWarning, check_dataset, run_trial
from pytest_dataloader_faults.faults import OpenError, TruncatedFile
from support.datasets import Records
from support.results import failure_of

NAME = "Fake-Slide"
FROM_FOLDER = {"direct_url.json": '{"url": "file:///home/me/fake_slide", "dir_info": {}}'}
_SOURCE = '''
import torch


class SlideError(Exception):
    """Of everything."""


def read(path):
    """One sentence for every errno, as OpenSlide has it."""
    try:
        with open(path, "rb") as file:
            return torch.tensor(list(file.read()))
    except OSError:
        raise SlideError("the slide is not readable") from None
'''


def install(folder: Path, files: dict[str, str] | None = None) -> Path:
    """Install it below *folder*, with more *files* of metadata; return the folder for sys.path."""
    packages = folder / "site-packages"
    metadata = packages / "fake_slide-1.0.dist-info"
    metadata.mkdir(parents=True)
    (packages / "fakeslide").mkdir()
    (packages / "fakeslide" / "__init__.py").write_text(_SOURCE)
    content = {
        "METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        "RECORD": "fakeslide/__init__.py,,\n",
        "INSTALLER": "pip\n",
        **(files or {}),
    }
    for name, text in content.items():
        (metadata / name).write_text(text)
    return packages


def forget() -> None:
    sys.modules.pop("fakeslide", None)


UNCLEAR = "raises an error that hides its cause"


def _import_from(packages, monkeypatch) -> Any:
    forget()
    monkeypatch.syspath_prepend(packages)
    return importlib.import_module("fakeslide")


class ReadsSlides(Records):
    def __init__(self, folder, read):
        super().__init__(folder)
        self.read = read

    def __getitem__(self, index):
        return self.read(self.paths[index]), index


def _check(make_dataset, check="open-error", **options):
    (result,) = check_dataset(make_dataset, only=check, **options)
    return result


def test_an_unclear_error_of_a_library_is_a_warning(tmp_path, records, monkeypatch):
    fakeslide = _import_from(install(tmp_path / "venv"), monkeypatch)
    with pytest.warns(
        UnclearErrorWarning, match="^open-error: failed_unclearly: SlideError"
    ) as warned:
        result = _check(lambda: ReadsSlides(records, fakeslide.read))
    assert (result.verdict, result.passed, result.failed) == ("failed_unclearly", False, False)
    assert (result.finding.library, result.cause) == (NAME, UNCLEAR)
    assert result.outcome.exception.file == fakeslide.__file__
    assert f"(UnclearErrorWarning), because {NAME} raised the error" in result.explanation
    assert warned[0].filename == __file__


def test_what_was_installed_from_a_folder_is_the_users(tmp_path, records, monkeypatch):
    library = _import_from(install(tmp_path / "venv", FROM_FOLDER), monkeypatch)
    result = failure_of(lambda: ReadsSlides(records, library.read), "open-error")

    assert (result.verdict, result.failed) == ("failed_unclearly", True)


def _read_own(path):
    try:
        return torch.tensor(list(path.read_bytes()))
    except OSError:
        message = "the slide is not readable"
        raise ValueError(message) from None


class ShortIfTruncated(Records):
    """Returns fewer values of a shorter file, so that torch cannot stack them."""

    def __getitem__(self, index):
        return torch.tensor(list(self.paths[index].read_bytes())), index


def test_an_error_of_default_collate_is_a_failure(records):
    """The loader's frames do not count, whichever library has it."""

    def make():
        return StatefulDataLoader(ShortIfTruncated(records), batch_size=4, num_workers=2)

    fault = TruncatedFile("*/00.rec", keep=10)
    raised = run_trial(make, fault).exception

    assert "stack expects each tensor to be equal size" in raised.text
    assert (raised.file, raised.library) == ("", "")


def _read_npy(path):
    return np.load(io.BytesIO(path.read_bytes()))


def _read_hdf5(path):
    with h5py.File(io.BytesIO(path.read_bytes())) as file:
        return file["x"][:]


@pytest.mark.parametrize(
    ("read", "library"),
    [(_read_npy, "numpy"), (_read_hdf5, "h5py"), (Path.read_bytes, "Python"), (_read_own, "")],
    ids=["numpy", "h5py", "pathlib", "user"],
)
def test_origin_of_an_error_is_recorded(read, library, records):
    """h5py is in Cython, whose frames name a source that does not exist here."""
    loader = {"num_workers": 1, "batch_size": 4}
    fault = OpenError("*.rec") if library in ("Python", "") else TruncatedFile("*.rec", keep=0)
    raised = run_trial(lambda: ReadsSlides(records, read), fault, loader=loader).exception

    assert raised.library == library, raised
    assert raised.file.endswith((".py", ".so"))
