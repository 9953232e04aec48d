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


MISSING = {
    "hit": (WITHOUT_1, _fired(EIO, 1)),
    "all of a batch": (WITHOUT_01, _fired(EIO, 1, 0)),
    "another came by a retry": (WITHOUT_1, _fired(EIO, 1, 2)),
    "not hit": (WITHOUT_1, _fired(EIO, 0)),
    "one of two not hit": (WITHOUT_01, _fired(EIO, 1)),
    "hit in another epoch": (WITHOUT_1, _fired(EIO, 1, epoch=2)),
    "epoch not known": (WITHOUT_1, _fired(EIO, 1, epoch=None)),
    "sample not known": (WITHOUT_1, _fired(EIO, None)),
    "not all listed": (WITHOUT_1, _fired(EIO, 0, unlisted=1)),
    "file that stays short": (WITHOUT_1, _fired(TRUNCATED, 0)),
    "the wrong one": (_came(("d1",), ("d2", "d3")), _fired(EIO, 1)),
    "strange": (_came(("dx",), ("d2", "d3")), _fired(EIO, 1)),
    "another's": (_came(("d3",), ("d2",)), _fired(EIO, 0, 1, 3)),
    "repeated": (_came(("d0", "d0"), ("d2", "d3")), _fired(EIO, 1)),
}
"""Just what a fault hit may be missing."""


def _of_two_workers(files):
    batches = [batch_of(None, rows) for rows in ("ab", "cd")]
    return by_workers(batches[:1], batches[1:], files=files)


LOSSES = {
    "as many as were hit": (stream("a b", "d"), 0),
    "two": (stream("a b"), 0),
    "one, and one twice": (stream("a b", "d d"), 0),
    "one, and one that is strange": (stream("a b", "d x"), 0),
    "two of which one is not listed": (stream("a b"), 1),
    "three of which one is not listed": (stream("a"), 1),
    "three of which two are not listed": (stream("a"), 2),
}
"""Samples of a stream have no index, so they are counted if each has its own file."""
ENDLESS = {
    "own": ({0: "a b c", 1: "b c a"}, 0),
    "one value": ({0: "a a a", 1: "a a a"}, 0),
    "alike": ({0: "a b c", 1: "a b c"}, 0),
    "one worker": ({0: "a b c"}, 0),
    "strange": ({0: "a b c", 1: "a x y"}, 0),
    "lost": ({0: "a b", 1: "b c a"}, 0),
    "ended": ({0: "a b c", 1: "b c"}, 0),
    "nothing came": ({}, 1),
}
"""Each worker delivers as many samples of an endless stream as requested, unless a fault hit it."""
SHARDS = {
    "its shard": ({0: "", 1: "c d"}, 0),
    "another's": ({0: "a b", 1: ""}, 0),
    "both": ({0: "", 1: "c"}, 0),
    "one of another's": ({0: "a b", 1: "c"}, 0),
    "not known": ({0: "", 1: "c"}, None),
    "shards change hands": ({0: "", 1: "a c"}, 0),
}
"""A worker that a fault hit may have lost a shard. Others must deliver all their samples."""
OWN_BATCHES = {
    "one": {0: "acd", 1: "efgh"},
    "all of a worker": {0: "", 1: "efgh"},
    "one of the other worker": {0: "abcd", 1: "efg"},
    "of both": {0: "acd", 1: "fg"},
    "divided otherwise": {0: "abcdef", 1: "gh"},
}
"""If workers divide the rows differently, it is unknown whose rows are missing."""


def _deliveries(samples_by_worker):
    return tuple(
        batch_of(None, samples.split(), worker) for worker, samples in samples_by_worker.items()
    )


def _hit(worker):
    (facts,) = _fired(EIO, 0)
    return (replace(facts, firings=(replace(facts.firings[0], worker=worker),)),)


def _of_stream(deliveries, facts, workers=(), **changes):
    outcome = ordinary(Pass(EPOCH_1, (), deliveries, complete=True), facts)
    processes = tuple(WorkerFacts(worker, 7 + worker, 1, {}) for worker in workers)
    return revised(outcome, kind="iterable", recovery=None, processes=processes, **changes)


def _skipping():
    for title, (epoch, facts) in MISSING.items():
        yield title, ordinary(epoch, facts), map_reference()
    equal = tuple(enumerate(map(Sample, ("d", "d", "d2", "d3"))))
    outcome = revised(ordinary(_came(("d",), ("d2", "d3")), _fired(EIO, 0)), recovery=None)
    yield "one of two that are equal", outcome, replace(map_reference(), samples=equal)
    permanently = revised(ordinary(WITHOUT_1, _fired(EIO, 1)), recovery=WITHOUT_1)
    yield "after the fault as well", permanently, map_reference()
    reference = stream_reference("a b c d")
    counted = replace(reference, fault_free=_of_two_workers(files=2))
    for title, (epoch, unlisted) in LOSSES.items():
        facts = _fired(EIO, 0, unlisted=unlisted)
        yield f"of a stream, {title}", revised(ordinary(epoch, facts), recovery=None), counted
    comparison = replace(BY_FORM, limit=3)
    endless = replace(stream_reference("a b c"), comparison=comparison)
    for title, (samples_by_worker, hit) in ENDLESS.items():
        each = {
            (worker, number): name
            for worker, samples in samples_by_worker.items()
            for number, name in enumerate(samples.split())
        }
        deliveries = tuple(batch_of(None, (name,), worker) for (worker, _), name in each.items())
        outcome = _of_stream(deliveries, _hit(hit), comparison=comparison)
        yield f"of an endless stream, {title}", outcome, endless
    error = raised("OSError", "[Errno 5] Input/output error: '/data/a.rec'")
    comparison = Comparison(limit=2)
    outcome = ordinary(stream("a", error=error), _fired(EIO, 0))
    outcome = revised(outcome, recovery=None, comparison=comparison)
    endless = replace(stream_reference("a b"), comparison=comparison)
    yield "of an endless stream, it raised", outcome, endless
    shared = replace(reference, fault_free=_of_two_workers(files=1))
    for title, (samples_by_worker, hit) in SHARDS.items():
        outcome = _of_stream(_deliveries(samples_by_worker), _hit(hit), samples_by_worker)
        yield f"of workers, {title}", outcome, shared
    expected = _own_batches({0: "ab cd", 1: "ef gh"})
    filled = replace(
        stream_reference("ab cd ef gh"),
        fault_free=by_workers(expected[:2], expected[2:], files=1),
        parts=tuple(each.rows for each in expected),
    )
    for title, batches in OWN_BATCHES.items():
        outcome = _of_stream(_own_batches(batches), _fired(EIO, None), batches)
        yield f"rows of own batches, {title}", outcome, filled


NOTHING_LEFT = TruncatedFile("*.rec", keep=0)


REPLACED = {
    "neighbour": (("d0", "d0"), _fired(EIO, 1)),
    "not hit": (("d0", "d0"), _fired(EIO, 0)),
    "dummy": (("d0", "dx"), _fired(EIO, 1)),
    "strange": (("d0", "dx"), _fired(EIO, 2)),
    "epoch 2": (("d0", "dx"), _fired(EIO, 1, epoch=2)),
    "short data": (("d0", "dx"), _fired(TRUNCATED, 1)),
    "of a short file": (("d0", "d3"), _fired(TRUNCATED, 1)),
    "empty file": (("d0", "dx"), _fired(NOTHING_LEFT, 1)),
    "missing": (("d0",), _fired(EIO, 1)),
}
"""The first batch. It may be another sample, or anything if nothing was read."""
REPLACED_IN_STREAM = [("a b", "c c"), ("a b", "c x"), ("a a", "b b"), ("a x", "y d"), ("a b", "c")]


def _substituting():
    for title, (batch, facts) in REPLACED.items():
        yield title, ordinary(_came(batch, ("d2", "d3")), facts), map_reference()
    for batches in REPLACED_IN_STREAM:
        outcome = revised(ordinary(stream(*batches), _fired(EIO, None)), recovery=None)
        yield f"of a stream, {' '.join(batches)}", outcome, stream_reference("a b c d")


def _picture(name, label="1", shape="(1, 64)"):
    digest = ZEROS if name == ZEROS else name.ljust(24, "0")
    image = Part("[0]", f"torch.Tensor torch.uint8 {shape}", digest)
    parts = (image, Part("[1]", "int", label))
    return SampleComparer().record(Sample("", parts=parts))


def _pictures(*pictures, shape="(1, 64)"):
    """An outcome with these images and labels as samples 0 to 3, and a reference of p0 to p3."""
    samples = [_picture(name, label, shape) for name, label in pictures]
    batches = (Batch(DRAWN[0], tuple(samples[:2])), Batch(DRAWN[1], tuple(samples[2:])))
    expected = tuple((index, _picture(f"p{index}", str(index), shape)) for index in range(4))
    reference = replace(map_reference(), samples=expected)
    epoch = Pass(EPOCH_1, DRAWN, batches, complete=True)
    return revised(ordinary(epoch, _fired(CorruptedFile(), 1)), recovery=None), reference


PICTURES = P0, P1, P2, P3 = (("p0", "0"), ("p1", "1"), ("p2", "2"), ("p3", "3"))


DAMAGED = {
    "another content": (P0, ("x", "1"), P2, P3),
    "two of another content": (P0, ("x", "1"), ("y", "2"), P3),
    "another label": (P0, ("p1", "3"), P2, P3),
    "another sample": (P0, P2, P2, P3),
    "another image": (P0, ("p2", "1"), P2, P3),
    "one image for two": (P0, ("x", "1"), P2, ("x", "3")),
}
"""Damaged bytes do not produce another sample's image, or one image for two samples."""


def _damaging():
    for title, pictures in DAMAGED.items():
        yield f"damage, {title}", *_pictures(*pictures)
    for shape in ("(1, 15)", "(1, 16)", "()"):
        # Damage may turn a label into another sample's; sixteen values are not a label.
        pictures = _pictures(P0, ("p2", "1"), P2, ("p2", "3"), shape=shape)
        yield f"damage, the same parts of shape {shape}", *pictures
    outcome, reference = _pictures(P0, ("x", "1"), ("x", "2"), P3)
    twice = tuple(
        (at, _picture("p", str(at)) if at in (1, 2) else sample) for at, sample in reference.samples
    )
    yield "damage, one image for two that differ", outcome, reference
    yield "damage, one image for two that are equal", outcome, replace(reference, samples=twice)


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
    return tuple(
        replace(batch_of(None, (batch,), worker), rows=tuple(batch))
        for worker, wholes in batches_by_worker.items()
        for batch in wholes.split()
    )


def test_texts_of_what_is_allowed(golden):
    texts = {}
    for contract, cases in (
        (SKIPS, _skipping()),
        (SUBSTITUTES, _substituting()),
        (SUBSTITUTES, _damaging()),
    ):
        for title, outcome, reference in cases:
            strictly = judge_trial(outcome, reference)
            line = _line(judge_trial(outcome, reference, contract))
            texts[f"{contract}: {title}"] = f"{line}\nby default: {_line(strictly)}"
    golden("allowed", texts)
