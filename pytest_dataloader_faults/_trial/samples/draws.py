"""What a sampler drew for a batch, and names for it [in the disposable process].

A name is an int, or a string that is the same in each process. So samples are compared by what was
requested, in whatever order it is drawn.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import operator
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_dataloader_faults._engine.worker.fetch_hooks import (
    ADDRESS,
    integer_of,
    is_array,
    parts_of,
)
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.samplers import length_of_endless
from pytest_dataloader_faults._trial.samples.fingerprint import digest_of, take_apart
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes.text import format_value

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

# Some facts about what torch does with it. Without automatic batching, the dataset is indexed with
# what was drawn, even if that is a list. With it, what was drawn is iterated over, unless the
# dataset has ``__getitems__``: that gets it as it is, be it an array or a key of the dataset's own.
# A worker gets a copy, so a dataset may change what it gets.


CALLS_USER_CODE = True

Name: TypeAlias = int | str
_LONGEST, _DIGITS = 80, 8


@dataclass(frozen=True)
class Draw:
    """What a sampler drew for a batch.

    Attributes:
        drawn: It, as torch passes it on.
        indices: Those of its samples.
        names: What to call each of them.
        is_whole: Whether the dataset gets it as it is. Then it is its own one index.

    """

    drawn: Any
    indices: tuple[Any, ...]
    names: tuple[Name, ...]
    is_whole: bool

    @classmethod
    def of(cls, drawn: Any, dataset: Any, *, batched: bool) -> Draw:
        """What torch makes of *drawn*; *batched*: whether the loader has automatic batching."""
        indices = None
        if batched and reads_whole_batches(dataset):
            indices = parts_of(drawn)
        elif batched:  # An iterator can be read once only, and that is for the dataset.
            indices = list(_copy_draw(drawn) if isinstance(drawn, Iterator) else drawn)
        drawn_indices = (drawn,) if indices is None else tuple(indices)
        return cls(drawn, drawn_indices, tuple(map(name_of, drawn_indices)), indices is None)

    def copy_for_worker(self) -> Any:
        """What was drawn, as a worker receives it."""
        with contextlib.suppress(Exception):
            return _copy_draw(self.drawn)
        return self.drawn

    def split(self) -> list[Draw]:
        """What to draw for each of its samples alone."""
        if self.is_whole:
            return [self]
        return [
            Draw(self._draw_at(place), (index,), (name,), is_whole=False)
            for place, (index, name) in enumerate(zip(self.indices, self.names, strict=True))
        ]

    def _draw_at(self, place: int) -> Any:
        is_sliced = is_array(self.drawn) or isinstance(self.drawn, (list, tuple, range))
        return self.drawn[place : place + 1] if is_sliced else [self.indices[place]]


def _copy_draw(drawn: Any) -> Any:
    return pickle.loads(pickle.dumps(drawn))  # noqa: S301  # the sampler's own


def draws_of(loader: DataLoader[Any]) -> Iterator[Draw]:
    """What one epoch of *loader* requests."""
    dataset, batched = loaders.dataset_of(loader), bool(loader._auto_collation)
    length = length_of_endless(loader)
    with loaders.report_dataset_errors("the sampler"):
        drawn, end = itertools.islice(loader._index_sampler, length), object()
    while True:
        with loaders.report_dataset_errors("the sampler"):  # Not around yield: the caller may stop.
            drawn_value = next(drawn, end)
            draw = None if drawn_value is end else Draw.of(drawn_value, dataset, batched=batched)
        if draw is None:
            return
        yield draw


def record_draw(drawn: Any, dataset: Any, *, batched: bool) -> Draw:
    """What torch makes of *drawn*, be it an error."""
    try:
        return Draw.of(drawn, dataset, batched=batched)
    except Exception:  # noqa: BLE001  # It is torch's to report.
        return Draw(drawn, (drawn,), (name_of(drawn),), is_whole=True)


def pack(draws: Iterable[Draw]) -> tuple[str, ...]:
    """What was drawn, pickled and in base64; empty if no worker could get it."""
    with contextlib.suppress(Exception):  # Of the user's classes.
        return tuple(base64.b64encode(pickle.dumps(each.drawn)).decode() for each in draws)
    return ()


def unpack(packed: str) -> Any:
    """What was drawn for a batch, as ``pack`` has packed it."""
    return pickle.loads(base64.b64decode(packed))  # noqa: S301  # the sampler's own


def draws_the_same_again(loader: DataLoader[Any], drawn: Sequence[Draw]) -> bool:
    """Whether the sampler draws the same indices in another order, if it draws again at all."""
    again: list[Draw] = []
    with contextlib.suppress(UnusableDatasetError):
        again = list(draws_of(loader))
    counts = (Counter(name for each in draws for name in each.names) for draws in (drawn, again))
    return not again or operator.eq(*counts)


def reads_whole_batches(dataset: Any) -> bool:
    """Whether torch's fetcher requests a whole batch from *dataset*."""
    try:
        has_them = loaders.kind_of(dataset) == "map" and hasattr(dataset, "__getitems__")
        return has_them and bool(dataset.__getitems__)
    except Exception:  # noqa: BLE001  # It is the fetcher that reports it.
        return False


def name_of(index: Any) -> Name:
    """A name that *index* has in each process, and no other index has."""
    if (number := integer_of(index)) is not None:
        return number
    if type(index) is str:
        return index
    text = format_value(index)
    is_plain = type(index).__module__ == "builtins" and not ADDRESS.search(text)
    if is_plain and len(text) <= _LONGEST and text.isprintable():
        return text
    shown = text if len(text) <= _LONGEST and not ADDRESS.search(text) else type(index).__name__
    with contextlib.suppress(Exception):  # It is endless, or cannot be pickled.
        return f"{shown} #{digest_of(take_apart(index))[:_DIGITS]}"
    return shown
