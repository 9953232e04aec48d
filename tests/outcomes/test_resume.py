"""What the saved states of a loader show, and the epochs of processes that resume from one."""

from dataclasses import replace

from pytest_dataloader_faults import Contract, Outcome
from pytest_dataloader_faults.battery.checks.resume import resumes
from pytest_dataloader_faults.outcomes import (
    ChangedState,
    Comparison,
    LoadedState,
    Pass,
    SavedState,
)
from support.facts import (
    EPOCH_1,
    WHOLE,
    batch_of,
    map_reference,
    part,
    raised,
    resumed,
    revised,
    stream_reference,
)
from support.judging import judge_trial

BY_FORM = Comparison(by_form=True)


def judged(outcome: Outcome):
    reference = stream_reference("d0 d1 d2 d3 d4 d5 d6 d7")
    reference = replace(reference, comparison=outcome.comparison)
    return _judge(outcome, reference)


def _judge(outcome, reference):
    return resumes.refine(judge_trial(outcome, reference, Contract()), outcome, reference)


RESTS = [
    (part(*range(8)), "3 samples (0, 1, 2)"),
    (part(2, 3, 4, 5, 6, 7), "1 sample (2)"),
    (part(5, 6, 7), "2 samples (3, 4)"),
    (part(), "5 samples (3, 4, 5, 6, 7)"),
    (part(0, 4, 5, 6, 7), "1 sample (0) and skipped 1 sample (3)"),
]


def _text_cases():
    killed = {"epochs": (part(0, 1, 2, 3, complete=False),), "uninterrupted": WHOLE}
    yield "the rest", resumed(part(3, 4, 5, 6, 7))
    yield "the rest of several", resumed(part(3, 4, 5, 6, 7), part(*range(8)), batches=(3, 9))
    yield from ((f"rest {text}", resumed(epoch)) for epoch, text in RESTS)
    yield from ((f"next epoch {text}", resumed(epoch, batches=(9,))) for epoch, text in NEXT_EPOCHS)
    for name, epoch in (("the same", range(8)), ("another", reversed(range(8)))):
        rests = part(4, 3, 5, 6, 7), part(*epoch)
        yield f"another order, then {name}", resumed(*rests, batches=(3, 9))
    yield "whole epoch again", resumed(part(*range(8)), batches=(8,))
    for name, rest in (("as many", part(*[0] * 5)), ("more", part(*[0] * 6)), ("fewer", part(0))):
        yield f"random samples, {name}", resumed(rest, comparison=BY_FORM)
    yield "error", resumed(Pass(EPOCH_1, exception=raised("KeyError", "'place'")))
    yield "killed", resumed(part(3, 4, 5, 6, 7), **killed)
    yield "killed, skipped", resumed(part(4, 5, 6, 7), **killed)
    for facts in NOTHING_SHOWN:
        yield f"nothing shown {[*facts]}", resumed(part(3, 4, 5, 6, 7), **facts)
    yield "not saved", _not_saved()
    yield "changed", _changed()
    for sizes in SIZES:
        states = [SavedState(number, size) for number, size in enumerate(sizes, 1)]
        yield f"sizes {sizes}", resumed(part(3, 4, 5, 6, 7), notes=(*states, LoadedState(2)))


def test_texts_about_states(golden):
    texts = {}
    for title, outcome in _text_cases():
        finding = judged(outcome)
        cause = f" ({finding.cause.phrase})" if finding.cause else ""
        texts[title] = f"{finding.verdict}{cause}: {finding.sentence}"
    golden("states", texts)


NEXT_EPOCHS = [
    (part(), "no samples instead of 8 in the next epoch"),
    (part(0), "1 sample instead of 8 in the next epoch"),
    (part(0, 0, 2, 3, 4, 5, 6, 7), "1 of 8"),
]


def test_samples_of_an_epoch_that_draws_others_are_counted():
    """The sampler draws with replacement, without a seed."""
    drawn = ((0,), (0,), (1,))
    epoch = Pass(EPOCH_1, drawn, tuple(batch_of(each, (f"d{each[0]}",)) for each in drawn))
    killed = {"kind": "map", "epochs": (epoch,), "uninterrupted": WHOLE}
    enough, fewer = (resumed(part(*[0] * count), **killed) for count in (5, 4))

    assert _judge(enough, map_reference(8)).passed
    assert not _judge(fewer, map_reference(8)).passed


def _not_saved():
    states = SavedState(1, 10), SavedState(2, error="TypeError: no")
    return resumed(notes=states, epochs=(WHOLE,))


def _changed():
    outcome = resumed(part(3, 4, 5, 6, 7))
    return revised(outcome, notes=(*outcome.notes[:2], ChangedState(), *outcome.notes[2:]))


SIZES = [
    [10, 20, 30, 40, 50, 60, 70, 80],
    [10, 20, 30, 40, 50, 60, 70, 70, 80, 90],
    [10, 10, 30, 30, 50, 50, 70, 70, 90, 90],
    [10, 10, 30, 30, 50, 50, 50, 50, 70, 70],
    [100, 100, 100, 100, 100, 101, 101, 102],  # A counter that gets another byte.
    [10, 20, 30, 40, 80, 80, 80, 80],  # A buffer that is full.
    [10, 20, 30, 40, 50, 40, 60, 80],
    [10, 20, 30, 40],
]
"""Of states that grow with each batch, and of others."""


CUT = part(0, 1, complete=False)
NOTHING_SHOWN = [
    {"resumed": ()},
    {"uninterrupted": WHOLE},
    {"epochs": (CUT,), "uninterrupted": CUT},
]
