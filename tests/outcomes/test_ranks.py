"""What several ranks show together: waiting ranks, and samples on several ranks or on none."""

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract, Verdict
from pytest_dataloader_faults.outcomes import (
    Absence,
    Comparison,
    EpochsApart,
    Pass,
    Position,
    Reason,
)
from pytest_dataloader_faults.outcomes.judge import explain
from pytest_dataloader_faults.outcomes.judge import ranks as rules
from support.facts import (
    EPOCH_1,
    IN_BATCHES,
    batch_of,
    batch_reference,
    changed,
    drawing,
    faulty,
    map_reference,
    of_map,
    raised,
    revised,
    stream,
    stream_reference,
    together,
    waiting,
    whole_batch,
)
from support.judging import judge_trial
from support.rows import rows

BY_FORM = Comparison(by_form=True)
LOST = raised("RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer")


HALVES = together(of_map((0, 2)), of_map((1, 3)))
FINISHED = Absence(1, Reason.FINISHED, Position(1, 2))
REFERENCE = map_reference()
STREAM = stream_reference("d0 d1 d2 d3")


def test_the_epoch_is_named_if_there_are_several():
    """A rank may wait in the second one."""
    epochs = of_map((0, 2)), of_map((0, 2), complete=False)
    absence = replace(FINISHED, position=Position(2, 1))
    outcome = changed(together(epochs, (of_map((1, 3)),) * 2), 0, notes=(absence,))

    sentence = judge_trial(outcome, REFERENCE).sentence
    assert sentence.startswith("rank 0 was waiting in batch 1 of epoch 2, but ")


def _random(*names_by_rank):
    """Ranks of which each has these batches, whose bytes are known, but only types are compared."""
    passes = (
        Pass(
            EPOCH_1,
            ((),) * len(names),
            tuple(replace(batch_of(None, ("t",) * len(name)), digest=name) for name in names),
            complete=True,
        )
        for names in names_by_rank
    )
    return together(*passes, comparison=BY_FORM)


def _own_batches(*batches_by_rank):
    passes = (
        Pass(
            EPOCH_1,
            ((),) * len(batches),
            tuple(replace(batch_of(None, (each,)), rows=tuple(each)) for each in batches),
            complete=True,
        )
        for batches in batches_by_rank
    )
    return together(*passes)


def _unsplit(*batches):
    """Ranks of which each has one batch that cannot be split, as its keys and its digest."""
    passes = (
        Pass(EPOCH_1, (keys,), (whole_batch(keys, digest),), complete=True)
        for keys, digest in batches
    )
    return together(*passes, comparison=IN_BATCHES)


CUT, DROPPED = replace(map_reference(5), limit=5), together(of_map((0, 2)), of_map((1, 3)))
SEEDED, UNSPLIT = Comparison(seeded=0), batch_reference(**{"d0+d2": (0, 2), "d1+d3": (1, 3)})
TYPED = replace(stream_reference("t t t t"), comparison=BY_FORM)
OWN_BATCHES = replace(
    stream_reference("ab cd ef gh"), parts=tuple(map(tuple, ("ab", "cd", "ef", "gh")))
)
FILLED = map_reference(6)
SEVERAL, NONE = rules.ON_SEVERAL_RANKS, rules.ON_NO_RANK


@rows(
    "title, outcome, reference, cause",
    [
        ("once", together(of_map((0, 1)), of_map((2, 1), (3,))), REFERENCE, SEVERAL),
        ("twice", together(of_map((0, 1)), of_map((0, 1))), REFERENCE, SEVERAL),
        ("on one rank", together(of_map((0, 0)), of_map((1, 2), (3,))), REFERENCE, SEVERAL),
        ("lost", together(of_map((0,)), of_map((2, 3))), REFERENCE, NONE),
        ("stream", together(stream("d0 d1"), stream("d1 d2 d3")), STREAM, SEVERAL),
        ("lost of a stream", together(stream("d0"), stream("d2 d3")), STREAM, NONE),
        # torch's sampler gives two ranks three samples, one of them twice. A stream must not.
        ("padded", together(of_map((0, 2)), of_map((1, 0))), map_reference(3), None),
        (
            "padded stream",
            together(stream("d0 d2"), stream("d1 d0")),
            stream_reference("d0 d1 d2"),
            SEVERAL,
        ),
        # Only batches of the last round may be filled, and each rank must have as many.
        ("filled", together(of_map((0, 1), (4, 5)), of_map((2, 3), (0, 1))), FILLED, None),
        ("too early", together(of_map((0, 1), (4, 5)), of_map((0, 1), (2, 3))), FILLED, SEVERAL),
        ("uneven", together(of_map((0, 1), (4, 5), (0, 1)), of_map((2, 3))), FILLED, SEVERAL),
        # With drop_last, each rank may drop less than a batch.
        ("not dropped", DROPPED, map_reference(5), NONE),
        ("dropped", revised(DROPPED, drop_last=True), map_reference(5), None),
        ("too many", revised(DROPPED, drop_last=True), map_reference(8), NONE),
        # A custom sampler draws only its first batches, here and in the reference.
        ("unchecked", together(of_map((0, 1)), of_map((2, 3))), CUT, None),
        ("all", together(of_map((0, 1)), of_map((2, 3))), replace(CUT, total=5), NONE),
        ("drawn", together(of_map((0, 1)), of_map((1, 1))), REFERENCE, SEVERAL),
        (
            "drawn at random",
            together(of_map((0, 1)), of_map((1, 1))),
            replace(REFERENCE, is_whole=False),
            None,
        ),
        # The bytes of seeded samples depend on the index, which is the same in each rank.
        (
            "seeded",
            together(of_map((0, 2)), of_map((1, 3)), comparison=SEEDED),
            replace(REFERENCE, comparison=SEEDED),
            None,
        ),
        (
            "seeded, repeated",
            together(of_map((0, 2)), of_map((2, 3)), comparison=SEEDED),
            replace(REFERENCE, comparison=SEEDED),
            SEVERAL,
        ),
        ("whole", _unsplit(((0, 2), "d0+d2"), ((1, 3), "d1+d3")), UNSPLIT, None),
        ("whole, repeated", _unsplit(*[((0, 2), "d0+d2")] * 2), UNSPLIT, SEVERAL),
        # Each rank fills a stream's own batches from its own shards.
        ("filled anew", _own_batches(["ac", "eg"], ["bd", "fh"]), OWN_BATCHES, None),
        (
            "filled with rows of others",
            _own_batches(["ac", "eg"], ["bd", "ah"]),
            OWN_BATCHES,
            SEVERAL,
        ),
        # Of random samples, only the bytes of whole batches and their number can be compared.
        ("random", _random("ab", "cd"), TYPED, None),
        ("random, the same", _random("ab", "ab"), TYPED, SEVERAL),
        ("random, as many", _random(["ab"], ["cd"]), TYPED, None),
        ("random, too many", _random(["abcd"], ["efgh"]), TYPED, SEVERAL),
    ],
)
def test_samples_on_several_ranks_or_on_none(title, outcome, reference, cause):
    finding = judge_trial(outcome, replace(reference, kind=outcome.kind))

    verdict = Verdict.CORRUPTED if cause else Verdict.SURVIVED
    assert (finding.verdict, finding.cause) == (verdict, cause), (title, finding)


def test_a_length_of_batches_that_counts_all_ranks():
    """The length of a sampler counts if it is correct for a single process."""
    outcome = together(of_map((0, 2), batches=2), of_map((1, 3), batches=2))
    reference = replace(REFERENCE, fault_free=drawing(4), members=(REFERENCE,) * 2)

    assert judge_trial(outcome, reference).cause is rules.LENGTH_OF_ALL
    assert judge_trial(outcome, replace(reference, fault_free=None)).verdict is Verdict.SURVIVED


@pytest.mark.parametrize("reason", [Reason.FAILED, Reason.GONE])
def test_a_rank_that_stops_with_another_is_not_the_cause(reason):
    """The other rank's error decides, which is clear and in time."""
    outcome = together(of_map((0,), (2,)), of_map((1,), complete=False), main=1)
    error = replace(outcome.ranks[1].epochs[0], exception=raised("OSError", "[Errno 5] a.rec"))
    outcome = faulty(outcome, 1, epochs=(error,), recovery=of_map((1, 3)))
    outcome = waiting(outcome, 0, Absence(None, reason, Position(1, 2)))
    finding = judge_trial(outcome, REFERENCE)

    assert (finding.verdict, finding.passed) == (Verdict.FAILED_CLEANLY, True)
    assert finding.sentence.startswith("rank 1: OSError")
    assert "; rank 0 " in finding.sentence


def test_an_error_of_gloo_is_a_consequence():
    """A rank may be in a collective of its dataset when another one dies."""
    outcome = together(of_map((0,), complete=False, exception=LOST), of_map((1,)), main=1)
    outcome = changed(outcome, 1, exitcode=-9)

    finding = judge_trial(outcome, REFERENCE)
    assert finding.verdict is Verdict.CRASHED
    assert finding.sentence.startswith("rank 1: ")


@rows(
    "second, verdict, says",
    [
        (("c b", "a d"), Verdict.SURVIVED, "2 ranks"),
        (("c b", "a x"), Verdict.CORRUPTED, "rank 1: in epoch 2, 1 sample"),
        (("c b", "a"), Verdict.CORRUPTED, "rank 1: in epoch 2, 1 of 2 samples"),
        (("c b", "c d"), Verdict.CORRUPTED, "1 of 4 samples (2)"),
    ],
)
def test_a_shuffled_stream_gives_a_rank_different_samples_in_each_epoch(second, verdict, says):
    """They must be among the samples of all ranks, and as many."""
    parts = "a b", "c d"
    pairs = zip(parts, second, strict=True)
    passes = [
        (stream(*first_epoch.split()), stream(*second_epoch.split()))
        for first_epoch, second_epoch in pairs
    ]
    ranks = tuple(map(stream_reference, parts))
    finding = judge_trial(together(*passes), replace(stream_reference("a b c d"), members=ranks))

    assert (finding.verdict, says in finding.sentence) == (verdict, True), finding


def _text_cases():
    waits = waiting(together(of_map((0,), (2,)), of_map((1, 3))), 0, FINISHED)
    yield "shared", HALVES, REFERENCE
    yield "random", together(of_map((0, 1)), of_map((1, 1))), replace(REFERENCE, is_whole=False)
    yield "waits", waits, REFERENCE
    yield "filled", together(of_map((0, 1), (4, 5)), of_map((2, 3), (0, 1))), FILLED
    yield "on several", together(of_map((0, 1)), of_map((0, 1))), REFERENCE
    yield "on none", together(of_map((0,)), of_map((2, 3))), REFERENCE
    epochs = (stream("a", "b"), stream("a b")), (stream("c d"), stream("c", "d"))
    apart = together(*epochs, notes=(EpochsApart((Position(1, 2), Position(2, 1))),))
    yield "apart", apart, stream_reference("a b c d")
    lengths = (replace(stream(names), length=4) for names in ("a b", "c d"))
    yield "length", together(*lengths), stream_reference("a b c d")
    shapes = {"comparison": BY_FORM}
    typed = replace(stream_reference("t t"), **shapes)
    yield "count", together(stream("t"), stream("t", "t"), **shapes), typed
    yield "same bytes", together(*[stream("t", "u")] * 2, **shapes), typed
    hangs = changed(together(of_map((0,), complete=False), of_map((1, 3))), 0, timed_out=True)
    yield "hangs", hangs, REFERENCE
    skipped = waiting(together(stream("a", "b"), stream("c"), main=1), 0, FINISHED)
    parts = (stream_reference("a b"), stream_reference("c d"))
    reference = replace(stream_reference("a b c d"), members=parts)
    yield "skipped", faulty(skipped, 1, recovery=stream("c d")), reference


def test_texts_about_ranks(golden):
    texts = {}
    for title, outcome, reference in _text_cases():
        finding = judge_trial(outcome, reference, Contract(may_skip=title == "skipped"))
        texts[title] = explain(outcome, finding, "again")
    golden("ranks", texts)


@rows(
    "armed, says",
    [((1,), "ranks=2,"), ((0,), "ranks=2, on_rank=0"), ((0, 1), "ranks=2, on_rank='all'")],
)
def test_the_line_that_repeats_it_names_the_rank(armed, says):
    """It is omitted for the last rank, the default."""
    outcome = HALVES
    for number in armed:
        outcome = faulty(outcome, number)

    assert says in outcome.reproduce()
    assert ("on_rank" in outcome.reproduce()) == ("on_rank" in says)
