"""The ways to compare samples, and which parts of them vary."""

import pytest

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes.agreement import Mask, Part, count_varying, find_mask, spread
from pytest_dataloader_faults.outcomes.reference import require_samples
from support.facts import batch_reference, map_reference
from support.rows import rows

DATA = Part("['data']", "Tensor (4,)", "d")


def _dict(*parts):
    keys = {part.path.partition("]")[0] for part in parts}
    return (Part("", f"dict of {1 + len(keys)}", ""), DATA, *parts)


def _part(name, form="float", digest=""):
    return Part(f"['{name}']", form, digest)


def _list(*digests, form="int"):
    items = (Part(f"['list'][{place}]", form, each) for place, each in enumerate(digests))
    return (Part("['list']", f"list of {len(digests)}", ""), *items)


NOTHING = Mask(ignored=("",))
LIST_OF_ANY = Mask(types_only=("['list']",))


@rows(
    ("reading", "other_reading", "expected"),
    [
        (_dict(_part("t", digest="1")), _dict(_part("t", digest="1")), Mask()),
        (_dict(_part("t", digest="1")), _dict(_part("t", digest="2")), Mask(("['t']",))),
        (
            _dict(_part("t", "Tensor (3,)", "1")),
            _dict(_part("t", "Tensor (5,)", "2")),
            Mask(types_only=("['t']",)),
        ),
        (
            _dict(_part("t", "float", "1")),
            _dict(_part("t", "NoneType", "None")),
            Mask(ignored=("['t']",)),
        ),
        (_dict(*_list("1", "2")), _dict(*_list("1", "3")), Mask(("['list'][1]",))),
        (_dict(*_list("1", "2")), _dict(*_list("1")), LIST_OF_ANY),
        (_dict(*_list("1", "2")), _dict(*_list()), Mask(ignored=("['list']",))),
        (_dict(*_list(*"a" * 40)), _dict(*_list(*"b" * 40)), LIST_OF_ANY),
        (_dict(_part("t")), _dict(_part("u")), NOTHING),
        ((Part("", "Tensor (4,)", "1"),), (Part("", "Tensor (4,)", "2"),), Mask(("",))),
    ],
    ids="same content shape type item length emptiness many keys all".split(),
)
def test_parts_that_vary(reading, other_reading, expected):
    """Each part is compared as closely as both reads agree."""
    mask = find_mask([(0, reading)], [(0, other_reading)])

    assert mask == expected
    assert mask.apply(reading) == mask.apply(other_reading)


@pytest.mark.parametrize("parts", [_list("1", "2"), _list("7", "8", "9"), _list("x")])
def test_items_of_a_list_whose_length_varies_are_compared_by_type(parts):
    """Their number and content do not matter, but another type is a different sample."""
    expected = LIST_OF_ANY.apply(_dict(*_list("1")))

    assert LIST_OF_ANY.apply(_dict(*parts)) == expected
    assert LIST_OF_ANY.apply(_dict(*_list("1", form="str"))) != expected


def test_nothing_of_a_part_is_compared_if_its_type_varies():
    """Its items are not compared either. Other parts are unaffected."""
    parts = _dict(*_list("1", "2"))

    assert Mask(ignored=("['list']",)).apply(parts) == list(parts[:2])


def test_parts_of_a_stream_are_compared_in_any_order():
    """A time varies in every order, but the data does not."""
    reading = [(None, _dict(_part("t", digest=each), _part("n", digest=each))) for each in "abcd"]
    second = [
        (None, _dict(_part("t", digest=f"2{letter}"), _part("n", digest=letter)))
        for letter in "dbca"
    ]
    assert find_mask(reading, second) == Mask(("['t']",))
    assert count_varying(reading, second) == {"['t']": 4}


def test_a_part_that_varies_does_so_in_each_item_of_a_batch():
    """A time between them has another type."""
    items = (Part("[0]", "Tensor (4,)", "a"), Part("[1]", "Tensor (7,)", "b"))
    batch = (Part("", "list of 3", ""), *items, Part("[2]", "float", "1"))

    assert spread(Mask(("[1]",)), [(0, batch)]) == Mask(("[0]", "[1]"))


def test_the_looser_of_two_comparisons_holds():
    """A part may vary more between one pair of reads than between another one."""
    mask, addition = Mask(("['a'][0]", "['d']"), ("['b']",)), Mask(("['c']",), (), ("['a']",))

    assert mask | addition == Mask(("['c']", "['d']"), ("['b']",), ("['a']",))


BATCHES = batch_reference(b01=(0, 1))


def _label(sample):
    return sample["label"]


@pytest.mark.parametrize("contract", [Contract(may_skip=True), Contract(may_substitute=True)])
def test_contracts_about_samples_need_split_batches(contract):
    """Other contracts do not need them."""
    with pytest.raises(InvalidArgumentError, match=r"Contract\(split=...\)"):
        require_samples(BATCHES, contract)
    require_samples(map_reference(), contract)
    require_samples(BATCHES, Contract())
