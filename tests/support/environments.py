"""Environments that contain only what some distributions require.

Nothing is installed again: the existing files are linked to.
"""

import os
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

import pytest_dataloader_faults as package

OURS = "pytest-dataloader-faults"


def environment_for(
    requirements: Iterable[str], folder: Path, *, without_dependencies: Iterable[str] = ()
) -> Path:
    """The python of an environment made in *folder*, as if *requirements* were installed in it.

    *without_dependencies*: what is there as well, as if by ``pip install --no-deps``.
    """
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    for name in find_requirements(requirements) | set(without_dependencies):
        for place in _places(distribution(name)):
            link = site / place.name
            if not link.is_symlink():
                link.symlink_to(place)
    return folder / "bin/python"


def find_requirements(requirements: Iterable[str]) -> set[str]:
    """The names of all distributions that *requirements* lead to, as they are installed here."""
    keys: dict[str, None] = {}
    pending = [(each, "") for each in requirements]
    while pending:
        text, extra = pending.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for extra_name in ("", *requirement.extras):
            key = f"{requirement.name}[{extra_name}]"
            if key not in keys:
                keys[key] = None
                further = distribution(requirement.name).requires or ()
                pending += [(each, extra_name) for each in further]
    return {key.partition("[")[0] for key in keys}


def _places(of: Distribution) -> Iterator[Path]:
    """Where the modules and packages of a distribution are, and what describes it."""
    if of.name == OURS:  # It may be installed only as a pointer to a checkout.
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
