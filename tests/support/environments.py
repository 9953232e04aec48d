"""Environments with nothing in them but what some distributions ask for.

Nothing is installed anew: what is there already is linked to.
"""

from __future__ import annotations

import os
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

import pytest_dataloader_faults as package

OURS = "pytest-dataloader-faults"


def environment_for(requirements: Iterable[str], folder: Path) -> Path:
    """The python of an environment made in *folder*, as if *requirements* were installed in it."""
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    for name in needed(requirements):
        for place in _places(distribution(name)):
            link = site / place.name
            if not link.is_symlink():
                link.symlink_to(place)
    return folder / "bin/python"


def needed(requirements: Iterable[str]) -> set[str]:
    """The names of all distributions that *requirements* lead to, as they are installed here."""
    found: dict[str, None] = {}
    pending = [(each, "") for each in requirements]
    while pending:
        text, extra = pending.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *requirement.extras):
            key = f"{requirement.name}[{wanted}]"
            if key not in found:
                found[key] = None
                further = distribution(requirement.name).requires or ()
                pending += [(each, wanted) for each in further]
    return {key.partition("[")[0] for key in found}


def _places(of: Distribution) -> Iterator[Path]:
    """Where the modules and packages of a distribution are, and what describes it."""
    if of.name == OURS:  # It may be installed by no more than a pointer to a checkout.
        yield Path(package.__file__).parent
    for name in _names(of):
        is_ours = of.name == OURS and not name.endswith(".dist-info")
        if not is_ours and name not in {"..", "__pycache__"}:
            yield Path(os.path.abspath(of.locate_file(name)))


def _names(of: Distribution) -> set[str]:
    """The names of its files and folders; Debian's packages list none, so theirs are guessed."""
    if of.files is not None:
        return {each.parts[0] for each in of.files}
    tops = (of.read_text("top_level.txt") or of.name.replace("-", "_").lower()).split()
    tops += ["torchgen"] if of.name == "torch" else []
    names = [f"{top}{end}" for top in tops for end in ("", ".py")]
    about = Path(str(of.locate_file(""))).glob(f"{of.name.replace('-', '_')}-*-info")
    names += [each.name for each in about]
    return {each for each in names if Path(str(of.locate_file(each))).exists()}
