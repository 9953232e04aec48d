"""Whether each epoch draws as many samples as an epoch has. Pure.

Some facts about samplers that keep their position. A loader calls ``iter(sampler)`` for each epoch.
A sampler that returns itself, or a generator that is the sampler, continues where it was. That has
no effect as long as each epoch is completed. But after a ``break`` or an error, the next epoch has
only the rest: the loop receives every sample that was drawn, and nothing shows which were not.

Some facts about samplers whose number of samples varies. Such a sampler usually has no length, or
one that no epoch reaches. So its length counts only if the fault-free run drew exactly as many
batches. A sampler that packs samples into batches differently may need fewer batches for the same
number of samples. So both numbers must be too small.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_dataloader_faults.outcomes.contract import Cause, Finding, Verdict
from pytest_dataloader_faults.outcomes.records import Pass, TrialFacts
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.text import pluralize

USED_UP = Cause(
    "returns fewer samples in the second epoch",
    fix="create iterators and generators in __iter__",
)
CONTINUES = Cause(
    "resumes where an interrupted epoch stopped",
    fix="start over in every call of __iter__",
)
SAMPLER_CONTINUES = CONTINUES._replace(
    advice="The sampler kept its position from the previous epoch, which was not finished. Start"
    " over in every call of its __iter__: write it as a generator function, and keep no iterator or"
    " position on self",
    overrides=True,
)


def find_shortfall(outcome: TrialFacts, reference: Reference) -> Finding | None:
    """The first complete epoch whose sampler drew too few samples."""
    if outcome.kind != "map":
        return None
    for number, epoch in enumerate(outcome.epochs, start=1):
        if shortfall := _describe_shortfall(epoch, reference):
            previous = _unfinished_epoch(outcome.epochs[: number - 1])
            sentence = (
                f"in epoch {number}{_describe_previous(previous)}, the sampler drew {shortfall}"
            )
            cause = SAMPLER_CONTINUES if epoch.drawn and previous else USED_UP
            return Finding(Verdict.CORRUPTED, sentence, cause)
    return None


def count_drawn(fault_free: TrialFacts | None) -> int | None:
    """How many samples the sampler drew in *fault_free*, if in as many batches as it promised."""
    if fault_free is None:
        return None
    (epoch,) = fault_free.epochs
    has_length = fault_free.kind == "map" and len(epoch.drawn) == epoch.batches
    return sum(map(len, epoch.drawn)) if has_length else None


def _describe_shortfall(epoch: Pass, reference: Reference) -> str:
    """What was drawn in *epoch*, if that is too little; otherwise empty."""
    if not epoch.complete:
        return ""
    if not epoch.drawn:
        return "no indices, so no samples were delivered" if reference.samples else ""
    drawn, expected = sum(map(len, epoch.drawn)), count_drawn(reference.fault_free) or 0
    if drawn >= expected or len(epoch.drawn) >= (epoch.batches or 0):
        return ""
    promised = pluralize(epoch.batches or 0, "batch")
    batches = f"{len(epoch.drawn)} of the {promised} that its length promises"
    return f"{drawn} of the {pluralize(expected, 'sample')} of an epoch, in {batches}"


def _unfinished_epoch(epochs: Sequence[Pass]) -> Pass | None:
    """The last of the *epochs*, if it was not completed."""
    return epochs[-1] if epochs and not epochs[-1].complete else None


def _describe_previous(epoch: Pass | None) -> str:
    if epoch is None:
        return ""
    return f", after one that {'ended with an error' if epoch.exception else 'was left early'}"
