"""What a sampler drew for a batch, and names for it [in the disposable process].

A name is an int, or a text that is the same in each process. So samples are compared by what was
asked for, in whatever order it is drawn.

Some facts about what torch does with it. Without automatic batching the dataset is asked for what
was drawn, even if that is a list. With it, what was drawn is iterated over, unless the dataset has
``__getitems__``: that gets it as it is, be it an array or a key of the dataset's own. A worker gets
a copy, so a dataset may change what it gets.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_dataloader_faults._engine.worker.fetch_hooks import (
    integer_of,
    is_array,
    parts_of,
    plain_text,
)
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.samplers import length_of_endless
from pytest_dataloader_faults._trial.samples.fingerprint import ADDRESS, digest_of, hash_of, leaves
from pytest_dataloader_faults.outcomes.text import shown

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

Name: TypeAlias = int | str
_LONGEST, _KEPT, _DIGITS = 80, 60, 8


@dataclass(frozen=True)
class Draw:
    """What a sampler drew for a batch.

    Attributes:
        drawn: It, as torch passes it on.
        indices: Those of its samples.
        names: What to call each of them.
        whole: Whether the dataset gets it as it is. Then it is its own one index.

    """

    drawn: Any
    indices: tuple[Any, ...]
    names: tuple[Name, ...]
    whole: bool

    @classmethod
    def of(cls, drawn: Any, dataset: Any, *, batched: bool) -> Draw:
        """What torch makes of *drawn*; *batched*: whether the loader has automatic batching."""
        indices = None
        if batched and asks_for_several(dataset):
            indices = parts_of(drawn)
        elif batched:  # An iterator can be read once only, and that is for the dataset.
            indices = list(_copied(drawn) if isinstance(drawn, Iterator) else drawn)
        found = (drawn,) if indices is None else tuple(indices)
        return cls(drawn, found, tuple(map(name_of, found)), indices is None)

    @classmethod
    def again(
        cls, names: tuple[Name, ...], packed: str | None, dataset: Any, *, batched: bool
    ) -> Draw:
        """What had the *names*, and was *packed*."""
        plain = list(names) if batched else names[0]
        drawn = plain if packed is None else pickle.loads(base64.b64decode(packed))  # noqa: S301  # our own
        return replace(cls.of(drawn, dataset, batched=batched), names=names)

    @property
    def is_plain(self) -> bool:
        """Whether the names say what was drawn."""
        is_list = self.whole or type(self.drawn) is list
        return is_list and all(type(each) in (int, str) for each in self.indices)

    @property
    def packed(self) -> str | None:
        """What was drawn, unless it is plain; None also if no worker could get it."""
        if self.is_plain:
            return None
        with contextlib.suppress(Exception):
            return base64.b64encode(pickle.dumps(self.drawn)).decode()
        return None

    def sent(self) -> Draw:
        """The same as a worker gets it."""
        if self.is_plain:
            return self
        with contextlib.suppress(Exception):
            copy = _copied(self.drawn)
            return replace(self, drawn=copy, indices=(copy,) if self.whole else tuple(copy))
        return self

    def each(self) -> list[Draw]:
        """What to draw for each of its samples alone."""
        if self.whole:
            return [self]
        return [
            Draw(self._only(place), (index,), (name,), whole=False)
            for place, (index, name) in enumerate(zip(self.indices, self.names, strict=True))
        ]

    def _only(self, place: int) -> Any:
        is_sliced = is_array(self.drawn) or isinstance(self.drawn, (list, tuple, range))
        return self.drawn[place : place + 1] if is_sliced else [self.indices[place]]

    def __str__(self) -> str:
        """What stands between the brackets where the dataset is asked for it."""
        pairs = zip(self.indices, self.names, strict=True)
        return ", ".join(repr(name) if type(index) is str else str(name) for index, name in pairs)


def _copied(drawn: Any) -> Any:
    return pickle.loads(pickle.dumps(drawn))  # noqa: S301  # the sampler's own


def draws_of(loader: DataLoader[Any]) -> Iterator[Draw]:
    """What one epoch of *loader* asks for."""
    batched = bool(loader._auto_collation)
    length = length_of_endless(loader, loaders.outer_of(loader))
    with loaders.errors_of_dataset("the sampler"):
        for drawn in itertools.islice(loader._index_sampler, length):
            yield Draw.of(drawn, loader.dataset, batched=batched)


def recorded(drawn: Any, dataset: Any, *, batched: bool) -> Draw:
    """What torch makes of *drawn*, be it an error."""
    try:
        return Draw.of(drawn, dataset, batched=batched)
    except Exception:  # noqa: BLE001  # It is torch's to report.
        return Draw(drawn, (drawn,), (name_of(drawn),), whole=True)


def asks_for_several(dataset: Any) -> bool:
    """Whether torch's fetcher asks *dataset* for a whole batch."""
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
    try:
        text = plain_text(index)
        if text is None:
            return f"{_told(index)} #{digest_of(leaves(index))[:_DIGITS]}"
    except Exception:  # noqa: BLE001  # It has no end, or cannot be pickled.
        return _told(index)
    return (
        text if len(text) <= _LONGEST else f"{text[:_KEPT]}... #{hash_of(text.encode())[:_DIGITS]}"
    )


def _told(index: Any) -> str:
    """*index* for people; its class if it does not say more, or too much."""
    text = shown(index)
    is_known = len(text) <= _LONGEST and text.isprintable() and not ADDRESS.search(text)
    return text if is_known else type(index).__name__
