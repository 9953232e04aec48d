"""What a contract allows of facts made by hand: missing samples, and damaged ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults.faults import CorruptedFile
from pytest_dataloader_faults.outcomes import FaultFacts, Firing, Pass
from pytest_dataloader_faults.outcomes._judge._samples import difference
from support.facts import (
    EIO,
    TRUNCATED,
    delivery,
    map_reference,
    ordinary,
    stream,
    stream_reference,
)

SKIPS = Contract(may_skip=True)
DRAWN = ((0, 1), (2, 3))


def _fired(fault, *samples, epoch=1, unlisted=0):
    firings = tuple(Firing(0, 0, 7, "read", "/data/a.rec", 1, epoch, each) for each in samples)
    count = len(firings) + unlisted
    return (FaultFacts(fault, count, count, 0, firings),)


def _came(*batches):
    came = tuple(delivery(*each) for each in zip(DRAWN, batches, strict=True))
    return Pass(DRAWN, came, complete=True)


WITHOUT_1 = _came(("d0",), ("d2", "d3"))
WITHOUT_01 = _came((), ("d2", "d3"))


@pytest.mark.parametrize(
    ("one", "facts", "expected"),
    [
        pytest.param(WITHOUT_1, _fired(EIO, 1), "survived", id="hit"),
        pytest.param(WITHOUT_01, _fired(EIO, 1, 0), "survived", id="all of a batch"),
        pytest.param(WITHOUT_1, _fired(EIO, 1, 2), "survived", id="another came by a retry"),
        pytest.param(WITHOUT_1, _fired(EIO, 0), "corrupted", id="not hit"),
        pytest.param(WITHOUT_01, _fired(EIO, 1), "corrupted", id="one of two not hit"),
        pytest.param(WITHOUT_1, _fired(EIO, 1, epoch=2), "corrupted", id="hit in another epoch"),
        pytest.param(WITHOUT_1, _fired(EIO, 1, epoch=None), "survived", id="epoch not known"),
        pytest.param(WITHOUT_1, _fired(EIO, None), "survived", id="sample not known"),
        pytest.param(WITHOUT_1, _fired(EIO, 0, unlisted=1), "survived", id="not all listed"),
        pytest.param(WITHOUT_1, _fired(TRUNCATED, 0), "survived", id="file that stays short"),
        pytest.param(_came(("d1",), ("d2", "d3")), _fired(EIO, 1), "corrupted", id="the wrong one"),
        pytest.param(_came(("dx",), ("d2", "d3")), _fired(EIO, 1), "corrupted", id="strange"),
        pytest.param(_came(("d3",), ("d2",)), _fired(EIO, 0, 1, 3), "corrupted", id="another's"),
        pytest.param(_came(("d0", "d0"), ("d2", "d3")), _fired(EIO, 1), "corrupted", id="repeated"),
    ],
)
def test_just_what_a_fault_hit_may_be_missing(one, facts, expected):
    """Nothing else may be missing, wrong, or repeated; and without the contract nothing at all."""
    outcome = ordinary(one, facts)

    assert expected == outcome.judge(map_reference(), SKIPS).verdict
    assert outcome.judge(map_reference()).verdict == "corrupted"


def test_loss_is_counted():
    """The sentence says how many are missing, in all epochs."""
    outcome = replace(ordinary(WITHOUT_1, _fired(EIO, 1, epoch=None)), passes=(WITHOUT_1,) * 2)

    sentence = outcome.judge(map_reference(), SKIPS).sentence
    assert "2 samples that faults hit are missing; every other one matches" in sentence


def test_missing_sample_is_named():
    """Of those that no fault hit."""
    said = ordinary(WITHOUT_01, _fired(EIO, 1)).judge(map_reference(), SKIPS).sentence

    assert "does not hold the samples [0, 1] that were asked for: [0] are missing" in said


def test_of_equal_samples_the_one_that_was_hit_is_missing():
    """Of two samples with the same content the one that was hit is the one that is missing."""
    reference = replace(map_reference(), samples=((0, "d"), (1, "d"), (2, "d2"), (3, "d3")))
    outcome = ordinary(_came(("d",), ("d2", "d3")), _fired(EIO, 0))

    assert replace(outcome, recovery=None).judge(reference, SKIPS).verdict == "survived"


def test_once_the_fault_is_gone_nothing_may_be_missing():
    """Skipping for good is not what was promised."""
    outcome = replace(ordinary(WITHOUT_1, _fired(EIO, 1)), recovery=WITHOUT_1)

    assert outcome.judge(map_reference(), SKIPS).verdict == "poisoned"


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (stream("a b", "d"), "survived"),
        (stream("a b"), "corrupted"),
        (stream("a b", "d d"), "corrupted"),
        (stream("a b", "d x"), "corrupted"),
    ],
)
def test_stream_may_lose_as_many_as_were_hit(one, expected):
    """Its samples have no index, so they are counted."""
    outcome = replace(ordinary(one, _fired(EIO, 0)), recovery=None)

    assert expected == outcome.judge(stream_reference("a b c d"), SKIPS).verdict


@pytest.mark.parametrize(
    ("contract", "one", "expected"),
    [
        (Contract(), _came(("d0", "dx"), ("d2", "d3")), "survived"),
        (Contract(detects_corruption=True), _came(("d0", "dx"), ("d2", "d3")), "corrupted"),
        (Contract(), _came(("d0",), ("d2", "d3")), "corrupted"),
        (Contract(detects_corruption=True), _came(("d0", "d1"), ("d2", "d3")), "survived"),
    ],
)
def test_damaged_content(contract, one, expected):
    """Only a contract that promises to notice it is broken by it; a missing sample breaks each."""
    facts = _fired(CorruptedFile(), 1)

    assert expected == ordinary(one, facts).judge(map_reference(), contract).verdict


A, B = "a" * 24, "b" * 24


@pytest.mark.parametrize(
    ("expected", "came", "text"),
    [
        ((), (("", "int", "1"),), ""),
        ((("", "int", "1"),), (("", "int", "2"),), "it is 2 instead of 1"),
        ((("[0]", "T (4, 4)", A),), (("[0]", "T (3, 4)", B),), "[0] is T (3, 4) instead of"),
        ((("['x']", "T (4,)", A),), (("['x']", "T (4,)", B),), "['x'] (T (4,)) differs"),
        ((("", "list", ""),), (("", "list", ""), ("[0]", "int", "1")), "it has [0], which is not"),
        ((("", "list", ""), ("[0]", "int", "1")), (("", "list", ""),), "[0] is missing"),
    ],
)
def test_part_that_differs_is_named(expected, came, text):
    """With its path, and with what it is and should be."""
    assert difference(expected, came).startswith(text)
    assert bool(text) == bool(difference(expected, came))
