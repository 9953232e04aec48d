"""Whether each epoch draws as many samples as an epoch has. Pure.

Some facts about samplers that keep their place. A loader calls ``iter(sampler)`` for each epoch. A
sampler that returns itself, or a generator that is the sampler, goes on where it was. That does not
show as long as each epoch comes to its end. But after a ``break`` or an error the next epoch has
only the rest: the loop gets each sample that was drawn, and nothing tells it that others were not.

Some facts about samplers whose number of samples varies. Such a sampler mostly has no length, or
one that no epoch reaches. So its length counts only where the run without a fault drew just as many
batches. And a sampler that packs samples into batches anew may need fewer batches for as many
samples. So both have to be too few.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_dataloader_faults.outcomes.contract import Finding, Verdict, Wrong
from pytest_dataloader_faults.outcomes.records import Pass, TrialFacts
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.text import counted


def too_few(outcome: TrialFacts, reference: Reference) -> Finding | None:
    """The first epoch that came to its end, and whose sampler drew too few samples for one."""
    if outcome.kind != "map":
        return None
    for number, one in enumerate(outcome.passes, start=1):
        if told := _told_of(one, reference):
            left = _left(outcome.passes[: number - 1])
            sentence = f"in epoch {number}{_after(left)}, the sampler drew {told}"
            kind = Wrong.RESUMED if one.drawn and left else Wrong.USED_UP
            return Finding(Verdict.CORRUPTED, sentence, kind)
    return None


def _told_of(one: Pass, reference: Reference) -> str:
    """What was drawn in *one*, if that is too little; else empty."""
    if not one.complete:
        return ""
    if not one.drawn:
        return "no index, so no sample came" if reference.samples or reference.batches else ""
    came, whole = sum(map(len, one.drawn)), reference.drawn or 0
    if came >= whole or len(one.drawn) >= (one.batches or 0):
        return ""
    lengths = f"{len(one.drawn)} of the {counted(one.batches or 0, 'batch')} that it says it has"
    return f"{came} of the {counted(whole, 'sample')} of an epoch, and {lengths}"


def _left(before: Sequence[Pass]) -> Pass | None:
    """The last of the epochs *before*, if it did not come to its end."""
    return before[-1] if before and not before[-1].complete else None


def _after(left: Pass | None) -> str:
    if left is None:
        return ""
    return f", after one that {'an error ended' if left.exception else 'was left early'}"
