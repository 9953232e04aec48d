"""The modules of a package, each of which says itself what it is for."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType


def import_modules(package: str, folders: Iterable[str]) -> list[ModuleType]:
    """The modules in *folders*, the ``__path__`` of *package*, in alphabetical order."""
    names = sorted(each.name for each in pkgutil.iter_modules(folders))
    return [importlib.import_module(f"{package}.{name}") for name in names]
