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

from pytest_dataloader_faults import Contract, UnclearErrorWarning, check_dataset, run_trial
from pytest_dataloader_faults.faults import OpenError, TruncatedFile
from support.corpus.memory import IgnoresMalloc
from support.datasets import Records
from support.results import failure_of

NAME = "Fake-Slide"
FROM_FOLDER = {"direct_url.json": '{"url": "file:///home/me/fake_slide", "dir_info": {}}'}
_SOURCE = '''
import ctypes

import cv2
import torch

_LIBC = ctypes.CDLL(None)
_LIBC.malloc.restype, _LIBC.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)


class SlideError(Exception):
    """Of everything."""


def read(path):
    """One sentence for every errno, as OpenSlide has it."""
    try:
        with open(path, "rb") as file:
            return torch.tensor(list(file.read()))
    except OSError:
        raise SlideError("the slide is not readable") from None


def read_or_none(path):
    """None instead of an error, as cv2.imread has it."""
    try:
        return read(path)
    except SlideError:
        return None


def count(slide):
    """Fails by a TypeError for None."""
    return len(slide) + slide.sum()


def gray(image):
    """What albumentations does with the image of a user."""
    return torch.tensor(cv2.resize(image, (8, 8)))


def decode(path):
    """In a buffer of C, without a look at what malloc(3) returned."""
    buffer = _LIBC.malloc(ctypes.c_size_t(4 << 20))
    ctypes.memset(buffer, 0, 64)
    _LIBC.free(buffer)
    return read(path)
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
    """Import it anew, maybe from another folder."""
    sys.modules.pop("fakeslide", None)


UNCLEAR = "raises an error that hides its cause"


@pytest.fixture(name="fakeslide")
def _fakeslide(tmp_path, monkeypatch):
    """The library, installed from an index."""
    return _import_from(install(tmp_path / "venv"), monkeypatch)


def _import_from(packages, monkeypatch) -> Any:
    forget()
    monkeypatch.syspath_prepend(packages)
    return importlib.import_module("fakeslide")


class ReadsSlides(Records):
    """Each sample is what *read* makes of its file."""

    def __init__(self, folder, read):
        super().__init__(folder)
        self.read = read

    def __getitem__(self, index):
        return self.read(self.paths[index]), index


def _check(make_dataset, check="open-error", **options):
    (result,) = check_dataset(make_dataset, only=check, **options)
    return result


def test_an_unclear_error_of_a_library_is_a_warning(fakeslide, records):
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


def test_a_contract_makes_it_a_failure(fakeslide, records):
    contract = Contract(names_file=True)
    make = lambda: ReadsSlides(records, fakeslide.read)  # noqa: E731
    result = failure_of(make, "open-error", contract=contract)

    assert (result.verdict, result.failed) == ("failed_unclearly", True)


def _read_own(path):
    try:
        return torch.tensor(list(path.read_bytes()))
    except OSError:
        message = "the slide is not readable"
        raise ValueError(message) from None


def _read_with(read):
    def read_or_fail(path):
        try:
            return read(path)
        except Exception:  # noqa: BLE001  # the defect
            message = "bad sample"
            raise RuntimeError(message) from None

    return read_or_fail


def _count_with(library):
    return lambda path: library.count(library.read_or_none(path))


def _gray_with(library):
    return lambda path: library.gray(_image_of(path))


def _image_of(path):
    """None if it cannot be read, as cv2.imread has it."""
    try:
        return np.frombuffer(path.read_bytes(), np.uint8).reshape(8, -1)
    except OSError:
        return None


DEFECTS = {
    "an error that the user raised instead": lambda library: _read_with(library.read),
    "a TypeError of the library": _count_with,
    "a cv2.error about None": _gray_with,
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_an_error_that_the_user_can_repair_is_a_failure(defect, fakeslide, records):
    """The last ones are raised by a library, because of what the user's code passed to it."""
    read = DEFECTS[defect](fakeslide)
    result = failure_of(lambda: ReadsSlides(records, read), "open-error")

    assert (result.verdict, result.finding.library, result.failed) == ("failed_unclearly", "", True)


class ShortIfTruncated(Records):
    """Returns fewer values of a shorter file, so that torch cannot stack them."""

    def __getitem__(self, index):
        return torch.tensor(list(self.paths[index].read_bytes())), index


@pytest.mark.parametrize("loader", [None, StatefulDataLoader], ids=["torch", "torchdata"])
def test_an_error_of_default_collate_is_a_failure(loader, records):
    """The loader's frames do not count, whichever library has it."""

    def make():
        dataset = ShortIfTruncated(records)
        return loader(dataset, batch_size=4, num_workers=2) if loader else dataset

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
    [
        (_read_npy, "numpy"),
        (_read_hdf5, "h5py"),
        (Path.read_bytes, "Python"),
        (_read_own, ""),
    ],
    ids=["numpy", "h5py", "pathlib", "user"],
)
def test_origin_of_an_error_is_recorded(read, library, records):
    """h5py is in Cython, whose frames name a source that does not exist here."""
    loader = {"num_workers": 1, "batch_size": 4}
    fault = OpenError("*.rec") if library in ("Python", "") else TruncatedFile("*.rec", keep=0)
    raised = run_trial(lambda: ReadsSlides(records, read), fault, loader=loader).exception

    assert raised.library == library, raised
    assert raised.file.endswith((".py", ".so"))


class DecodesBy(Records):
    """Decodes each record before it reads it."""

    def __init__(self, folder, decode):
        super().__init__(folder)
        self.decode = decode

    def __getitem__(self, index):
        self.decode(self.paths[index])
        return super().__getitem__(index)


@pytest.mark.slow
def test_a_library_that_dies_of_want_is_a_warning(fakeslide, records):
    with pytest.warns(UnclearErrorWarning, match="was killed by SIGSEGV"):
        result = _check(lambda: DecodesBy(records, fakeslide.decode), "memory-exhaustion")
    assert (result.verdict, result.finding.library) == ("failed_unclearly", NAME)
    assert result.cause == "crashes when an allocation fails"

    result = failure_of(lambda: IgnoresMalloc(records), "memory-exhaustion")
    assert (result.verdict, result.failed) == ("failed_unclearly", True)


def test_an_expected_failure_is_used_up(fakeslide, records):
    make = lambda: ReadsSlides(records, fakeslide.read)  # noqa: E731
    result = _check(make, expected_failures={"open-error": "OpenSlide"})

    assert (result.verdict, result.failed, result.expected) == (
        *("failed_unclearly", False),
        "OpenSlide",
    )


class WrongThenUnclear(ReadsSlides):
    """Returns zeros for a file that cannot be read, and an unclear error for one that is empty."""

    def __getitem__(self, index):
        if index % 2:
            return super().__getitem__(index)
        try:
            return torch.tensor(list(self.paths[index].read_bytes())), index
        except OSError:
            return torch.zeros(64, dtype=torch.int64), index


def test_a_warning_hides_no_failure(fakeslide, records):
    """Of several kinds of file, the one that fails decides."""
    for number, path in enumerate(sorted(records.glob("*.rec"))):
        if number % 2 == 0:
            path.rename(path.with_suffix(".raw"))

    class OfTwoKinds(WrongThenUnclear):
        def __init__(self, folder, read):
            super().__init__(folder, read)
            self.paths = sorted(folder.iterdir())

        def __len__(self):
            return len(self.paths)

    result = failure_of(lambda: OfTwoKinds(records, fakeslide.read), "open-error")

    assert (result.verdict, result.finding.library, result.failed) == ("corrupted", "", True)
