"""What a contract lets a fault do to the samples of an epoch. Pure.

Some facts about whom a fault hits. A read that fails belongs to the sample that was being made. A
file that is shorter, damaged or closed stays so: the next samples read from it, too, without
another firing. And where several samples are made at once, or the list of firings was cut off, it
is not known whose it was. In those cases any sample may have been hit.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from pytest_dataloader_faults.faults import ClosedDescriptor, CorruptedFile, TruncatedFile
from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._records import FaultFacts, Firing
from pytest_dataloader_faults.outcomes._verdicts import Contract

_LASTING = (ClosedDescriptor, CorruptedFile, TruncatedFile)
_ANY_NUMBER = 1 << 62


class AllIndices(Container[Any]):
    """Every index."""

    def __contains__(self, _index: object) -> bool:
        return True


@dataclass(frozen=True)
class Tolerance:
    """What may be missing or different in an epoch.

    Attributes:
        missing: Indices of samples that may be missing.
        lost: How many samples of a stream may be missing, which have no index.
        content: Whether samples may have other content.

    """

    missing: Container[Any] = ()
    lost: int = 0
    content: bool = False


NOTHING = Tolerance()


def tolerance(outcome: TrialFacts, contract: Contract, number: int) -> Tolerance:
    """What *contract* allows in epoch *number* of *outcome*."""
    content = may_be_damaged(outcome, contract)
    if not contract.may_skip:
        return Tolerance(content=content)
    fired = [each for each in outcome.faults if each.fired]
    if any(isinstance(each.fault, _LASTING) for each in fired):
        return Tolerance(AllIndices(), _ANY_NUMBER, content)
    hits = [one for each in fired for one in _hits(each, number)]
    unlisted = sum(each.fired - len(each.firings) for each in fired)
    return Tolerance(_hit_indices(hits, unlisted), len(hits) + unlisted, content)


def _hit_indices(hits: list[Firing], unlisted: int) -> Container[Any]:
    """The samples that were hit; all samples where that is not known of each hit."""
    if unlisted or any(each.sample is None for each in hits):
        return AllIndices()
    return {each.sample for each in hits}


def may_be_damaged(outcome: TrialFacts, contract: Contract) -> bool:
    """Whether samples may have other content, since bytes of files were damaged."""
    damaged = any(isinstance(each.fault, CorruptedFile) for each in outcome.faults if each.fired)
    return damaged and not contract.detects_corruption


def _hits(facts: FaultFacts, number: int) -> list[Firing]:
    return [one for one in facts.firings if one.epoch in (None, number)]
