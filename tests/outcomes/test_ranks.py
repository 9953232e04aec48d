"""What several ranks show together: who waits for whom, and which samples come twice or never."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract, Outcome, Verdict
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes import Compared, Comparison, Pass, Reference, Wrong
from pytest_dataloader_faults.outcomes.judge.causes import likely_cause
from pytest_dataloader_faults.outcomes.judge.report import explain
from pytest_dataloader_faults.outcomes.stages import Absence, Reason, Step
from support.facts import (
    EIO,
    delivery,
    fired,
    map_reference,
    ordinary,
    raised,
    stream,
    stream_reference,
)
from support.rows import rows

SHAPES = Comparison(Compared.SHAPES)
LOST = raised("RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer")


def of_map(*batches: tuple[int, ...], **facts) -> Pass:
    """A pass over a map-style dataset, in which each sample is right."""
    came = tuple(delivery(each, tuple(f"d{index}" for index in each)) for each in batches)
    return replace(Pass(batches, came, complete=True), **facts)


def together(*passes: Pass | tuple[Pass, ...], main: int = 0, **facts) -> Outcome:
    """The outcome of ranks with these passes; *facts*: of all of them."""
    every = [each if isinstance(each, tuple) else (each,) for each in passes]
    kind = "map" if any(one.indices for each in every for one in each[0].delivered) else "iterable"
    ranks = tuple(
        replace(ordinary(each[0]), passes=each, rank=number, kind=kind, epochs=len(each), **facts)
        for number, each in enumerate(every)
    )
    return replace(ranks[main], ranks=ranks)


def changed(outcome: Outcome, number: int, **facts) -> Outcome:
    """*outcome* with other facts of that rank."""
    ranks = list(outcome.ranks)
    ranks[number] = replace(ranks[number], **facts)
    return replace(ranks[outcome.rank or 0], ranks=tuple(ranks))


def waiting(outcome: Outcome, number: int, absence: Absence) -> Outcome:
    """*outcome*, in which that rank stopped with its last batch."""
    (one,) = outcome.ranks[number].passes
    return changed(outcome, number, absence=absence, passes=(replace(one, complete=False),))


def faulty(outcome: Outcome, number: int, **facts) -> Outcome:
    """*outcome*, in which reads failed in that rank."""
    of_fault = ordinary(outcome.ranks[number].passes[0], fired(EIO))
    named = {name: getattr(of_fault, name) for name in ("schedule", "faults")}
    return changed(outcome, number, **named, **facts)


HALVES = together(of_map((0, 2)), of_map((1, 3)))
FINISHED = Absence(1, Reason.FINISHED, Step(1, 2))
REFERENCE = map_reference()


def test_ranks_that_share_the_samples_survive():
    """And the sentence says how many batches each had."""
    judgement = HALVES.judge(REFERENCE)

    assert (judgement.verdict, judgement.passed) == (Verdict.SURVIVED, True)
    assert judgement.sentence == "2 ranks had 1 batch each, and each sample once together"


def test_a_rank_with_fewer_batches_is_waited_for():
    """The sentence names both ranks and their batches."""
    outcome = waiting(together(of_map((0,), (2,)), of_map((1, 3))), 0, FINISHED)
    judgement = outcome.judge(REFERENCE)

    assert (judgement.verdict, judgement.kind) == (Verdict.HUNG, Wrong.UNEVEN)
    assert judgement.sentence == "rank 0 waits in batch 2; rank 1 had 1 batch"


def test_the_epoch_is_named_where_there_are_several():
    """A rank may wait in the second one."""
    epochs = of_map((0, 2)), of_map((0, 2), complete=False)
    absence = replace(FINISHED, step=Step(2, 1))
    outcome = changed(together(epochs, (of_map((1, 3)),) * 2), 0, absence=absence)

    assert outcome.judge(REFERENCE).sentence.startswith("rank 0 waits in batch 1 of epoch 2; ")


@rows(
    "contract, says",
    [
        (Contract(), "and left 1 sample out after EIO"),
        (Contract(may_skip=True), "Contract(may_skip=True) allows a rank to leave samples out"),
    ],
)
def test_samples_that_a_rank_left_out_are_counted(contract, says):
    """With the promise that it may, the sentence says what that means."""
    outcome = waiting(together(stream("a", "b"), stream("c"), main=1), 0, FINISHED)
    outcome = faulty(outcome, 1, recovery=stream("c d"))
    ranks = (stream_reference("a b"), stream_reference("c d"))
    reference = replace(stream_reference("a b c d"), ranks=ranks)
    judgement = outcome.judge(reference, contract)

    assert (judgement.verdict, says in judgement.sentence) == (Verdict.HUNG, True)


@rows(
    "passes, kind, sentence",
    [
        (
            (of_map((0, 1)), of_map((2, 1), (3,))),
            Wrong.ON_SEVERAL_RANKS,
            "1 of 4 samples (1) come more than once, on ranks 0 and 1",
        ),
        (
            (of_map((0, 1)), of_map((0, 1))),
            Wrong.ON_SEVERAL_RANKS,
            "2 of 4 samples (0, 1) come more than once, on ranks 0 and 1, and 2 on none",
        ),
        (
            (of_map((0, 0)), of_map((1, 2), (3,))),
            Wrong.ON_SEVERAL_RANKS,
            "1 of 4 samples (0) come more than once, on rank 0",
        ),
        ((of_map((0,)), of_map((2, 3))), Wrong.ON_NO_RANK, "1 of 4 samples (1) come on no rank"),
        (
            (stream("d0 d1"), stream("d1 d2 d3")),
            Wrong.ON_SEVERAL_RANKS,
            "1 of 4 samples (1) come more than once, on ranks 0 and 1",
        ),
        ((stream("d0"), stream("d2 d3")), Wrong.ON_NO_RANK, "1 of 4 samples (1) come on no rank"),
    ],
)
def test_samples_on_several_ranks_or_on_none(passes, kind, sentence):
    """They are counted, and named by their index, or by their place in the stream."""
    outcome = together(*passes)
    reference = replace(REFERENCE, kind=outcome.kind)
    judgement = outcome.judge(reference)

    assert (judgement.verdict, judgement.kind) == (Verdict.CORRUPTED, kind)
    assert judgement.sentence == sentence


def test_the_padding_of_torchs_sampler_is_no_failure():
    """It gives three samples to two ranks, one of them twice; but no stream may do so."""
    padded = together(of_map((0, 2)), of_map((1, 0)))
    streams = together(stream("d0 d2"), stream("d1 d0"))

    assert padded.judge(map_reference(3)).verdict is Verdict.SURVIVED
    assert streams.judge(stream_reference("d0 d1 d2")).verdict is Verdict.CORRUPTED


def test_what_a_loader_drops_is_no_failure():
    """By drop_last, all ranks together may leave out less than a batch for each."""
    dropped = together(of_map((0, 2)), of_map((1, 3)))

    assert dropped.judge(map_reference(5)).verdict is Verdict.CORRUPTED
    assert replace(dropped, drop_last=True).judge(map_reference(5)).verdict is Verdict.SURVIVED
    assert replace(dropped, drop_last=True).judge(map_reference(8)).verdict is Verdict.CORRUPTED


def test_samples_that_were_not_looked_at_are_not_missing():
    """A sampler of the user's own is asked for its first batches, here and in the reference."""
    other = together(of_map((0, 1)), of_map((2, 3)))
    cut = replace(map_reference(5), limit=5, asked=5)

    assert other.judge(cut).verdict is Verdict.SURVIVED
    assert other.judge(replace(cut, total=5)).verdict is Verdict.CORRUPTED


def test_samples_that_a_sampler_draws_at_random_may_come_again():
    """Or not at all; and what is said does not claim more."""
    drawn = together(of_map((0, 1)), of_map((1, 1)))
    judgement = drawn.judge(replace(REFERENCE, is_whole=False))

    assert drawn.judge(REFERENCE).verdict is Verdict.CORRUPTED
    assert judgement.verdict is Verdict.SURVIVED
    assert judgement.sentence == "2 ranks had 1 batch each, and no wrong sample"


def test_seeded_samples_are_counted_by_their_indices():
    """Bytes depend on the index, and a sample has the same in each rank."""
    seeded = Comparison(seeded=0)
    reference = replace(REFERENCE, comparison=seeded)

    assert together(of_map((0, 2)), of_map((1, 3)), comparison=seeded).judge(reference).passed
    assert not together(of_map((0, 2)), of_map((2, 3)), comparison=seeded).judge(reference).passed


def test_samples_that_were_added_to_the_reference_later_are_not_missing():
    """As those that another epoch drew."""
    later = map_reference(4).merged_with(replace(map_reference(0), samples=((9, "d9"),)))

    assert HALVES.judge(later).verdict is Verdict.SURVIVED


def test_batches_that_cannot_be_split_are_counted_by_their_indices():
    """The reference has batches, and no samples."""
    batches = (((0, 2), "d0+d2"), ((1, 3), "d1+d3"), ((0, 1), "d0+d1"))
    whole = [replace(each, rows=None) for one in HALVES.ranks for each in one.delivered]
    halves = together(*(Pass((each.indices,), (each,), complete=True) for each in whole))
    twice = together(*(Pass((each.indices,), (each,), complete=True) for each in whole[:1] * 2))
    reference = Reference("map", (), batches=batches, asked=2)

    assert halves.judge(reference).verdict is Verdict.SURVIVED
    assert twice.judge(reference).kind is Wrong.ON_SEVERAL_RANKS


@rows("second, verdict", [("c d", Verdict.SURVIVED), ("a b", Verdict.CORRUPTED)])
def test_random_samples_are_compared_batch_by_batch(second, verdict):
    """Only types are known of them, and ranks that have the same bytes in each batch."""
    passes = [
        Pass(
            ((), ()),
            tuple(replace(delivery(None, ("t",)), digest=name) for name in names.split()),
            complete=True,
        )
        for names in ("a b", second)
    ]
    outcome = together(*passes, comparison=SHAPES)
    reference = replace(stream_reference("t t t t"), comparison=SHAPES)

    assert outcome.judge(reference).verdict is verdict


@rows("came, verdict", [(("a b", "c d"), "survived"), (("a b c d", "e f g h"), "corrupted")])
def test_random_samples_of_a_stream_are_counted(came, verdict):
    """A stream of four gives four to all ranks together, whatever they are."""
    passes = (
        Pass(
            ((),),
            (replace(delivery(None, ("t",) * len(names.split())), digest=names),),
            complete=True,
        )
        for names in came
    )
    outcome = together(*passes, comparison=SHAPES)

    assert outcome.judge(replace(stream_reference("t t t t"), comparison=SHAPES)).verdict == verdict


def test_ranks_in_different_epochs_are_corrupted():
    """One step averages gradients of both."""
    apart = (Step(1, 2), Step(2, 1))
    epochs = (stream("a", "b"), stream("a b")), (stream("c d"), stream("c", "d"))
    outcome = together(*epochs, apart=apart)
    judgement = outcome.judge(stream_reference("a b c d"))

    assert (judgement.verdict, judgement.kind) == (Verdict.CORRUPTED, Wrong.EPOCHS_APART)
    assert judgement.sentence == (
        "rank 0 was in batch 2 of epoch 1 when rank 1 was in batch 1 of epoch 2: one step had"
        " batches of two epochs"
    )


@rows(
    "lengths, verdict",
    [((4, 4), Verdict.CORRUPTED), ((2, 2), Verdict.SURVIVED), ((None, 3), Verdict.SURVIVED)],
)
def test_a_length_that_counts_all_ranks(lengths, verdict):
    """That of a stream is the number of its own samples, or may be a guess."""
    passes = (
        replace(stream(each), length=length)
        for each, length in zip(("a b", "c d"), lengths, strict=True)
    )
    judgement = together(*passes).judge(stream_reference("a b c d"))

    assert judgement.verdict is verdict
    assert verdict is Verdict.SURVIVED or judgement.kind is Wrong.LENGTH_OF_ALL


def test_a_length_of_batches_that_counts_all_ranks():
    """A sampler's counts, where it is right for the only rank."""
    outcome = together(of_map((0, 2), batches=2), of_map((1, 3), batches=2))
    reference = replace(REFERENCE, drawn=4, ranks=(replace(REFERENCE, drawn=None),) * 2)

    assert outcome.judge(reference).kind is Wrong.LENGTH_OF_ALL
    assert outcome.judge(replace(reference, drawn=None)).verdict is Verdict.SURVIVED


@pytest.mark.parametrize("reason", [Reason.FAILED, Reason.GONE])
def test_a_rank_that_stops_with_another_is_not_blamed(reason):
    """The error of the other one decides, which is clear and in time."""
    outcome = together(of_map((0,), (2,)), of_map((1,), complete=False), main=1)
    error = replace(outcome.ranks[1].passes[0], exception=raised("OSError", "[Errno 5] a.rec"))
    outcome = faulty(outcome, 1, passes=(error,), recovery=of_map((1, 3)))
    outcome = waiting(outcome, 0, Absence(None, reason, Step(1, 2)))
    judgement = outcome.judge(REFERENCE)

    assert (judgement.verdict, judgement.passed) == (Verdict.FAILED_CLEANLY, True)
    assert judgement.sentence.startswith("rank 1: OSError was raised before the deadline")
    assert judgement.sentence.endswith("; rank 0 stopped then, in time")


def test_an_error_of_gloo_is_a_consequence():
    """A rank may be in a collective of its dataset's own when another one dies."""
    outcome = together(of_map((0,), complete=False, exception=LOST), of_map((1,)), main=1)
    outcome = changed(outcome, 1, exitcode=-9)

    assert outcome.judge(REFERENCE).sentence.startswith("rank 1: the process that iterates")


def test_a_hang_says_what_the_others_had_done():
    """One that waits in a collective of its own hangs, since another has ended its epoch."""
    outcome = together(of_map((0,), complete=False), of_map((1, 3)))
    judgement = changed(outcome, 0, timed_out=True).judge(REFERENCE)

    assert judgement.verdict is Verdict.HUNG
    assert judgement.sentence.endswith("; rank 1 had ended its epoch, with 1 batch")


def test_the_wrong_sample_of_another_rank_counts():
    """The rank that decides is right, and the verdict is on all of them."""
    wrong = Pass(((1, 3),), (delivery((1, 3), ("d1", "d9")),), complete=True)
    judgement = together(of_map((0, 2)), wrong).judge(REFERENCE)

    assert judgement.verdict is Verdict.CORRUPTED
    assert judgement.sentence.startswith("rank 1: sample 3 (batch 0) is wrong")


def test_each_rank_has_a_reference_of_its_own():
    """A dataset that is divided by its author has other samples at the same indices."""
    outcome = together(
        of_map((0, 1)), Pass(((0, 1),), (delivery((0, 1), ("d2", "d3")),), complete=True)
    )
    ranks = (map_reference(2), Reference("map", ((0, "d2"), (1, "d3"))))

    assert outcome.judge(replace(REFERENCE, ranks=ranks)).verdict is Verdict.SURVIVED


@rows(
    "second, verdict, says",
    [
        (("c b", "a d"), Verdict.SURVIVED, "each sample once together"),
        (("c b", "a x"), Verdict.CORRUPTED, "rank 1: in epoch 2, 1 sample is wrong"),
        (("c b", "a"), Verdict.CORRUPTED, "rank 1: in epoch 2, 1 of 2 samples is missing"),
        (("c b", "c d"), Verdict.CORRUPTED, "1 of 4 samples (2) come more than once"),
    ],
)
def test_a_shuffled_stream_gives_a_rank_other_samples_in_each_epoch(second, verdict, says):
    """They have to be among those of all ranks, and as many."""
    parts = "a b", "c d"
    pairs = zip(parts, second, strict=True)
    passes = [(stream(*one.split()), stream(*two.split())) for one, two in pairs]
    ranks = tuple(map(stream_reference, parts))
    judgement = together(*passes).judge(replace(stream_reference("a b c d"), ranks=ranks))

    assert (judgement.verdict, says in judgement.sentence) == (verdict, True), judgement


@rows(
    "drawn, fails",
    [
        ((3, 1, 2, 0), True),
        ((0, 2, 8, 10), False),
        ((1, 3, 9, 0), False),
        (("b", 3, "a", 1, "c", 2), True),
        (("a", "b"), False),
    ],
)
def test_the_same_order_in_both_epochs_is_one_that_is_not_shuffled(drawn, fails):
    """It may begin again at its end, where samples fill up the last batch."""
    epoch = of_map(drawn)
    found = CHECKS["ranks-next-epoch"].extra_rule(together((epoch, epoch)), REFERENCE)

    assert (found is not None) is fails
    assert not fails or found.kind is Wrong.SAME_ORDER


def test_evidence_names_the_ranks():
    """A line for each, and the cause in a few words."""
    outcome = waiting(together(of_map((0,), (2,)), of_map((1, 3))), 0, FINISHED)
    judgement = outcome.judge(REFERENCE)
    lines = explain(outcome, judgement, "again").splitlines()

    assert (
        "  rank 0: delivered 2 batches, then waited for rank 1, which had no more batches" in lines
    )
    assert "  rank 1: delivered 1 of 1 batch asked for, epoch complete (0.25 s)" in lines
    assert likely_cause(outcome, judgement, outcome).phrase == (
        "gives ranks different numbers of batches"
    )


def test_an_outcome_of_ranks_is_plain_data():
    """And is the same when it comes back."""
    outcome = waiting(together(of_map((0,), (2,)), of_map((1, 3))), 0, FINISHED)

    assert Outcome.from_dict(outcome.to_dict()) == outcome
    assert "rank=0 of 2" in repr(outcome)


@rows(
    "armed, says",
    [((1,), "ranks=2,"), ((0,), "ranks=2, on_rank=0"), ((0, 1), "ranks=2, on_rank='all'")],
)
def test_the_line_that_repeats_it_names_the_rank(armed, says):
    """Unless it is the last one, as by default."""
    outcome = HALVES
    for number in armed:
        outcome = faulty(outcome, number)

    assert says in outcome.reproduce()
    assert ("on_rank" in outcome.reproduce()) == ("on_rank" in says)
