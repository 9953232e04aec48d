"""What a contract allows, for facts made by hand: missing samples, and damaged ones."""

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults._trial.passes import SampleComparer
from pytest_dataloader_faults.faults import CorruptedFile, TruncatedFile
from pytest_dataloader_faults.outcomes import (
    Batch,
    FaultFacts,
    Firing,
    Pass,
    Sample,
    WorkerFacts,
    Wrong,
)
from pytest_dataloader_faults.outcomes.agreement import BY_FORM, ZEROS, Comparison, Part, difference
from support.facts import (
    EIO,
    EPOCH_1,
    TRUNCATED,
    batch_of,
    by_workers,
    map_reference,
    ordinary,
    raised,
    revised,
    stream,
    stream_reference,
)
from support.judging import judge_trial
from support.rows import rows

SKIPS = Contract(may_skip=True)
SUBSTITUTES = Contract(may_substitute=True)
DRAWN = ((0, 1), (2, 3))


def _fired(fault, *samples, epoch=1, unlisted=0):
    firings = tuple(Firing(0, 0, 7, "read", "/data/a.rec", 1, epoch, each) for each in samples)
    count = len(firings) + unlisted
    return (FaultFacts(fault, count, count, 0, firings),)


def _came(*batches):
    deliveries = tuple(batch_of(*each) for each in zip(DRAWN, batches, strict=True))
    return Pass(EPOCH_1, DRAWN, deliveries, complete=True)


WITHOUT_1 = _came(("d0",), ("d2", "d3"))
WITHOUT_01 = _came((), ("d2", "d3"))


@rows(
    ("epoch", "facts", "expected"),
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
def test_just_what_a_fault_hit_may_be_missing(epoch, facts, expected):
    """Nothing else may be missing, wrong or repeated. Without the contract, nothing may be."""
    outcome = ordinary(epoch, facts)

    assert expected == judge_trial(outcome, map_reference(), SKIPS).verdict
    assert judge_trial(outcome, map_reference()).verdict == "corrupted"


def test_of_equal_samples_the_one_that_was_hit_is_missing():
    reference = replace(
        map_reference(), samples=tuple(enumerate(map(Sample, ("d", "d", "d2", "d3"))))
    )
    outcome = ordinary(_came(("d",), ("d2", "d3")), _fired(EIO, 0))

    assert judge_trial(revised(outcome, recovery=None), reference, SKIPS).verdict == "survived"


def test_after_the_fault_nothing_may_be_missing():
    """Skipping permanently was not promised."""
    outcome = revised(ordinary(WITHOUT_1, _fired(EIO, 1)), recovery=WITHOUT_1)

    assert judge_trial(outcome, map_reference(), SKIPS).verdict == "poisoned"


def _of_two_workers(files):
    batches = [batch_of(None, rows) for rows in ("ab", "cd")]
    return by_workers(batches[:1], batches[1:], files=files)


@rows(
    ("epoch", "expected"),
    [
        (stream("a b", "d"), "survived"),
        (stream("a b"), "corrupted"),
        (stream("a b", "d d"), "corrupted"),
        (stream("a b", "d x"), "corrupted"),
    ],
)
def test_stream_may_lose_as_many_as_were_hit(epoch, expected):
    """Its samples have no index, so they are counted if each has its own file."""
    outcome = revised(ordinary(epoch, _fired(EIO, 0)), recovery=None)
    reference = replace(stream_reference("a b c d"), fault_free=_of_two_workers(files=2))

    finding = judge_trial(outcome, reference, SKIPS)
    assert expected == finding.verdict
    if epoch == stream("a b"):
        assert "2 of 4 samples are missing, but faults hit only 1" in finding.sentence


@rows(
    ("unlisted", "epoch", "expected"),
    [(1, stream("a b"), "survived"), (1, stream("a"), "corrupted"), (2, stream("a"), "survived")],
)
def test_firings_that_are_not_listed_may_have_lost_samples_of_a_stream(unlisted, epoch, expected):
    """The list of firings is limited, but their number is not."""
    outcome = revised(ordinary(epoch, _fired(EIO, 0, unlisted=unlisted)), recovery=None)
    reference = replace(stream_reference("a b c d"), fault_free=_of_two_workers(files=2))

    assert expected == judge_trial(outcome, reference, SKIPS).verdict


@rows(
    ("samples_by_worker", "hit", "verdict", "says"),
    [
        ({0: "a b c", 1: "b c a"}, 0, "survived", ""),
        ({0: "a a a", 1: "a a a"}, 0, "survived", ""),
        ({0: "a b c", 1: "a b c"}, 0, "corrupted", "same samples"),
        ({0: "a b c"}, 0, "survived", ""),
        ({0: "a b c", 1: "a x y"}, 0, "corrupted", "2 samples"),
        ({0: "a b", 1: "b c a"}, 0, "survived", "1 sample"),
        ({0: "a b c", 1: "b c"}, 0, "corrupted", "worker 1 ended after 2 samples"),
        ({}, 1, "corrupted", "worker 0 ended after 0 samples"),
    ],
    ids=["own", "one value", "alike", "one worker", "strange", "lost", "ended", "nothing came"],
)
def test_an_endless_stream(samples_by_worker, hit, verdict, says):
    """Each worker delivers as many samples as requested, unless a fault hit it."""
    deliveries = tuple(
        batch_of(None, (name,), worker)
        for worker, samples in samples_by_worker.items()
        for name in samples.split()
    )
    (facts,) = _fired(EIO, 0)
    facts = replace(facts, firings=(replace(facts.firings[0], worker=hit),))
    outcome = ordinary(Pass(EPOCH_1, (), deliveries, complete=True), (facts,))
    comparison = replace(BY_FORM, limit=3)
    reference = replace(stream_reference("a b c"), comparison=comparison)
    facts = {"kind": "iterable", "comparison": comparison, "recovery": None}
    finding = judge_trial(revised(outcome, **facts), reference, SKIPS)

    assert (finding.verdict, says in finding.sentence) == (verdict, True), finding.sentence


def test_an_endless_stream_that_raised_may_end_early():
    """Its workers did not reach the requested number of samples."""
    error = raised("OSError", "[Errno 5] Input/output error: '/data/a.rec'")
    comparison = Comparison(limit=2)
    outcome = ordinary(stream("a", error=error), _fired(EIO, 0))
    outcome = revised(outcome, recovery=None, comparison=comparison)

    assert judge_trial(outcome, replace(stream_reference("a b"), comparison=comparison)).passed


@rows(
    ("samples_by_worker", "hit", "verdict"),
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
def test_worker_that_no_fault_hit_must_deliver_all_its_samples(samples_by_worker, hit, verdict):
    """A worker that a fault hit may have lost a shard."""
    deliveries = tuple(
        batch_of(None, rows.split(), worker) for worker, rows in samples_by_worker.items()
    )
    (fired,) = _fired(EIO, 0)
    facts = (replace(fired, firings=(replace(fired.firings[0], worker=hit),)),)
    workers = tuple(WorkerFacts(worker, 7 + worker, 1, {}) for worker in samples_by_worker)
    outcome = ordinary(Pass(EPOCH_1, (), deliveries, complete=True), facts)
    outcome = revised(outcome, kind="iterable", recovery=None, processes=workers)
    reference = replace(stream_reference("a b c d"), fault_free=_of_two_workers(files=1))

    judged = judge_trial(outcome, reference, SKIPS)
    assert judged.verdict == verdict, judged.sentence


NOTHING_LEFT = TruncatedFile("*.rec", keep=0)


@rows(
    ("epoch", "facts", "expected"),
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
def test_sample_that_was_hit_may_be_replaced(epoch, facts, expected):
    """It may be another sample, or anything if nothing was read.

    Other samples may not be replaced.
    """
    outcome = ordinary(epoch, facts)

    assert expected == judge_trial(outcome, map_reference(), SUBSTITUTES).verdict
    assert judge_trial(outcome, map_reference()).verdict == "corrupted"


@rows(
    ("epoch", "expected"),
    [
        (stream("a b", "c c"), "survived"),
        (stream("a b", "c x"), "survived"),
        (stream("a a", "b b"), "corrupted"),
        (stream("a x", "y d"), "corrupted"),
        (stream("a b", "c"), "corrupted"),
    ],
)
def test_stream_may_replace_as_many_as_were_hit(epoch, expected):
    """It must still deliver as many samples."""
    outcome = revised(ordinary(epoch, _fired(EIO, None)), recovery=None)

    assert expected == judge_trial(outcome, stream_reference("a b c d"), SUBSTITUTES).verdict


def _picture(name, label="1", shape="(1, 64)"):
    """A sample: an image and its label."""
    digest = ZEROS if name == ZEROS else name.ljust(24, "0")
    image = Part("[0]", f"torch.Tensor torch.uint8 {shape}", digest)
    parts = (image, Part("[1]", "int", label))
    return SampleComparer().record(parts)


def _pictures(*pictures, shape="(1, 64)"):
    """An outcome with these images and labels as samples 0 to 3, and a reference of p0 to p3."""
    samples = [_picture(name, label, shape) for name, label in pictures]
    batches = (Batch(DRAWN[0], tuple(samples[:2])), Batch(DRAWN[1], tuple(samples[2:])))
    expected = tuple((index, _picture(f"p{index}", str(index), shape)) for index in range(4))
    reference = replace(map_reference(), samples=expected)
    epoch = Pass(EPOCH_1, DRAWN, batches, complete=True)
    return revised(ordinary(epoch, _fired(CorruptedFile(), 1)), recovery=None), reference


PICTURES = P0, P1, P2, P3 = (("p0", "0"), ("p1", "1"), ("p2", "2"), ("p3", "3"))


@rows(
    ("pictures", "expected", "says"),
    [
        ((P0, ("x", "1"), P2, P3), "survived", "damaged bytes"),
        ((P0, ("x", "1"), ("y", "2"), P3), "survived", "damaged bytes"),
        ((P0, ("p1", "3"), P2, P3), "survived", "damaged bytes"),
        ((P0, P2, P2, P3), "corrupted", "sample 1 (batch 0)"),
        ((P0, ("p2", "1"), P2, P3), "corrupted", "content of sample 2"),
        ((P0, ("x", "1"), P2, ("x", "3")), "corrupted", "samples 1 and 3 are identical,"),
    ],
)
def test_damage_makes_no_substitute(pictures, expected, says):
    """Damaged bytes do not produce another sample's image, or one image for two samples."""
    outcome, reference = _pictures(*pictures)
    finding = judge_trial(outcome, reference)

    assert (finding.verdict, says in finding.sentence) == (expected, True), finding.sentence
    assert judge_trial(outcome, reference, SUBSTITUTES).verdict == ("survived")


def test_substitute_is_found_without_its_parts():
    """Only the first samples of a pass are recorded with their parts."""
    outcome, reference = _pictures(P0, ("p2", "1"), P2, P3)
    (epoch,) = outcome.epochs
    batches = tuple(
        replace(batch, samples=tuple(each._replace(parts=()) for each in batch.samples))
        for batch in epoch.delivered
    )
    outcome = revised(outcome, epochs=(replace(epoch, delivered=batches),))

    assert judge_trial(outcome, reference).wrong is Wrong.SUBSTITUTED


KINDS = [
    ((P0, P2, P2, P3), Wrong.SUBSTITUTED),
    ((P0, P2, P1, P3), Wrong.REORDERED),
    ((P0, ("x", "1"), P2, ("x", "3")), Wrong.IDENTICAL),
    ((P0, ("x", "1"), P2, P3), Wrong.DIFFERS),
]


ZEROED = [0, 1, 2, 3], [0, 1], [0, 2, 3]


def _judge_zeros(indices):
    pictures = [
        ("all zeros", str(each)) if each in indices else PICTURES[each] for each in range(4)
    ]
    outcome, reference = _pictures(*pictures)
    return judge_trial(outcome, reference)


def _line(finding):
    kind = f" ({finding.wrong})" if finding.wrong else ""
    return f"{finding.verdict}{kind}: {finding.sentence}"


def test_texts_about_samples(golden):
    findings = {f"zeros {indices}": _judge_zeros(indices) for indices in ZEROED}
    for name, (pictures, _) in zip(
        ("substituted", "reordered", "identical", "differs"), KINDS, strict=True
    ):
        outcome, reference = _pictures(*pictures)
        findings[name] = judge_trial(revised(outcome, faults=_fired(EIO, 1)), reference)
    outcome, reference = _pictures(P0, ("x", "1"), P2, P3)
    findings["damaged"] = judge_trial(outcome, reference)
    tolerant = Contract(may_skip=True, may_substitute=True)
    batches = {
        "missing": (WITHOUT_01, SKIPS),
        "unknown": (_came(("d9",), ("d2", "d3")), SKIPS),
        "skipped and replaced": (_came(("d0", "dx"), ("d2",)), tolerant),
    }
    for name, (epoch, contract) in batches.items():
        outcome = ordinary(epoch, _fired(EIO, 1, 3))
        findings[name] = judge_trial(outcome, map_reference(), contract)
    streams = {"repeated": "c d a", "wrong": "c x", "lost": "c", "two lost": ""}
    for name, samples in streams.items():
        outcome = revised(ordinary(stream("a b", samples), _fired(EIO, 1)), recovery=None)
        findings[f"stream {name}"] = judge_trial(outcome, stream_reference("a b c d"))
    outcome = revised(ordinary(WITHOUT_1, _fired(EIO, 1, epoch=None)), epochs=(WITHOUT_1,) * 2)
    findings["missing twice"] = judge_trial(outcome, map_reference(), SKIPS)
    outcome = ordinary(_came(("d0", "d1", "dx"), ("d2", "d3")), _fired(CorruptedFile(), 1))
    findings["more than were drawn"] = judge_trial(outcome, map_reference())
    golden("samples", {title: _line(finding) for title, finding in findings.items()})


@rows(("shape", "verdict"), [("(1, 15)", "survived"), ("(1, 16)", "corrupted"), ("()", "survived")])
def test_small_parts_may_be_the_same_by_accident(shape, verdict):
    """Damage may turn a label into another sample's; sixteen values are not a label."""
    outcome, reference = _pictures(P0, ("p2", "1"), P2, ("p2", "3"), shape=shape)

    assert judge_trial(outcome, reference).verdict == verdict


def test_equal_samples_may_be_damaged_identically():
    """Two equal samples stay equal when the file that both are read from is damaged."""
    outcome, reference = _pictures(P0, ("x", "1"), ("x", "2"), P3)
    twice = tuple(
        (at, _picture("p", str(at)) if at in (1, 2) else sample) for at, sample in reference.samples
    )

    assert judge_trial(outcome, reference).verdict == "corrupted"
    assert judge_trial(outcome, replace(reference, samples=twice)).verdict == "survived"


@pytest.mark.parametrize("contract", [Contract(), Contract(detects_corruption=True)])
def test_the_sentence_says_what_was_not_checked(contract):
    """For damaged bytes, only a promise requires that the error names its cause."""
    error = raised("OSError", "/data/a.rec is corrupt")
    outcome = ordinary(Pass(EPOCH_1, DRAWN, (), error), _fired(CorruptedFile(), 1))
    sentence = judge_trial(outcome, map_reference(), contract).sentence

    assert ("not checked" in sentence) != contract.detects_corruption


A, B = "a" * 24, "b" * 24


@rows(
    ("expected", "delivered", "text"),
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
def test_part_that_differs_is_named(expected, delivered, text):
    """The message has its path, its value and the expected value."""
    assert difference(expected, delivered).startswith(text)
    assert bool(text) == bool(difference(expected, delivered))


def _own_batches(batches_by_worker):
    """The batches of rows that a stream makes itself, by worker."""
    return tuple(
        replace(batch_of(None, (batch,), worker), rows=tuple(batch))
        for worker, wholes in batches_by_worker.items()
        for batch in wholes.split()
    )


@rows(
    ("batches_by_worker", "verdict", "text"),
    [
        ({0: "acd", 1: "efgh"}, "survived", "1 sample"),
        ({0: "", 1: "efgh"}, "survived", "4 samples"),
        ({0: "abcd", 1: "efg"}, "corrupted", "1 sample of worker 1 "),
        ({0: "acd", 1: "fg"}, "corrupted", "2 samples of worker 1 "),
        ({0: "abcdef", 1: "gh"}, "survived", "every sample"),
    ],
)
def test_rows_of_a_worker_that_no_fault_hit_must_not_be_missing(batches_by_worker, verdict, text):
    """If workers divide the rows differently, it is unknown whose rows are missing."""
    expected = _own_batches({0: "ab cd", 1: "ef gh"})
    parts = tuple(each.rows for each in expected)
    fault_free = by_workers(expected[:2], expected[2:], files=1)
    reference = replace(stream_reference("ab cd ef gh"), fault_free=fault_free, parts=parts)
    workers = tuple(WorkerFacts(worker, 7 + worker, 1, {}) for worker in batches_by_worker)
    outcome = ordinary(
        Pass(EPOCH_1, (), _own_batches(batches_by_worker), complete=True), _fired(EIO, None)
    )
    outcome = revised(outcome, kind="iterable", recovery=None, processes=workers)

    judged = judge_trial(outcome, reference, SKIPS)
    assert (judged.verdict, text in judged.sentence) == (verdict, True), judged.sentence
