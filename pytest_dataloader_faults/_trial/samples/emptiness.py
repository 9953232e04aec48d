"""Why a dataset is empty: what it was passed, and where it looked for files.

Some facts about folders that do not exist. ``glob``, ``Path.glob`` and ``os.walk`` find nothing in
them, and do not raise an error. But each announces its folder by an audit event (PEP 578), before
it searches. A hook for these events stays until the end of its process, so the dataset is made once
more for it, where nothing else is left to do.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pytest_dataloader_faults._trial.factory import PartOf, WithEmptyFolder
from pytest_dataloader_faults._trial.loaders import EmptyDatasetError
from pytest_dataloader_faults.outcomes.text import join_some

_SEARCHES = ("glob.", "pathlib.Path.", "os.walk", "os.fwalk")
_SHOWN = 3


@contextlib.contextmanager
def explain_emptiness(make_dataset: Callable[[], Any]) -> Iterator[None]:
    """Add to the error of an empty dataset why it is empty, as far as that can be seen."""
    try:
        yield
    except EmptyDatasetError as error:
        text = ". ".join([str(error), *_about_folder(make_dataset), *_about_missing(make_dataset)])
        raise EmptyDatasetError(text) from error.__cause__


def _about_folder(make_dataset: Callable[[], Any]) -> Iterator[str]:
    source = make_dataset
    while isinstance(source, PartOf):
        source = source.source
    if isinstance(source, WithEmptyFolder):
        yield (
            f"make_dataset was passed a new, empty folder as {source.parameter!r}. To use your own"
            " data, pass a function without parameters, such as lambda: MyDataset('data/train')"
        )


def _about_missing(make_dataset: Callable[[], Any]) -> Iterator[str]:
    missing = dict.fromkeys(
        each for each in _record_searched_folders(make_dataset) if not os.path.exists(each)
    )
    if missing:
        names = [
            repr(folder) if os.path.isabs(folder) else f"{folder!r} (in {os.getcwd()})"
            for folder in missing
        ]
        verb = "does" if len(names) == 1 else "do"
        yield f"It looked for files in {join_some(names, _SHOWN)}, which {verb} not exist"


def _record_searched_folders(make_dataset: Callable[[], Any]) -> list[str]:
    """The folders in which *make_dataset*, or an iteration of a stream, looks for files."""
    folders: list[str] = []
    is_looking = True

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if is_looking and event.startswith(_SEARCHES):
            with contextlib.suppress(TypeError):  # For an object that is not a path.
                folders.append(_folder_of(os.fspath(arguments[0])))

    sys.addaudithook(note)
    with contextlib.suppress(Exception):  # That it is empty has been found out already.
        dataset = make_dataset()
        if not hasattr(type(dataset), "__len__"):
            next(iter(dataset), None)
    is_looking = False
    return folders


def _folder_of(path: str | bytes) -> str:
    """The part of *path* before any pattern."""
    text = os.fsdecode(path)
    while glob.has_magic(text):
        text = os.path.dirname(text)
    return text or "."
