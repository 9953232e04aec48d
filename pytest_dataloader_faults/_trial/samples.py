"""Which samples are the same: names of what a sampler drew, and fingerprints [in a trial].

A name is an int, or a string that is the same in each process. So samples are compared by what was
requested, in whatever order it is drawn.

A fingerprint is the parts of a value, each with its path, its form and its digest. Two parts are
the same if a training loop could not distinguish them: types, dtypes, shapes and bytes are equal.
NaN is equal to itself; 0.0 and -0.0 differ. A digest is 24 hexadecimal digits of BLAKE2b, or the
value itself if that is shorter; of many zeros it says so.

A tensor of a subclass is a tensor: a cache, a queue and ``default_collate`` make one of the other.
A mapping is read by ``items()``. Some refuse iteration, as a TensorDict without a batch dimension,
or iterate over their batch dimension and not over their keys.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import itertools
import operator
import pickle
import re
import sys
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from pytest_dataloader_faults._engine.fetch_hooks import ADDRESS, integer_of, is_array, parts_of
from pytest_dataloader_faults._trial import loaders
from pytest_dataloader_faults._trial.samplers import length_of_endless, try_user_code
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes.agreement import MANY, ZEROS, Part
from pytest_dataloader_faults.outcomes.text import format_value

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

CALLS_USER_CODE = True


# Draws
#
# Some facts about what torch does with it. Without automatic batching, the dataset is indexed with
# what was drawn, even if that is a list. With it, what was drawn is iterated over, unless the
# dataset has ``__getitems__``: that gets it as it is, be it an array or a key of the dataset's own.
# A worker gets a copy, so a dataset may change what it gets.


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
        return try_user_code(lambda: _copy_draw(self.drawn), self.drawn)

    def split(self) -> list[Draw]:
        """What to draw for each of its samples alone."""
        if self.is_whole:
            return [self]
        is_sliced = is_array(self.drawn) or isinstance(self.drawn, (list, tuple, range))
        return [
            Draw(
                self.drawn[place : place + 1] if is_sliced else [index],
                (index,),
                (name,),
                is_whole=False,
            )
            for place, (index, name) in enumerate(zip(self.indices, self.names, strict=True))
        ]


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


def pickle_draws(draws: Iterable[Draw]) -> tuple[bytes, ...]:
    """What was drawn for each batch, pickled; empty if no worker could get it."""
    return try_user_code(lambda: tuple(pickle.dumps(each.drawn) for each in draws), ())


def draws_the_same_again(loader: DataLoader[Any], drawn: Sequence[Draw]) -> bool:
    """Whether the sampler draws the same indices in another order, if it draws again at all."""
    again: list[Draw] = []
    with contextlib.suppress(UnusableDatasetError):
        again = list(draws_of(loader))
    counts = (Counter(name for each in draws for name in each.names) for draws in (drawn, again))
    return not again or operator.eq(*counts)


def reads_whole_batches(dataset: Any) -> bool:
    """Whether torch's fetcher requests a whole batch from *dataset*."""
    is_map = loaders.kind_of(dataset) == "map"
    return is_map and try_user_code(lambda: bool(getattr(dataset, "__getitems__", None)), False)


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
    # It may be endless, or impossible to pickle.
    return try_user_code(lambda: f"{shown} #{digest_of(take_apart(index))[:_DIGITS]}", shown)


# Fingerprints
#
# Some facts about bytes that are not content. The padding between the fields of a structured array,
# what a masked array holds where it is masked, and what pickle remembers of objects that are there
# twice (an object that was sent through a queue may contain copies of a shared part) differ between
# equal values. So such values are taken apart rather than dumped.


_SIZE = 12
_LONG = 128
"""Bits of a number of more digits than a digest has."""
_PLAIN = (str, bytes, bytearray, int, float, complex, type(None))
_BY_NAME = (type, types.FunctionType, types.BuiltinFunctionType)


def take_apart(value: Any, path: str = "", above: tuple[int, ...] = ()) -> Iterator[Part]:
    """Every part of *value*, containers before what they contain; TypeError if it has none."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(value, _PLAIN):
        text = _text_of(value)
        digest = hash_of(text.encode("utf-8", "surrogatepass")) if len(text) > 2 * _SIZE else text
        # A report can show a string that is not longer than a digest.
        yield Part(path, name, digest)
    elif isinstance(value, torch.Tensor):
        yield from _tensor_parts(value, path)
    elif (numpy := sys.modules.get("numpy")) and isinstance(value, (numpy.ndarray, numpy.generic)):
        yield from _array_parts(value, path, name)
    elif id(value) in above:
        yield Part(path, name, f"itself, {len(above) - above.index(id(value))} levels above")
    else:
        yield from _container_parts(value, path, name, (*above, id(value)))


def _text_of(value: Any) -> str:
    """All that makes *value* different from others of its type."""
    if isinstance(value, int) and value.bit_length() > _LONG:
        return hex(value)  # Python writes at most some thousands of digits in base ten.
    return repr(value)


def hash_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_SIZE).hexdigest()


def _digest_values(data: bytes, count: int) -> str:
    """The digest of *count* values that have these bytes."""
    is_zero = count >= MANY and not any(data[:MANY]) and data.count(0) == len(data)
    return ZEROS if is_zero else hash_of(data)


def _tensor_parts(value: torch.Tensor, path: str) -> Iterator[Part]:
    plain = value.detach().cpu()
    if value.is_nested:
        yield Part(path, f"torch.Tensor nested, {value.dtype}", "")
        for place, part in enumerate(plain.unbind()):
            yield from _tensor_parts(part, f"{path}[{place}]")
        return
    form = f"torch.Tensor {value.dtype} {tuple(value.shape)}"
    if value.is_quantized:
        parts = _bytes_of(plain.int_repr()) + _bytes_of(plain.dequantize())
        yield Part(path, form, hash_of(parts))
    elif value.layout is torch.strided:
        yield Part(path, form, _digest_values(_bytes_of(plain), plain.numel()))
    else:
        sparse = plain.to_sparse().coalesce()
        content = _bytes_of(sparse.indices()) + _bytes_of(sparse.values())
        yield Part(path, f"{form} {value.layout}", hash_of(content))


def _bytes_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(plain.data_ptr(), plain.nbytes)  # torch may lack NumPy.


def _array_parts(value: Any, path: str, name: str) -> Iterator[Part]:
    form = f"{name} {value.dtype.str} {value.shape}"
    if hasattr(value, "mask") and hasattr(value, "filled"):  # a masked array
        yield Part(path, form, hash_of(value.filled().tobytes()))
        yield from take_apart(sys.modules["numpy"].ma.getmaskarray(value), f"{path}.mask")
    elif value.dtype.names:
        yield Part(path, form, "")
        for field in value.dtype.names:
            yield from take_apart(value[field], f"{path}[{field!r}]")
    elif value.dtype.hasobject:
        yield Part(path, form, "")
        for place, item in enumerate(value.reshape(-1).tolist()):
            yield from take_apart(item, f"{path}.flat[{place}]")
    else:
        yield Part(path, form, _digest_values(value.tobytes(), value.size))


def _container_parts(value: Any, path: str, name: str, above: tuple[int, ...]) -> Iterator[Part]:
    if isinstance(value, (set, frozenset)):
        items = sorted(repr(list(take_apart(item, "", above))) for item in value)
        yield Part(path, f"{name} of {len(value)}", hash_of(repr(items).encode()))
    elif isinstance(value, _BY_NAME):
        yield Part(path, name, f"{value.__module__}.{value.__qualname__}")
    elif _is_image(value):
        form = f"{name} {value.mode} {value.size}"
        content = value.tobytes() + repr(value.getpalette() if value.mode == "P" else "").encode()
        yield Part(path, form, hash_of(content))
    else:
        parts = list(_contents(value))
        yield Part(path, f"{name} of {len(parts)}", "")
        for where, part in parts:
            yield from take_apart(part, f"{path}{where}", above)


def _is_image(value: Any) -> bool:
    """Whether *value* is an image of Pillow's; some objects have an attribute for every name."""
    kind = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return isinstance(kind, type) and isinstance(value, kind)


def _contents(value: Any) -> Iterator[tuple[str, Any]]:
    """What is in *value*, each with how one gets there."""
    if isinstance(value, Mapping):
        yield from sorted(_items(value.items()), key=lambda pair: pair[0])
    elif isinstance(value, tuple) and isinstance(
        names := getattr(type(value), "_fields", None), tuple
    ):
        yield from ((f".{name}", item) for name, item in zip(names, value, strict=False))
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{place}]", item) for place, item in enumerate(value))
    elif dataclasses.is_dataclass(value):
        yield from ((f".{name}", part) for name, part in _fields(value))
    else:
        yield from _reduce(value)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass that have been set."""
    names = (each.name for each in dataclasses.fields(value))
    return ((name, getattr(value, name)) for name in names if hasattr(value, name))


def _reduce(value: Any) -> Iterator[tuple[str, Any]]:
    """What pickle would create it from; an object that cannot be pickled never leaves a worker."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception as error:
        message = f"a sample contains a {type(value).__qualname__}, which has no fingerprint"
        raise TypeError(message) from error
    if isinstance(reduced, str):
        yield ".name", reduced
        return
    parts: list[Any] = [*reduced, None, None, None]
    make, arguments, state, items, pairs = parts[:5]
    yield ".made by", make
    yield " of", arguments
    if isinstance(state, Mapping):
        yield from ((f".{name}", state[name]) for name in sorted(state, key=repr))
    elif state is not None:
        yield " in state", state
    yield from ((f"[{place}]", item) for place, item in enumerate(items or ()))
    yield from sorted(_items(pairs or ()), key=lambda pair: pair[0])


def _items(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Each item by its key, also by one whose repr has an address, which is another each time."""
    for key, item in pairs:
        text = format_value(key)
        if ADDRESS.search(text):
            text = f"{ADDRESS.sub('', text)} {digest_of(take_apart(key))}"
        yield f"[{text}]", item


def digest_of(parts: Iterable[Part]) -> str:
    """The fingerprint of a value that has these parts."""
    return hash_of("\n".join(map(repr, map(tuple, parts))).encode("utf-8", "surrogatepass"))


_OF_ONE = re.compile(r"(?<= )\(1,([\d, ]*)\)")


def without_batch(part: Part) -> Part:
    """*part* of a batch of one sample in the shape in which the dataset returned it."""
    return part._replace(form=_OF_ONE.sub(_strip_batch, part.form))


def _strip_batch(batch: re.Match[str]) -> str:
    return str(tuple(map(int, re.findall(r"\d+", batch[1]))))


def digest_of_rows(rows: Iterable[str]) -> str:
    """The fingerprint of a batch whose samples have these fingerprints."""
    return hash_of("\n".join(rows).encode())


def split(batch: Any, count: int) -> list[Any] | None:
    """*batch* as *count* batches of one sample each; None if it cannot be split so.

    Understands what ``default_collate`` makes: tensors and arrays stacked along the first axis, in
    dicts, lists and tuples, and lists of strings. And what other collate functions put next to
    these: lists of one object for each sample, and the frames and series of pandas.
    """
    if isinstance(batch, torch.Tensor) or type(batch).__module__ == "numpy":
        return _slices(batch, count) if batch.ndim else None
    if hasattr(type(batch), "iloc"):
        return _rows_of_frame(batch) if len(batch) == count else None
    if isinstance(batch, Mapping) or dataclasses.is_dataclass(batch):
        parts = dict(batch.items() if isinstance(batch, Mapping) else _fields(batch))
        columns = _split_columns(parts.values(), count)
        return columns and [dict(zip(parts, row, strict=True)) for row in columns]
    if not isinstance(batch, (list, tuple)) or not batch:
        return None
    if all(isinstance(item, (str, bytes)) for item in batch):
        return _slices(list(batch), count)
    return _split_columns(batch, count)


def _rows_of_frame(frame: Any) -> list[Any]:
    """The rows of *frame*; labels that only count the rows of a batch are not part of them."""
    rows = [frame.iloc[place : place + 1] for place in range(len(frame))]
    is_counted = frame.index.equals(frame.reset_index(drop=True).index)
    return [row.reset_index(drop=True) for row in rows] if is_counted else rows


def _slices(samples: Any, count: int) -> list[Any] | None:
    return [samples[i : i + 1] for i in range(count)] if len(samples) == count else None


def _split_columns(columns: Iterable[Any], count: int) -> list[Any] | None:
    """For each sample its part of each of *columns*; None if one of them cannot be split.

    An empty part does not show how many samples there are: a list of empty dicts may have one for
    each, or be the same in each.
    """
    columns = list(columns)
    parts = [None if _is_hollow(column) else split(column, count) for column in columns]
    if not any(parts):
        return None
    # The number of samples is certain now. At the end of a stream it may have been a guess.
    parts = [part or _objects(column, count) for part, column in zip(parts, columns, strict=True)]
    return None if None in parts else [list(row) for row in zip(*parts, strict=True)]


def _objects(column: Any, count: int) -> list[Any] | None:
    """The parts of a *column* that is a list of one object for each sample, or holds nothing."""
    if _is_hollow(column):
        return [()] * count
    return _slices(column, count) if isinstance(column, list) else None


def _is_hollow(value: Any) -> bool:
    """Whether *value* is an empty dict, list or tuple, or holds such ones only."""
    if isinstance(value, Mapping):
        return all(_is_hollow(item) for _, item in value.items())
    return isinstance(value, (list, tuple)) and all(map(_is_hollow, value))


def rows_of(batch: Any) -> list[Any]:
    """The rows of *batch*, if it has parts that all have the same first dimension; or else none."""
    plain = _with_texts(batch)
    return split(plain, _first_length(plain)) or []


def _with_texts(value: Any) -> Any:
    """*value*, with numbers in lists as text, which ``split`` takes for a column."""
    if isinstance(value, Mapping):
        return {key: _with_texts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        is_column = type(value) is list and all(isinstance(item, (int, float)) for item in value)
        return [repr(item) if is_column else _with_texts(item) for item in value]
    return value


def _first_length(value: Any) -> int:
    """The first dimension of the first column in *value*: a tensor, an array or a list of text."""
    if isinstance(value, Mapping):
        value = [item for _, item in value.items()]
    if isinstance(value, list):
        is_text = all(isinstance(item, (str, bytes)) for item in value)
        return len(value) if is_text else next(filter(None, map(_first_length, value)), 0)
    shape = getattr(value, "shape", None)
    return shape[0] if isinstance(shape, tuple) and shape else 0
