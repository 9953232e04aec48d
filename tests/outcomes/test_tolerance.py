"""What a contract allows of facts made by hand: missing samples, and damaged ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults.faults import CorruptedFile, TruncatedFile
from pytest_dataloader_faults.outcomes import Delivery, FaultFacts, Firing, Pass, WorkerFacts, Wrong
from pytest_dataloader_faults.outcomes.judge.samples import difference
from pytest_dataloader_faults.outcomes.records import ZEROS
from pytest_dataloader_faults.outcomes.reference import Share
from support.facts import (
    EIO,
    TRUNCATED,
    delivery,
    map_reference,
    ordinary,
    raised,
    stream,
    stream_reference,
)
from support.rows import rows

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


@rows(
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


@rows(
    ("one", "expected"),
    [
        (stream("a b", "d"), "survived"),
        (stream("a b"), "corrupted"),
        (stream("a b", "d d"), "corrupted"),
        (stream("a b", "d x"), "corrupted"),
    ],
)
def test_stream_may_lose_as_many_as_were_hit(one, expected):
    """Its samples have no index, so they are counted where each has a file of its own."""
    outcome = replace(ordinary(one, _fired(EIO, 0)), recovery=None)
    shares = (Share(0, ("a", "b"), 2), Share(1, ("c", "d"), 2))
    reference = replace(stream_reference("a b c d"), shares=shares)

    assert expected == outcome.judge(reference, SKIPS).verdict


@rows(
    ("unlisted", "one", "expected"),
    [
        (1, stream("a b"), "survived"),
        (1, stream("a"), "corrupted"),
        (2, stream("a"), "survived"),
    ],
)
def test_firings_that_are_not_listed_may_have_lost_samples_of_a_stream(unlisted, one, expected):
    """The list of firings is cut off, and their number is not."""
    outcome = replace(ordinary(one, _fired(EIO, 0, unlisted=unlisted)), recovery=None)
    shares = (Share(0, ("a", "b"), 2), Share(1, ("c", "d"), 2))
    reference = replace(stream_reference("a b c d"), shares=shares)

    assert expected == outcome.judge(reference, SKIPS).verdict


@rows(
    ("given", "hit", "verdict", "says"),
    [
        ({0: "a b c", 1: "b c a"}, 0, "survived", ""),
        ({0: "a a a", 1: "a a a"}, 0, "survived", ""),
        ({0: "a b c", 1: "a b c"}, 0, "corrupted", "each worker gave the same samples in the same"),
        ({0: "a b c"}, 0, "survived", ""),
        ({0: "a b c", 1: "a x y"}, 0, "corrupted", "2 samples are wrong: no sample of the refer"),
        ({0: "a b", 1: "b c a"}, 0, "survived", "1 sample that faults hit is missing"),
        ({0: "a b c", 1: "b c"}, 0, "corrupted", "the stream of worker 1 ended after 2 samples"),
        ({}, 1, "corrupted", "the stream of worker 0 ended after 0 samples"),
    ],
    ids=["own", "one value", "alike", "one worker", "strange", "lost", "ended", "nothing came"],
)
def test_a_stream_without_an_end(given, hit, verdict, says):
    """Each worker gives as many samples as it was asked for, unless a fault hit it."""
    came = tuple(
        Delivery(None, (each,), each, worker=worker)
        for worker, samples in given.items()
        for each in samples.split()
    )
    (facts,) = _fired(EIO, 0)
    facts = replace(facts, firings=(replace(facts.firings[0], worker=hit),))
    outcome = ordinary(Pass((), came, complete=True), (facts,))
    reference = replace(stream_reference("a b c"), stream_limit=3)
    found = replace(outcome, kind="iterable", recovery=None).judge(reference, SKIPS)

    assert (found.verdict, says in found.sentence) == (verdict, True), found.sentence


def test_a_stream_without_an_end_that_raised_owes_nothing_more():
    """Its workers did not come to as many samples as they were asked for."""
    error = raised("OSError", "[Errno 5] Input/output error: '/data/a.rec'")
    outcome = replace(ordinary(stream("a", error=error), _fired(EIO, 0)), recovery=None)

    assert outcome.judge(replace(stream_reference("a b"), stream_limit=2)).passed


@rows(
    ("given", "hit", "verdict"),
    [
        ({0: "", 1: "c d"}, 0, "survived"),
        ({0: "a b", 1: ""}, 0, "corrupted"),
        ({0: "", 1: "c"}, 0, "corrupted"),
        ({0: "a b", 1: "c"}, 0, "corrupted"),
        ({0: "", 1: "c"}, None, "survived"),
        ({0: "", 1: "a c"}, 0, "survived"),
    ],
    ids=["its shard", "another's", "both", "one of another's", "not known", "shards change hands"],
)
def test_worker_that_no_fault_hit_owes_all_its_samples(given, hit, verdict):
    """One that a fault hit may have lost a shard."""
    came = tuple(
        Delivery(None, tuple(rows.split()), rows, worker=worker) for worker, rows in given.items()
    )
    (fired,) = _fired(EIO, 0)
    facts = (replace(fired, firings=(replace(fired.firings[0], worker=hit),)),)
    workers = tuple(WorkerFacts(worker, 7 + worker, 1, {}) for worker in given)
    outcome = ordinary(Pass((), came, complete=True), facts)
    outcome = replace(outcome, kind="iterable", recovery=None, workers=workers)
    shares = (Share(0, ("a", "b"), 1), Share(1, ("c", "d"), 1))

    judged = outcome.judge(replace(stream_reference("a b c d"), shares=shares), SKIPS)
    assert judged.verdict == verdict, judged.sentence


@rows(
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


def test_damage_makes_no_more_samples():
    """A batch that has more of them than were asked for is wrong, whatever they hold."""
    outcome = ordinary(_came(("d0", "d1", "dx"), ("d2", "d3")), _fired(CorruptedFile(), 1))
    found = outcome.judge(map_reference())

    assert (found.verdict, found.kind) == ("corrupted", Wrong.UNKNOWN)


SUBSTITUTES = Contract(may_substitute=True)
NOTHING_LEFT = TruncatedFile("*.rec", keep=0)


@rows(
    ("one", "facts", "expected"),
    [
        pytest.param(_came(("d0", "d0"), ("d2", "d3")), _fired(EIO, 1), "survived", id="neighbour"),
        pytest.param(_came(("d0", "d0"), ("d2", "d3")), _fired(EIO, 0), "corrupted", id="not hit"),
        pytest.param(_came(("d0", "dx"), ("d2", "d3")), _fired(EIO, 1), "survived", id="dummy"),
        pytest.param(_came(("d0", "dx"), ("d2", "d3")), _fired(EIO, 2), "corrupted", id="strange"),
        pytest.param(
            _came(("d0", "dx"), ("d2", "d3")), _fired(EIO, 1, epoch=2), "corrupted", id="epoch 2"
        ),
        pytest.param(
            _came(("d0", "dx"), ("d2", "d3")), _fired(TRUNCATED, 1), "corrupted", id="short data"
        ),
        pytest.param(
            _came(("d0", "d3"), ("d2", "d3")),
            _fired(TRUNCATED, 1),
            "survived",
            id="of a short file",
        ),
        pytest.param(
            _came(("d0", "dx"), ("d2", "d3")), _fired(NOTHING_LEFT, 1), "survived", id="empty file"
        ),
        pytest.param(WITHOUT_1, _fired(EIO, 1), "corrupted", id="missing"),
    ],
)
def test_sample_that_was_hit_may_be_replaced(one, facts, expected):
    """By another sample, or by anything where nothing was read; and no other one."""
    outcome = ordinary(one, facts)

    assert expected == outcome.judge(map_reference(), SUBSTITUTES).verdict
    assert outcome.judge(map_reference()).verdict == "corrupted"


@rows(
    ("one", "expected"),
    [
        (stream("a b", "c c"), "survived"),
        (stream("a b", "c x"), "survived"),
        (stream("a a", "b b"), "corrupted"),
        (stream("a x", "y d"), "corrupted"),
        (stream("a b", "c"), "corrupted"),
    ],
)
def test_stream_may_replace_as_many_as_were_hit(one, expected):
    """And has to give as many as ever."""
    outcome = replace(ordinary(one, _fired(EIO, None)), recovery=None)

    assert expected == outcome.judge(stream_reference("a b c d"), SUBSTITUTES).verdict


def test_replaced_samples_are_counted():
    """In the sentence, beside those that are missing."""
    both = Contract(may_skip=True, may_substitute=True)
    outcome = ordinary(_came(("d0", "dx"), ("d2",)), _fired(EIO, 1, 3))

    told = outcome.judge(map_reference(), both).sentence
    assert "1 sample that faults hit is missing and 1 sample that faults hit was rep" in told


def test_replaced_samples_of_a_stream_are_counted():
    """As many as came and are not in the reference, or not as often."""
    outcome = replace(ordinary(stream("a b", "a b"), _fired(EIO, None, None)), recovery=None)

    told = outcome.judge(stream_reference("a b c d"), SUBSTITUTES).sentence
    assert told.startswith("2 samples that faults hit were replaced; ")


def test_once_the_fault_is_gone_nothing_may_be_replaced():
    """A substitute that was kept is not what was promised."""
    replaced = _came(("d0", "d0"), ("d2", "d3"))
    outcome = replace(ordinary(replaced, _fired(EIO, 1)), recovery=replaced)

    assert outcome.judge(map_reference(), SUBSTITUTES).verdict == "poisoned"


def _picture(name, label="1", shape="(1, 64)"):
    """The parts of a sample: a picture and its label."""
    digest = ZEROS if name == ZEROS else name.ljust(24, "0")
    return (("[0]", f"torch.Tensor torch.uint8 {shape}", digest), ("[1]", "int", label))


def _pictures(*came, shape="(1, 64)"):
    """What came for the samples 0 to 3, and a reference of the pictures p0 to p3."""
    parts = [_picture(name, label, shape) for name, label in came]
    rows = tuple(str(each) for each in parts)
    batches = [
        replace(delivery(DRAWN[at], rows[2 * at :][:2]), leaves=tuple(parts[2 * at :][:2]))
        for at in (0, 1)
    ]
    known = [(index, _picture(f"p{index}", str(index), shape)) for index in range(4)]
    reference = replace(
        map_reference(), samples=tuple((at, str(each)) for at, each in known), leaves=tuple(known)
    )
    one = Pass(DRAWN, tuple(batches), complete=True)
    return replace(ordinary(one, _fired(CorruptedFile(), 1)), recovery=None), reference


PICTURES = P0, P1, P2, P3 = (("p0", "0"), ("p1", "1"), ("p2", "2"), ("p3", "3"))


@rows(
    ("came", "expected", "says"),
    [
        ((P0, ("x", "1"), P2, P3), "survived", "some hold the damaged bytes"),
        ((P0, ("x", "1"), ("y", "2"), P3), "survived", "some hold the damaged bytes"),
        ((P0, ("p1", "3"), P2, P3), "survived", "some hold the damaged bytes"),
        ((P0, P2, P2, P3), "corrupted", "sample 1 (batch 0) is wrong: it has the content of samp"),
        ((P0, ("p2", "1"), P2, P3), "corrupted", "it has the content of sample 2"),
        (
            (P0, ("x", "1"), P2, ("x", "3")),
            "corrupted",
            "samples 1 and 3 came alike; in",
        ),
    ],
)
def test_damage_makes_no_substitute(came, expected, says):
    """A neighbour's picture, or one picture for two, did not come from damaged bytes."""
    outcome, reference = _pictures(*came)
    found = outcome.judge(reference)

    assert (found.verdict, says in found.sentence) == (expected, True), found.sentence
    assert outcome.judge(reference, SUBSTITUTES).verdict == ("survived")


KINDS = [
    ((P0, P2, P2, P3), Wrong.SUBSTITUTED),
    ((P0, P2, P1, P3), Wrong.REORDERED),
    ((P0, ("x", "1"), P2, ("x", "3")), Wrong.ALIKE),
    ((P0, ("x", "1"), P2, P3), Wrong.DIFFERS),
]


@rows(("came", "kind"), KINDS)
def test_what_is_wrong_has_a_kind(came, kind):
    """The advice depends on it, and on no word of the sentence."""
    outcome, reference = _pictures(*came)
    outcome = replace(outcome, faults=_fired(EIO, 1))

    assert outcome.judge(reference).kind is kind


@pytest.mark.parametrize(
    ("one", "kind"),
    [(_came(("d0",), ("d2", "d3")), Wrong.MISSING), (_came(("d9",), ("d2", "d3")), Wrong.UNKNOWN)],
)
def test_what_is_missing_has_a_kind(one, kind):
    """Likewise of a batch that has fewer samples."""
    assert ordinary(one, _fired(EIO, 1)).judge(map_reference()).kind is kind


@rows(
    ("one", "kind"),
    [
        (stream("a b", "c"), Wrong.MISSING),
        (stream("a b", "c d", "a"), Wrong.REPEATED),
        (stream("a b", "c x"), Wrong.UNKNOWN),
        (stream("a b", "c d"), None),
    ],
)
def test_what_is_wrong_with_a_stream_has_a_kind(one, kind):
    """Samples that have no index have kinds, too; what is right has none."""
    outcome = replace(ordinary(one, _fired(EIO, 1)), recovery=None)

    assert outcome.judge(stream_reference("a b c d")).kind is kind


@rows(
    ("indices", "says"),
    [
        ([0, 1, 2, 3], "samples 0 to 3 came alike, all zeros;"),
        ([1, 2, 3], "samples 1 to 3 came alike, all zeros;"),
        ([0, 1], "samples 0 and 1 came alike, all zeros;"),
        ([0, 2, 3], "samples 0, 2 and 3 came alike, all zeros;"),
    ],
)
def test_samples_that_came_alike_are_named(indices, says):
    """Those in a row by the first and the last one."""
    came = [("all zeros", str(each)) if each in indices else PICTURES[each] for each in range(4)]
    outcome, reference = _pictures(*came)

    assert outcome.judge(reference).sentence.startswith(says)


@rows(("shape", "verdict"), [("(1, 15)", "survived"), ("(1, 16)", "corrupted"), ("()", "survived")])
def test_what_is_small_becomes_the_same_by_accident(shape, verdict):
    """A damaged label may well be that of another sample; sixteen values are no label."""
    outcome, reference = _pictures(P0, ("p2", "1"), P2, ("p2", "3"), shape=shape)

    assert outcome.judge(reference).verdict == verdict


def test_equal_samples_may_be_damaged_alike():
    """Two samples of one content have one content when the file that both are read from breaks."""
    outcome, reference = _pictures(P0, ("x", "1"), ("x", "2"), P3)
    twice = tuple(
        (at, _picture("p", str(at)) if at in (1, 2) else it) for at, it in reference.leaves
    )

    assert outcome.judge(reference).verdict == "corrupted"
    assert outcome.judge(replace(reference, leaves=twice)).verdict == "survived"


@pytest.mark.parametrize("contract", [Contract(), Contract(detects_corruption=True)])
def test_only_what_was_asked_is_told(contract):
    """Whether an error names its cause is asked of damaged bytes only by a promise."""
    error = raised("OSError", "/data/a.rec is corrupt")
    outcome = ordinary(Pass(DRAWN, (), error), _fired(CorruptedFile(), 1))
    said = outcome.judge(map_reference(), contract).sentence

    assert ("names its cause, and" in said) == contract.detects_corruption
    assert ("was not asked" in said) != contract.detects_corruption


A, B = "a" * 24, "b" * 24


@rows(
    ("expected", "came", "text"),
    [
        ((), (("", "int", "1"),), ""),
        ((("", "int", "1"),), (("", "int", "2"),), "it is 2 instead of 1"),
        ((("[0]", "T (4, 4)", A),), (("[0]", "T (3, 4)", B),), "[0] is T (3, 4) instead of"),
        ((("x", "T (4,)", A),), (("x", "T (4,)", ZEROS),), "x (T (4,)) is all zeros, unlike in"),
        ((("x", "T (4,)", ZEROS),), (("x", "T (4,)", "7"),), "x (T (4,)) differs from the ref"),
        ((("x", "int", "1"),), (("x", "int", A),), "x (int) differs from the reference"),
        ((("['x']", "T (4,)", A),), (("['x']", "T (4,)", B),), "['x'] (T (4,)) differs"),
        ((("", "list", ""),), (("", "list", ""), ("[0]", "int", "1")), "it has [0], which is not"),
        ((("", "list", ""), ("[0]", "int", "1")), (("", "list", ""),), "[0] is missing"),
    ],
)
def test_part_that_differs_is_named(expected, came, text):
    """With its path, and with what it is and should be."""
    assert difference(expected, came).startswith(text)
    assert bool(text) == bool(difference(expected, came))
