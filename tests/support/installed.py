"""A library that pip could have installed, with one error for everything."""

from __future__ import annotations

import sys
from pathlib import Path

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
