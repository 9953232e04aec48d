"""More datasets that torch's DataLoader takes, for loaders that are recorded and searched."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from support.odd_datasets import COUNT, InWorkersOnly, LyingList, NoDataset, Plain, Stream, sample

_ASKED_BY_TORCH = {"__class__", "__getitems__"}


class NamedLikeLoaders(NoDataset):
    """Has data where data modules have methods."""

    train_dataloader = "train.txt"
    setup = prepare_data = None

    def __init__(self) -> None:
        self.val_dataloader = ["val.txt"]
        self.dataset = self.datasets = self
        self.iterables = self.pipeline = self._then = 3
        self._fields = self._iterator = "name"


class Strict(NoDataset):
    """Raises where anything is read that torch does not read."""

    def __getattribute__(self, name: str) -> Any:
        if name not in _ASKED_BY_TORCH:
            message = f"nobody reads {name}"
            raise RuntimeError(message)
        return object.__getattribute__(self, name)


class LyingDict(dict[Any, Any]):
    __len__, __getitem__, __iter__ = LyingList.__len__, LyingList.__getitem__, LyingList.__iter__
    items = keys = values = LyingList.__iter__


class StrictStream(Stream):
    def __getattribute__(self, name: str) -> Any:
        if name not in _ASKED_BY_TORCH - {"__getitems__"}:
            message = f"nobody reads {name}"
            raise RuntimeError(message)
        return object.__getattribute__(self, name)


class Pipeline(Plain):
    """Transforms are often called so, and need not be a list."""

    def __init__(self) -> None:
        self.pipeline = torch.nn.Identity()


class StrictDataset(Strict, Plain):
    """The same with torch's base class."""


class Proxy(NoDataset):
    """Has an attribute for every name, which is None."""

    def __getattr__(self, name: str) -> Any:
        return None


class Callable(NoDataset):
    """Can be called, too."""

    def __call__(self, index: Any) -> Any:
        raise RuntimeError("not to be called")


class NoTruth(Plain):
    """Has neither a hash nor a truth value, and cannot be compared."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


class Untrue(Plain):
    """Is false, and does not have a repr."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


class IterableAsWell(Plain):
    """Can be iterated over, which torch does not do."""

    def __iter__(self) -> Any:
        raise RuntimeError("not to be iterated over")


class RaisingProperties(Plain):
    """Has properties that raise errors."""

    @property
    def pipeline(self) -> Any:
        raise RuntimeError("not ready")

    dataset = datasets = train_dataloader = iterables = __wrapped__ = pipeline


class Slots(NoDataset):
    """Has no ``__dict__``."""

    __slots__ = ()


class CombinedLoader(NoDataset):
    """Has the name of a class of Lightning's."""


class Text(str):
    """A text, letter by letter."""

    __slots__ = ()


class NoneTogether(Plain):
    """Has no ``__getitems__`` after all."""

    __getitems__ = None


class ListsTogether(Plain):
    """Gives several samples at once."""

    def __getitems__(self, indices: Any) -> Any:
        return [sample(each) for each in indices]


class OnlyTogether:
    """Has no ``__getitem__``."""

    def __len__(self) -> int:
        return COUNT

    def __getitems__(self, indices: Any) -> Any:
        return [sample(each) for each in indices]


class ClassProxy:
    """Says that it is of the class of what it wraps."""

    def __init__(self) -> None:
        self.inner = Plain()

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return Plain

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: Any) -> Any:
        return self.inner[index]


class Nested(Plain):
    """Iterates its own loader for each sample."""

    def __getitem__(self, index: Any) -> Any:
        (item,) = DataLoader([sample(index)], batch_size=None, num_workers=0)
        return item


class OpenedByInit(Plain):
    """Can be read once ``opens_handles`` has run in the worker."""

    handle: Any = None

    def __getitem__(self, index: Any) -> Any:
        return self.handle(index)


def opens_handles(_worker: int) -> None:
    """A ``worker_init_fn`` for the dataset above, which leaves others as they are."""
    info: Any = torch.utils.data.get_worker_info()
    if type(info.dataset) is OpenedByInit:
        info.dataset.handle = sample


MAPS: dict[str, Any] = {
    "plain": Plain,
    "no dataset": NoDataset,
    "pipeline": Pipeline,
    "named like loaders": NamedLikeLoaders,
    "strict": Strict,
    "strict dataset": StrictDataset,
    "proxy": Proxy,
    "callable": Callable,
    "no truth": NoTruth,
    "false": Untrue,
    "iterable as well": IterableAsWell,
    "raising properties": RaisingProperties,
    "slots": Slots,
    "combined loader": CombinedLoader,
    "lying list": LyingList,
    "lying dict": LyingDict,
    "text": lambda: Text("abcdefgh"),
    "none together": NoneTogether,
    "lists together": ListsTogether,
    "class proxy": ClassProxy,
    "list": lambda: [sample(each) for each in range(COUNT)],
    "tuples": lambda: tuple((sample(each), each) for each in range(COUNT)),
    "dict": lambda: {each: sample(each) for each in range(COUNT)},
    "tensor": lambda: torch.arange(64).reshape(COUNT, 8),
    "range": lambda: range(COUNT),
    "nested": Nested,
    "opened by init": OpenedByInit,
}
"""Map-style datasets of COUNT samples, all of which differ."""


class EmptyByItsLength(Stream):
    """Says that it is empty, which torch does not check."""

    def __len__(self) -> int:
        return 0


class NoLength(Stream):
    """Has a length that cannot be computed."""

    def __len__(self) -> int:
        raise RuntimeError("not to be asked")


class Indexed(Stream):
    """Has items, too, as Hugging Face's streams have."""

    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("not to be asked")

    __getitems__ = property(__getitem__)


class Once(Stream):
    """Is an iterator, and ends for good."""

    def __init__(self) -> None:
        self.left: Any = None

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.left is None:
            self.left = super().__iter__()
        return next(self.left)


class Endless(Stream):
    """Has no end."""

    def __iter__(self) -> Any:
        while True:
            yield from super().__iter__()


class OwnBatches(Stream):
    """Makes batches of the samples of its worker."""

    def __iter__(self) -> Any:
        samples = list(super().__iter__())
        return (torch.stack(samples[at : at + 3]) for at in range(0, len(samples), 3))


class WithEmptyParts(Stream):
    """Has metadata in each sample, of which there are none."""

    def __iter__(self) -> Any:
        return ({"data": each, "metadata": {}, "boxes": ([], ())} for each in super().__iter__())


STREAMS: dict[str, Any] = {
    "stream": Stream,
    "empty by its length": EmptyByItsLength,
    "no length": NoLength,
    "indexed": Indexed,
    "once": Once,
    "strict stream": StrictStream,
    "in workers only": InWorkersOnly,
    "with empty parts": WithEmptyParts,
}


BATCHED_STREAMS: dict[str, Any] = {"own batches": OwnBatches}
"""Those for a loader that does not make batches."""
