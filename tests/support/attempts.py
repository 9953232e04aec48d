"""Reading in one worker, under faults that happen and under faults that do not."""

from __future__ import annotations

from collections.abc import Callable
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


def undisturbed(
    sources: list[Any], way: Callable[[Any], Any], *globs: str
) -> tuple[list[Any], Injection]:
    """What the way gives while every matching file is followed and nothing happens to it."""
    faults = [kind(globs, nth=NEVER) for kind in (OpenError, ReadError, ClosedDescriptor)]
    with inject(*faults, TruncatedFile(globs, keep=1 << 40), require_fired=False) as injection:
        results = epoch(alone(Tries(sources, way))).batches
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
