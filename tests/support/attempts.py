"""Reading in one worker, with faults that fire and with faults that do not."""

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from errno import EINTR
from pathlib import Path
from types import MappingProxyType
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
from pytest_dataloader_faults.outcomes import FaultFacts
from pytest_dataloader_faults.outcomes.fault_facts import note_mentions
from support.epochs import Epoch, alone, epoch
from support.tries import Tries

NEVER = 1 << 30
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
CONTENT = bytes(range(200))


def attempt(
    sources: list[Any],
    way: Callable[[Any], Any],
    *faults: Fault,
    loader: Mapping[str, Any] = NO_OPTIONS,
    **options: Any,
) -> tuple[list[Any], Injection]:
    """What the way returns for each source in one worker with the faults, and the injection.

    *options* are of ``inject``.
    """
    with inject(*faults, **options) as injection:
        results = epoch(alone(Tries(sources, way), **loader)).batches
    return [each.gave for each in results], injection


def list_by_descriptor(folder: Any) -> list[str]:
    fd = os.open(folder, os.O_RDONLY)
    try:
        assert os.listdir(fd) == os.listdir(fd)  # The second one rewinds it.
        return os.listdir(fd)
    finally:
        os.close(fd)


def errnos_of_attempts(
    folder: Path, kind: Callable[..., Fault], numbers: Iterable[int], way: Callable[[str], Any]
) -> dict[int, Any]:
    """The errno that *way* meets under a fault of each errno, or what it returns in spite of it.

    Each has a file of its own. Python repeats a call that gives EINTR (PEP 475), so that this one
    may not last.
    """
    paths = {number: str(folder / f"{number}.rec") for number in numbers}
    for path in paths.values():
        Path(path).write_bytes(CONTENT)
    faults = [
        kind(path, errno=number, times=1 if number == EINTR else None)
        for number, path in paths.items()
    ]
    gave, injection = attempt([*paths.values()], errno_of(way), *faults)
    assert {1} == {each.fired for each in injection.faults}
    return dict(zip(paths, gave, strict=True))


def errno_of(way: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same way; the errno of an OSError that it gets is its result."""

    def use(path: str) -> Any:
        try:
            return way(path)
        except OSError as error:
            return error.errno

    return use


def epoch_of(
    injection: Injection, loader: Any, hang: tuple[Any, ...] | None = None
) -> tuple[Epoch, tuple[FaultFacts, ...]]:
    """An epoch of one of several loaders in a scope, and what each fault did in it."""
    earlier_faults, earlier_errors = injection.faults, len(injection.errors)
    read = epoch(loader, hang)
    faults = map(_facts_since, earlier_faults, injection.faults)
    return read, note_mentions(faults, injection.errors[earlier_errors:])


def _facts_since(earlier: FaultFacts, facts: FaultFacts) -> FaultFacts:
    earlier_firings = set(earlier.firings)
    return replace(
        facts,
        matched=facts.matched - earlier.matched,
        fired=facts.fired - earlier.fired,
        firings=tuple(each for each in facts.firings if each not in earlier_firings),
    )


def attempt_followed(
    sources: list[Any], way: Callable[[Any], Any], *globs: str, **options: Any
) -> tuple[list[Any], Injection]:
    """What the way gives while every matching file is followed and nothing happens to it."""
    faults = [kind(globs, nth=NEVER) for kind in (OpenError, ReadError, ClosedDescriptor)]
    with inject(*faults, TruncatedFile(globs, keep=1 << 40), require_fired=False) as injection:
        results = epoch(alone(Tries(sources, way), **options)).batches
    assert (0, []) == (injection.fired, injection.errors)
    return [each.gave for each in results], injection


def error_of(way: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same way of reading; an OSError that it gets is its result."""

    def read(path: Any) -> Any:
        try:
            return way(path)
        except OSError as error:
            return str(error)

    return read


def allocate_in_thread(size: int) -> str:
    """Allocate *size* bytes in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(bytes, size).result() and "allocated"
