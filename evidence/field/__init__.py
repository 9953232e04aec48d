"""Dataset classes that other people wrote, over small data, as they are used.

Each is tried under the whole battery: pages/datasets.py runs them and writes the page about them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_dataloader_faults.outcomes import Contract


@dataclass(frozen=True)
class Tried:
    """A dataset class, or a way to use one.

    Attributes:
        shown: How the page calls it.
        uses: The modules that it imports; the first one's distribution is the one that is tried.
        write: Makes its data in an empty folder.
        make: The dataset over that folder.
        settings: Further arguments of ``check_dataset``.
        code: Whose code is tried: "library" for a package's own class, "own" for a few lines of
            ours around a reader of the library; "-like" in *shown* is "rewritten".
        part: Which part of the battery it is asked: "ranks" where several ranks train on it,
            "resume" for the checks of a loader's state; "" for all the rest.
        copied: Whether each trial reads a copy of the folder: for a cache next to the data.

    """

    shown: str
    uses: tuple[str, ...]
    write: Callable[[Path], None]
    make: Callable[[Path], Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    code: str = "library"
    part: str = ""
    copied: bool = False

    @property
    def key(self) -> str:
        """A name for the record."""
        return self.make.__name__

    def missing(self) -> str | None:
        """The module that is not installed, or None."""
        tops = (name.partition(".")[0] for name in self.uses)
        return next((name for name in tops if importlib.util.find_spec(name) is None), None)

    def version(self) -> str:
        """The distribution that is tried, and its version."""
        if not self.uses:
            return f"Python {platform.python_version()}"
        top = self.uses[0].partition(".")[0]
        listed = importlib.metadata.packages_distributions()  # Without packages of Debian.
        name = listed.get(top, [top])[0]
        return f"{name} {importlib.metadata.version(name)}"

    def dataset(self, folder: Path) -> dict[str, Any]:
        """The arguments of ``check_dataset`` that name the dataset over the data in *folder*."""
        if self.copied:
            return {"make_dataset": self.make, "copy": folder}
        return {"make_dataset": lambda: self.make(folder)}

    def arguments(self) -> dict[str, Any]:
        """The further arguments, with the contract as an object."""
        arguments = dict(self.settings)
        promises = arguments.pop("contract", {})
        return {**arguments, "contract": Contract(**promises)}

    def load(self) -> None:
        """Import what it uses, as a user's test module does before the battery begins."""
        if "basicsr" in self.uses:
            _give_old_name()
        for name in self.uses:
            importlib.import_module(name)


def _give_old_name() -> None:
    """BasicSR 1.4.2 imports a module of torchvision by the name that it had before 0.17."""
    from torchvision.transforms import _functional_tensor

    sys.modules["torchvision.transforms.functional_tensor"] = _functional_tensor


TRIED: dict[str, Tried] = {}


def tried(
    title: str,
    *uses: str,
    write: Callable[[Path], None],
    code: str = "library",
    part: str = "",
    copied: bool = False,
    **settings: Any,
):
    """Enter a function that makes a dataset into TRIED."""
    whose = "rewritten" if "-like" in title else code

    def enter(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
        of = "ranks" if "ranks" in settings else part
        tried_class = Tried(title, uses, write, make, settings, whose, of, copied)
        assert tried_class.key not in TRIED, tried_class.key
        TRIED[tried_class.key] = tried_class
        return make

    return enter


def load_all() -> dict[str, Tried]:
    """All of them; each module enters its own."""
    for name in (
        "vision detection medical science streams tables arrays records audio_video loaders shapes"
        " constructors training frameworks folders large ranks resume"
    ).split():
        importlib.import_module(f"field.{name}")
    return TRIED
