"""Exchange objects wherever a module has a name for them [runs in the worker].

Modules keep names of their own for what they imported (``from builtins import open`` in tarfile,
bz2 and lzma). In Python 3.10 a class of pathlib does, too.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any


class Instead:
    """A function in the place of *original*: no method where a class has it, and equal to it.

    Equal, because sets such as ``os.supports_dir_fd`` are asked for members.
    """

    def __init__(self, original: Callable[..., Any], call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._call = call

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._call(*arguments, **named)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __hash__(self) -> int:
        return hash(self._original)

    def __reduce__(self) -> str:
        """Pickled by name, as a function is."""
        return str(self._original.__name__)

    def __repr__(self) -> str:
        return f"<{self._original!r}, replaced by pytest-dataloader-faults>"


Exchange = list[tuple[Any, Any]]
"""Pairs of an object and the one that comes in its place."""


def exchange(pairs: Exchange) -> None:
    """Put the second of each pair wherever a module has the first."""
    instead = {id(old): (old, new) for old, new in pairs}
    for owner in list(_owners()):
        for name, value in list(vars(owner).items()):
            if id(value) in instead:
                setattr(owner, name, instead[id(value)][1])


def _owners() -> Iterator[Any]:
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType):
            yield module
    accessor = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)
    if accessor is not None:
        yield accessor
