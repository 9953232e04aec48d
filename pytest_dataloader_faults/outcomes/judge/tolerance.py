"""Which samples a fault may have hit, and what may be wrong with them. Pure.

Some facts about which samples a fault hits. A failed read belongs to the sample that was being
made. A truncated, damaged or closed file stays that way: the next samples read from it as well,
without another firing. If several samples are made at once, or the list of firings is incomplete,
the sample is unknown. In those cases any sample may have been hit.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pytest_dataloader_faults.faults import CorruptedFile, TruncatedFile
from pytest_dataloader_faults.faults.base import Effect
from pytest_dataloader_faults.outcomes.contract import Contract
from pytest_dataloader_faults.outcomes.records import TrialFacts
from pytest_dataloader_faults.wire import FaultFacts, Firing

_ANY_NUMBER = 1 << 62


class _AllIndices(Container[Any]):
    """A container of all indices."""

    def __contains__(self, _index: object) -> bool:
        return True


@dataclass(frozen=True)
class Tolerance:
    """What may be missing or different in an epoch.

    Attributes:
        missing: Indices of samples that may be missing.
        lost: How many operations failed. A stream with a file for each sample may lose as many.
        content: Whether samples may have different content, read from damaged files.
        substituted: Indices of samples that may be replaced by another one, or a placeholder.
        unlike: Those of them whose placeholders may differ from each other.
        replaced: How many samples of a stream may be replaced.
        reordered: Whether samples may be delivered under other indices.
        workers: The number of workers.
        hit_workers: The workers of a stream whose samples may be missing.
    """

    missing: Container[Any] = ()
    lost: int = 0
    content: bool = False
    substituted: Container[Any] = ()
    unlike: Container[Any] = ()
    replaced: int = 0
    reordered: bool = False
    workers: int = 0
    hit_workers: Container[int | None] = ()


NOTHING = Tolerance()


def tolerance_for(outcome: TrialFacts, contract: Contract, number: int) -> Tolerance:
    """What *contract* tolerates in epoch *number* of *outcome*, by the faults that fired."""
    content = may_be_damaged(outcome, contract)
    hit, count = _hit_samples(outcome, number)
    may = Tolerance(content=content, reordered=contract.may_reorder and is_reordered(outcome))
    if contract.may_skip:
        workers = len({each.worker for each in outcome.workers})
        hit_workers = _hit_workers(outcome, number)
        may = replace(may, missing=hit, lost=count, workers=workers, hit_workers=hit_workers)
    if contract.may_substitute:
        unlike = _hit_by_errors(outcome, number)
        may = replace(may, substituted=hit, unlike=unlike, replaced=count)
    return may


def _hit_samples(outcome: TrialFacts, number: int) -> tuple[Container[Any], int]:
    """The samples that faults may have hit in epoch *number*, and how many at most."""
    if _lasting_firings(outcome.faults):
        return _AllIndices(), _ANY_NUMBER
    hits = _firings_in(number, outcome.faults)
    unlisted = sum(each.fired - len(each.firings) for each in outcome.faults)
    is_unknown = unlisted or any(firing.sample is None for firing in hits)
    samples = _AllIndices() if is_unknown else {firing.sample for firing in hits}
    return samples, len(hits) + unlisted


def _lasting_firings(facts: Iterable[FaultFacts]) -> list[Firing]:
    """Occurrences whose effect on a file lasts."""
    lasting = (each for each in facts if Effect.LASTING in each.fault.effects)
    return [firing for each in lasting for firing in each.firings]


def _firings_in(number: int, facts: Iterable[FaultFacts]) -> list[Firing]:
    """Occurrences in epoch *number*, in an unknown one, or while the dataset was created."""
    return [
        firing for each in facts for firing in each.firings if firing.epoch in (None, 0, number)
    ]


def _hit_workers(outcome: TrialFacts, number: int) -> Container[int | None]:
    """The workers that faults may have hit: all of them if the main process was hit."""
    hits = (*_lasting_firings(outcome.faults), *_firings_in(number, outcome.faults))
    workers = {each.worker for each in hits}
    return _AllIndices() if None in workers else workers


def _hit_by_errors(outcome: TrialFacts, number: int) -> set[Any]:
    """The samples for which nothing was read; None stands for those of a stream."""
    without_data = (
        facts
        for facts in outcome.faults
        if facts.fault.errno or (isinstance(facts.fault, TruncatedFile) and not facts.fault.keep)
    )
    return {firing.sample for firing in _firings_in(number, without_data)}


def is_reordered(outcome: TrialFacts) -> bool:
    """Whether a folder was listed in another order."""
    return any(each.fired and Effect.ORDER in each.fault.effects for each in outcome.faults)


def may_be_damaged(outcome: TrialFacts, contract: Contract) -> bool:
    """Whether samples may have different content, because bytes of files were damaged."""
    damaged = any(isinstance(each.fault, CorruptedFile) for each in outcome.faults if each.fired)
    return damaged and not contract.detects_corruption
