"""Reading in one worker, under faults that happen and under faults that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.scope import Injection
from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    Fault,
    OpenError,
    ReadError,
    TruncatedFile,
)
from support.epochs import alone, epoch
from support.tries import Tries

NEVER = 1 << 30
CONTENT = bytes(range(200))


def attempt(
    sources: list[Any], way: Callable[[Any], Any], *faults: Fault, **options: Any
) -> tuple[list[Any], Injection]:
    """What the way gives of each source in one worker under the faults, and the injection."""
    with inject(*faults) as injection:
        results = epoch(alone(Tries(sources, way), **options)).batches
    return [each.gave for each in results], injection


def by_each(
    ways: Mapping[str, Callable[[str], Any]], folder: Path, *faults: Fault, **options: Any
) -> tuple[dict[str, Any], Injection]:
    """What each way gives of a file of its own, ``folder/NAME.rec``, all in one worker.

    *options* are of ``inject``. Each way meets the faults as if it were alone, where these count
    nothing: a count goes on from one way to the next.
    """
    folder.mkdir(exist_ok=True)
    for name in ways:
        file_of(folder, name).write_bytes(CONTENT)

    def read(name: str) -> Any:
        return ways[name](str(file_of(folder, name)))

    with inject(*faults, **options) as injection:
        results = epoch(alone(Tries(list(ways), read))).batches
    return dict(zip(ways, (each.gave for each in results), strict=True)), injection


def file_of(folder: Path, name: str) -> Path:
    """The file that ``by_each`` has the way *name* read."""
    return folder / f"{name}.rec"


def fired_at(injection: Injection, path: Path) -> int:
    """How often the first fault fired at that file."""
    return sum(each.path == str(path) for each in injection.faults[0].firings)


def undisturbed(
    sources: list[Any], way: Callable[[Any], Any], *globs: str, **options: Any
) -> tuple[list[Any], Injection]:
    """What the way gives while every matching file is followed and nothing happens to it."""
    faults = [kind(globs, nth=NEVER) for kind in (OpenError, ReadError, ClosedDescriptor)]
    with inject(*faults, TruncatedFile(globs, keep=1 << 40), require_fired=False) as injection:
        results = epoch(alone(Tries(sources, way), **options)).batches
    assert (0, []) == (injection.fired, injection.errors)
    return [each.gave for each in results], injection


def error_of(way: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same way of reading; an OSError that it meets is its result."""

    def read(path: Any) -> Any:
        try:
            return way(path)
        except OSError as error:
            return str(error)

    return read
