"""Fingerprints tell apart what a training loop could tell apart, and nothing else."""

import copy
import pickle
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import default_collate

from pytest_dataloader_faults._trial.samples import digest_of, split, take_apart
from pytest_dataloader_faults.outcomes.agreement import difference
from support.rows import rows


class NoIteration(MutableMapping[str, Any]):
    """Has keys, values and items, and neither its own iterator nor its own length."""

    def __init__(self, **parts: Any) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[str]:
        message = "iteration over a 0-d tensordict. Use keys(), values() or items()"
        raise TypeError(message)

    def __len__(self) -> int:
        message = "len() of a 0-d tensordict"
        raise TypeError(message)

    def __getitem__(self, key: str) -> Any:
        return self._parts[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._parts[key] = value

    def __delitem__(self, key: str) -> None:
        del self._parts[key]

    def keys(self) -> Any:
        return self._parts.keys()

    def values(self) -> Any:
        return self._parts.values()

    def items(self) -> Any:
        return self._parts.items()


def digest(value: Any) -> str:
    return digest_of(take_apart(value))


DTYPES = [
    getattr(torch, name)
    for name in (
        "bool uint8 int8 int16 int32 int64 uint16 float16 bfloat16 float32 float64 complex64"
        " complex128 float8_e4m3fn"
    ).split()
]
Point = namedtuple("Point", "x y")  # noqa: PYI024  # what collate functions make


@dataclass
class Box:
    corner: torch.Tensor
    label: str


@dataclass
class Unset:
    label: str
    corner: torch.Tensor = field(init=False)


class Named(torch.Tensor):
    """A subclass, as libraries have it for metadata."""


def _ones(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([1, 0, 1, 1]).to(dtype)


@rows("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype(dtype):
    tensor = _ones(dtype)
    ones = torch.tensor([1, 0, 0, 1]).to(dtype)
    assert digest(tensor) == digest(tensor.clone())
    assert digest(tensor) != digest(ones)
    assert digest(tensor) != digest(tensor.reshape(2, 2))


def test_dtypes_are_distinguished():
    assert len({digest(_ones(dtype)) for dtype in DTYPES}) == len(DTYPES)


def _image(shade: int, mode: str = "L") -> Image.Image:
    return Image.new(mode, (3, 2), shade)


SAME = [
    (float("nan"), float("nan")),
    (torch.tensor([float("nan")]), torch.tensor([float("nan")])),
    (np.array([np.nan, 1.0]), np.array([np.nan, 1.0])),
    (torch.arange(6).reshape(2, 3).t(), torch.tensor([[0, 3], [1, 4], [2, 5]])),
    (torch.arange(6)[::2], torch.tensor([0, 2, 4])),
    (torch.ones(2, requires_grad=True), torch.ones(2)),
    (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
    (torch.tensor([1.0, 0, 2]).to_sparse(), torch.tensor([1.0, 0, 2]).to_sparse()),
    (torch.zeros(0, 3), torch.zeros(0, 3)),
    (torch.tensor(5), torch.tensor(5)),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1, 2, 3}, {3, 2, 1}),
    (_image(7), _image(7)),
    (Box(torch.ones(2), "x"), Box(torch.ones(2), "x")),
    (np.float32(1.5), np.float32(1.5)),
    (torch.ones(2).as_subclass(Named), torch.ones(2)),
    (NoIteration(a=torch.ones(2)), NoIteration(a=torch.ones(2))),
    (Unset("x"), Unset("x")),
    (np.array(["a", None], dtype=object), np.array(["a", None], dtype=object)),
    (np.arange(6).reshape(2, 3).T, np.array([[0, 3], [1, 4], [2, 5]])),
    (PurePosixPath("a"), PurePosixPath("a")),
    ("\ud800", "\ud800"),
]
DIFFERENT = [
    (0.0, -0.0),
    (torch.tensor([0.0]), torch.tensor([-0.0])),
    (1, 1.0),
    (1, True),
    (1, torch.tensor(1)),
    (torch.ones(2).as_subclass(Named), torch.zeros(2)),
    (NoIteration(a=torch.ones(2)), NoIteration(a=torch.zeros(2))),
    (NoIteration(a=torch.ones(2)), {"a": torch.ones(2)}),
    (Unset("x"), Unset("y")),
    ("1", 1),
    ("a", b"a"),
    (None, "None"),
    ([1, 2], (1, 2)),
    ([1, 2], [2, 1]),
    ([[1], [2]], [[1, 2]]),
    (["ab"], ["a", "b"]),
    (["a", "bc"], ["ab", "c"]),
    ([], [[]]),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, OrderedDict(a=1)),
    ({"a": {}, "b": 1}, {"a": {"b": 1}}),
    (Point(1, 2), (1, 2)),
    (torch.zeros(0, 3), torch.zeros(3, 0)),
    (torch.zeros(2), np.zeros(2, np.float32)),
    (np.zeros(2, np.float32), np.zeros(2, np.float64)),
    (np.zeros(4, "<i2"), np.zeros(4, ">i2")),
    (np.array(["a", None], dtype=object), np.array(["a", "b"], dtype=object)),
    (torch.tensor([1.0, 0]).to_sparse(), torch.tensor([0, 1.0]).to_sparse()),
    (torch.tensor([1.0, 0]).to_sparse(), torch.tensor([1.0, 0])),
    (_image(7), _image(8)),
    (_image(7), _image(7, "P")),
    (Box(torch.ones(2), "x"), Box(torch.ones(2), "y")),
    (Box(torch.ones(2), "x"), Box(torch.zeros(2), "x")),
    (PurePosixPath("a"), PurePosixPath("b")),
]


@rows(("value", "copy"), SAME)
def test_what_cannot_be_distinguished_is_equal(value, copy):
    assert digest(value) == digest(copy)


@rows(("value", "changed"), DIFFERENT)
def test_what_differs_is_not_equal(value, changed):
    assert digest(value) != digest(changed)


def test_numbers_of_many_digits_differ():
    """Python refuses to write them in base ten."""
    digests = {digest(10**5000 + digit) for digit in range(3)}
    assert len(digests) == 3


@pytest.mark.parametrize("kind", [torch.zeros, np.zeros])
def test_many_zeros_are_reported(kind):
    assert [each.digest for each in take_apart(kind(16))] == ["all zeros"]
    assert [each.digest for each in take_apart(kind(15))] != ["all zeros"]
    assert [each.digest for each in take_apart(-kind(16))] != ["all zeros"]
    assert digest(kind(16)) != digest(kind((4, 4)))
    bits = kind(64)
    bits[-1] = 1
    assert [each.digest for each in take_apart(bits)] != ["all zeros"]


def test_what_has_no_fingerprint_is_refused():
    with pytest.raises(TypeError, match="generator, which has no fingerprint"):
        digest(["a", (each for each in "b")])


def _sample(number: int, shape: str) -> Any:
    tensor = torch.full((2,), number)
    return {
        "tensor": tensor,
        "pair": (tensor, number),
        "dict": {"data": tensor, "name": f"n{number}", "rest": [number / 2, f"s{number}"]},
        "string": f"n{number}",
        "strings": (f"n{number}", b"bytes"),
        "number": number,
        "array": np.full(3, number),
        "point": Point(tensor, number),
        "with_empty_dict": {"data": tensor, "metadata": {}},
        "with_empty_lists": (number, [], {"boxes": ((), [])}),
    }[shape]


SHAPES = """
    tensor pair dict string strings number array point with_empty_dict with_empty_lists
""".split()


@rows("shape", SHAPES)
@rows("count", [1, 2, 3, 4])
def test_a_collated_batch_comes_apart_again(shape, count):
    samples = [_sample(number, shape) for number in range(count)]
    alone = [row for each in samples for row in split(default_collate([each]), 1)]
    together = split(default_collate(samples), count)
    assert list(map(digest, together)) == list(map(digest, alone))
    assert len(set(map(digest, alone))) == count


@rows(
    "batch",
    [
        torch.zeros(6),
        torch.tensor(1),
        [torch.zeros(4), torch.zeros(5)],
        ["a", "b", "c"],
        {"x": torch.zeros(4), "y": 1},
        [],
        {},
        [{}, ()],
        {"x": {}, "y": []},
        None,
        pytest.param(object(), id="object"),
    ],
    ids=repr,
)
def test_what_is_no_batch_of_so_many_is_not_split(batch):
    assert split(batch, 4) is None


def _at(value):
    return {part.path: part for part in take_apart(value)}


def _leads_to_a_part(sample, path):
    return eval(f"sample{path}", {"sample": sample}) is not None  # noqa: S307


def test_parts_have_paths_as_code_has():
    sample = {"image": torch.zeros(2), "boxes": [Point(1, 2), Box(torch.ones(1), "x")]}

    paths = {path for path in _at(sample) if _at(sample)[path].digest}
    assert paths == {
        "['image']",
        "['boxes'][0].x",
        "['boxes'][0].y",
        "['boxes'][1].corner",
        "['boxes'][1].label",
    }
    assert all(_leads_to_a_part(sample, path) for path in paths)


def test_short_values_are_reported_as_they_are():
    assert _at([7, "label"])["[1]"].digest == "'label'"
    assert len(_at("x" * 100)[""].digest) == len(digest(None))


def test_padding_and_masked_values_are_no_content():
    kind = np.dtype({"names": ["a", "b"], "formats": ["u1", "u4"], "offsets": [0, 4]})
    padded, repadded = (
        np.frombuffer(bytes([1, padding, padding, padding, 2, 0, 0, 0]), kind) for padding in (0, 9)
    )
    masked = [np.ma.array([1, below], mask=[False, True]) for below in (2, 3)]

    assert digest(padded) == digest(repadded)
    assert digest(masked[0]) == digest(masked[1])
    assert digest(masked[0]) != digest(np.ma.array([1, 2]))


class Plain:
    """An object that knows nothing of fingerprints."""

    def __init__(self, *parts):
        self.parts = parts


def test_copies_in_the_place_of_one_object_are_no_difference():
    name = "a long enough string to be an object of its own"
    original = Plain([name], [name])
    sent = pickle.loads(pickle.dumps(Plain([name], [str(name.encode(), "ascii")])))

    assert digest(original) == digest(sent)
    assert digest(original) != digest(Plain([name], ["other"]))


def test_object_that_holds_itself_has_a_fingerprint():
    loop: list[Any] = [1]
    loop.append(loop)
    cyclic: list[Any] = [2]
    cyclic.append(cyclic)

    assert digest(loop) != digest(cyclic)


def test_nested_and_quantized_tensors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = [torch.nested.nested_tensor([torch.ones(2), torch.full((3,), x)]) for x in (1, 2)]
        quantized = [
            torch.quantize_per_tensor(torch.ones(2), scale, 0, torch.quint8) for scale in (0.1, 0.2)
        ]
    assert digest(nested[0]) != digest(nested[1])
    assert digest(quantized[0]) != digest(quantized[1])
    assert digest(nested[0]) == digest(nested[0].clone())


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
SAMPLES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(SAMPLES)
def test_every_sample_is_equal_to_its_copy(sample):
    assert digest(sample) == digest(copy.deepcopy(sample))
    assert digest(sample) == digest(pickle.loads(pickle.dumps(sample)))


@given(SAMPLES, SAMPLES)
def test_samples_that_differ_have_other_fingerprints(sample, changed):
    assert (digest(sample) == digest(changed)) == (repr(sample) == repr(changed))


@given(st.lists(SAMPLES, min_size=1, max_size=4), st.data())
def test_part_that_was_changed_is_found(sample, data):
    place = data.draw(st.integers(0, len(sample) - 1))
    changed = [*sample]
    changed[place] = Plain(sample[place])

    sample_leaves, changed_leaves = (
        [tuple(part) for part in take_apart(each)] for each in (sample, changed)
    )
    assert difference(tuple(sample_leaves), tuple(changed_leaves)).startswith(f"[{place}]")
