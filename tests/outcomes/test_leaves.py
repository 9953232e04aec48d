"""Which parts of samples vary, and what is left to compare."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults.outcomes.contract import Compared
from pytest_dataloader_faults.outcomes.reference import (
    Leaf,
    compared_parts,
    find_varying,
    is_inside,
    merged,
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


def _found(first, second):
    varying = find_varying([(0, first)], [(0, second)])
    return {part.path: part.compared for part in varying}


@rows(
    ("first", "second", "expected"),
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
def test_parts_that_vary(first, second, expected):
    """Each is compared as closely as both readings agree."""
    assert _found(first, second) == expected


@pytest.mark.parametrize("parts", [_list("1", "2"), _list("7", "8", "9"), _list("x")])
def test_items_of_a_list_whose_length_varies_are_compared_by_type(parts):
    """Whatever their number and content; another type is another sample."""
    levels = (("['list']", TYPES),)
    expected = compared_parts(_dict(*_list("1")), levels)

    assert compared_parts(_dict(*parts), levels) == expected
    assert compared_parts(_dict(*_list("1", form="str")), levels) != expected


def test_nothing_of_a_part_is_compared_where_even_its_type_varies():
    """Nor of what it contains; the other parts are as they were."""
    parts = _dict(*_list("1", "2"))

    assert compared_parts(parts, (("['list']", NOTHING),)) == [*parts[:2], Leaf("['list']", "", "")]


def test_parts_of_a_stream_are_known_in_any_order():
    """A time varies in each order, and the data does in none."""
    first = [(None, _dict(_part("t", digest=each), _part("n", digest=each))) for each in "abcd"]
    second = [
        (None, _dict(_part("t", digest=f"2{each}"), _part("n", digest=each))) for each in "dbca"
    ]
    (varying,) = find_varying(first, second)

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
    """And in none whose name only begins alike."""
    assert is_inside(path, container) is expected


def test_the_looser_of_two_comparisons_holds():
    """A part may vary more in one reading than in another one."""
    one, other = (("a", SHAPES), ("b", TYPES)), (("a", NOTHING), ("c", SHAPES))

    assert merged(one, other) == (("a", NOTHING), ("b", TYPES), ("c", SHAPES))
