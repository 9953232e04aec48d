"""The datasets of a record: corpus, files damaged at rest, odd loaders, other people's classes.

A dataset of the corpus runs the checks of its bugs, and those that become one check with them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from field import Tried, load_all
from pytest_dataloader_faults.battery.checks import CHECKS
from record import infinite_loaders, odd_loaders
from support import corpus
from support.corpus import at_rest, network
from support.datasets import Records, write_records
from support.infinite_loaders import infinite

FIELD = (
    "wds_plain wds_continue hf_disk hf_images sqlite_rows h5_kept h5_lazy zarr_rows nanogpt"
    " lmdb_kept safetensors_kept fromfile_rows pandas_csv vits_cold neighbour realesrgan_like"
    " unet_like sklearn_files augmented all_options lightning_module ranks_hf_plain"
    " ranks_wds_split resume_stateful_stream resume_shards"
).split()
"""The classes of a short record. Their libraries are those of the suite."""
_AT_REST = "missing-file empty-file truncated-file corrupted-file read-error".split()
_OF_LOADERS = "workers-agree pickles two-epochs read-error worker-killed".split()
_SIZED = ("", "list", "tuple", "deque", *odd_loaders.TORCHS)
"""Samplers for loaders that keep one iterator, which need a length."""
NEEDS_ACCELERATOR = "pin-memory"


@dataclass(frozen=True)
class Case:
    """A dataset, and the checks that it runs.

    Attributes:
        name: Its part of the record, a slash and its own name.
        checks: The names of the checks; none if it cannot run.
        prepare: Makes the data in an empty folder. In its context, the arguments of
            ``check_dataset`` are valid.
        load: Imports what the dataset uses.
        lacks: The module that is not installed; "" if it can run.
    """

    name: str
    checks: tuple[str, ...]
    prepare: Callable[[Path], AbstractContextManager[dict[str, Any]]]
    load: Callable[[], object] = lambda: None
    lacks: str = ""


def all_cases(*, full: bool) -> list[Case]:
    """Those of a short record, or of a full one."""
    return [*_corpus(), *_at_rest(), *_odd(), *_field(None if full else FIELD)]


def _in_order(checks: Iterable[str]) -> list[str]:
    """The names of *checks* in the battery's order."""
    names = {*checks}
    return [each for each in CHECKS if each in names and each != NEEDS_ACCELERATOR]


def _corpus() -> Iterator[Case]:
    """Each specimen and twin once, with the checks of all bugs for which it stands."""
    prepares: dict[tuple[str, str], Callable[[Path], AbstractContextManager[Any]]] = {}
    checks: dict[tuple[str, str], list[str]] = {}
    for case in corpus.CASES:
        for make, limits in ((case.specimen, case.limits), (case.twin, {})):
            options = {**limits, **case.options}
            options.pop("exclude", None)
            key = f"corpus/{make.__name__}{_shown(options)}", str(options)
            prepares[key] = functools.partial(_of_corpus, case, make, options)
            checks.setdefault(key, []).append(case.check)
    known: set[tuple[str, str]] = set()
    for key, names in checks.items():
        new_names = [each for each in _in_order(names) if (key[0], each) not in known]
        known.update((key[0], each) for each in new_names)
        if new_names:
            yield Case(key[0], tuple(new_names), prepares[key])


def _shown(options: Mapping[str, Any]) -> str:
    """The *options* as a part of a name, without the deadline, which does not change a verdict."""
    texts = [f"{name}={value}" for name, value in options.items() if name != "deadline"]
    return f"({', '.join(texts)})" if texts else ""


@contextlib.contextmanager
def _of_corpus(
    case: corpus.cases.Case, make: Callable[..., Any], options: Mapping[str, Any], folder: Path
) -> Iterator[dict[str, Any]]:
    records = case.fill(folder / "records")
    with contextlib.ExitStack() as stack:
        if case in network.CASES:
            (folder / "served").mkdir()
            stack.enter_context(network.served(records, folder / "served"))
        yield {"make_dataset": functools.partial(make, records), **options}


def _at_rest() -> Iterator[Case]:
    names = {case.specimen.__name__: case for case in at_rest.CASES}
    for name, case in names.items():
        for make, title in ((case.specimen, name), (case.twin, f"{name}, twin")):
            prepare = functools.partial(_of_files, case, make)
            yield Case(f"at-rest/{title}", tuple(_in_order(_AT_REST)), prepare)


@contextlib.contextmanager
def _of_files(case: Any, make: Callable[..., Any], folder: Path) -> Iterator[dict[str, Any]]:
    case.write(folder)
    yield {"make_dataset": functools.partial(make, folder), **case.options}


def _odd() -> Iterator[Case]:
    """Each dataset, collate function, kind of loader and sampler that ends, once or more."""
    containers = [name for name in odd_loaders.CONTAINERS if name != "endless"]
    samplers = itertools.cycle(["", *containers, *odd_loaders.TORCHS])
    collates = itertools.cycle(odd_loaders.COLLATES)
    kinds = itertools.cycle(odd_loaders.LOADERS)
    for number, dataset in enumerate(odd_loaders.DATASETS):
        how: dict[str, Any] = {}
        if dataset in odd_loaders.MAPS:
            how = {"sampler": next(samplers), "collate": next(collates)}
            if how["sampler"] in _SIZED:
                how["loader"] = next(kinds)
        elif dataset in odd_loaders.ANY:
            how = {"sampler": "drawn", "collate": "list"}
        if dataset == "opened by init":
            how["init"] = "opens"
        size = None if dataset in odd_loaders.BATCHED_STREAMS else (4, 2)[number % 2]
        options = {
            "num_workers": 1 + number % 3,
            "batch_size": size,
            "drop_last": False,
            "persistent_workers": number % 2 == 1,
            "timeout": 60,
            "generator": number % 4 == 0,
            "context": number % 5 == 0,
        }
        loader = odd_loaders.OddLoader(dataset, options=options, **how)
        prepare = functools.partial(_without_data, loader)
        yield Case(f"odd/{dataset}", tuple(_in_order(_OF_LOADERS)), prepare)
    for kind in infinite_loaders.LOADERS:
        prepare = functools.partial(_with_records, kind)
        yield Case(f"odd/{kind.__name__}", tuple(_in_order(_OF_LOADERS)), prepare)


@contextlib.contextmanager
def _without_data(loader: Any, _folder: Path) -> Iterator[dict[str, Any]]:
    yield {"make_dataset": loader}


@contextlib.contextmanager
def _with_records(kind: type[Any], folder: Path) -> Iterator[dict[str, Any]]:
    records = write_records(folder / "records")
    yield {"make_dataset": functools.partial(_load_records, kind, records)}


def _load_records(kind: type[Any], records: Path) -> Any:
    return infinite(kind, Records(records))


def _field(names: Iterable[str] | None) -> Iterator[Case]:
    """These classes, or all of them."""
    classes = load_all()
    for name in classes if names is None else names:
        tried = classes[name]
        checks = [
            each for each in CHECKS if tried.part in _parts_of(each) and each != NEEDS_ACCELERATOR
        ]
        yield Case(
            f"field/{name}",
            tuple(checks),
            functools.partial(_of_class, tried),
            tried.load,
            tried.missing() or "",
        )


def _parts_of(check: str) -> tuple[str, ...]:
    """The classes that run a *check*: those for ranks, those with a state, or all others."""
    if check == "listing-order":  # It has a scenario of ranks.
        return ("", "ranks")
    is_of_ranks = check.startswith("rank")
    return ("ranks" if is_of_ranks else "resume" if check.startswith("resumes") else "",)


@contextlib.contextmanager
def _of_class(tried: Tried, folder: Path) -> Iterator[dict[str, Any]]:
    tried.write(folder)
    yield {**tried.dataset(folder), **tried.arguments()}
