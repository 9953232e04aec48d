"""Which parts of samples vary, and which of them are compared."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults.outcomes.comparison import Compared
from pytest_dataloader_faults.outcomes.reference import (
    Leaf,
    compared_parts,
    find_varying,
    is_inside,
    merge_levels,
)
from support.rows import rows

SHAPES, TYPES, NOTHING = Compared.SHAPES, Compared.TYPES, Compared.NOTHING
DATA = Leaf("['data']", "Tensor (4,)", "d")


def _dict(*parts):
    """A dict with data and these *parts*."""
    keys = {part.path.partition("]")[0] for part in parts}
    return (Leaf("", f"dict of {1 + len(keys)}", ""), DATA, *parts)


def _part(name, form="float", digest=""):
    return Leaf(f"['{name}']", form, digest)


def _list(*digests, form="int"):
    """A list in such a dict."""
    items = (Leaf(f"['list'][{place}]", form, each) for place, each in enumerate(digests))
    return (Leaf("['list']", f"list of {len(digests)}", ""), *items)


def _found(reading, other_reading):
    varying = find_varying([(0, reading)], [(0, other_reading)])
    return {part.path: part.compared for part in varying}


@rows(
    ("reading", "other_reading", "expected"),
    [
        (_dict(_part("t", digest="1")), _dict(_part("t", digest="1")), {}),
        (_dict(_part("t", digest="1")), _dict(_part("t", digest="2")), {"['t']": SHAPES}),
        (
            _dict(_part("t", "Tensor (3,)", "1")),
            _dict(_part("t", "Tensor (5,)", "2")),
            {"['t']": TYPES},
        ),
        (
            _dict(_part("t", "float", "1")),
            _dict(_part("t", "NoneType", "None")),
            {"['t']": NOTHING},
        ),
        (_dict(*_list("1", "2")), _dict(*_list("1", "3")), {"['list'][1]": SHAPES}),
        (_dict(*_list("1", "2")), _dict(*_list("1")), {"['list']": TYPES}),
        (_dict(*_list("1", "2")), _dict(*_list()), {"['list']": NOTHING}),
        (_dict(*_list(*"a" * 40)), _dict(*_list(*"b" * 40)), {"['list']": TYPES}),
        (_dict(_part("t")), _dict(_part("u")), {"": NOTHING}),
        ((Leaf("", "Tensor (4,)", "1"),), (Leaf("", "Tensor (4,)", "2"),), {"": SHAPES}),
    ],
    ids="same content shape type item length emptiness many keys all".split(),
)
def test_parts_that_vary(reading, other_reading, expected):
    """Each part is compared as closely as both reads agree."""
    assert _found(reading, other_reading) == expected


@pytest.mark.parametrize("parts", [_list("1", "2"), _list("7", "8", "9"), _list("x")])
def test_items_of_a_list_whose_length_varies_are_compared_by_type(parts):
    """Their number and content do not matter, but another type is a different sample."""
    levels = (("['list']", TYPES),)
    expected = compared_parts(_dict(*_list("1")), levels)

    assert compared_parts(_dict(*parts), levels) == expected
    assert compared_parts(_dict(*_list("1", form="str")), levels) != expected


def test_nothing_of_a_part_is_compared_if_its_type_varies():
    """Its items are not compared either. Other parts are unaffected."""
    parts = _dict(*_list("1", "2"))

    assert compared_parts(parts, (("['list']", NOTHING),)) == [*parts[:2], Leaf("['list']", "", "")]


def test_parts_of_a_stream_are_compared_in_any_order():
    """A time varies in every order, but the data does not."""
    reading = [(None, _dict(_part("t", digest=each), _part("n", digest=each))) for each in "abcd"]
    second = [
        (None, _dict(_part("t", digest=f"2{letter}"), _part("n", digest=letter)))
        for letter in "dbca"
    ]
    (varying,) = find_varying(reading, second)

    assert (varying.path, varying.compared, varying.samples) == ("['t']", SHAPES, 4)


@rows(
    ("path", "container", "expected"),
    [
        ("['a'][0]", "['a']", True),
        ("['a']", "['a']", False),
        (".xy", ".x", False),
        (".x.y", ".x", True),
        ("[10]", "[1]", False),
        ("[1]", "", True),
    ],
)
def test_a_part_is_in_its_containers(path, container, expected):
    """A container whose name is only a prefix does not count."""
    assert is_inside(path, container) is expected


def test_the_looser_of_two_comparisons_holds():
    """A part may vary more between one pair of reads than between another one."""
    levels, additions = (("a", SHAPES), ("b", TYPES)), (("a", NOTHING), ("c", SHAPES))

    assert merge_levels(levels, additions) == (("a", NOTHING), ("b", TYPES), ("c", SHAPES))
