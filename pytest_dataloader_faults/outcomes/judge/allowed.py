"""What may be wrong with samples: what the contract allows for those that a fault hit. Pure.

A failed read belongs to the sample that was being made. A truncated, damaged or closed file stays
that way, so the next samples are read from it as well, without another firing. If several samples
are made at once, or not all firings are listed, the sample is unknown. Then any may have been hit.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from pytest_dataloader_faults.faults import CorruptedFile, Fault, TruncatedFile
from pytest_dataloader_faults.faults.base import Effect
from pytest_dataloader_faults.outcomes.contract import Contract
from pytest_dataloader_faults.outcomes.records import Outcome
from pytest_dataloader_faults.wire import Firing

_UNLIMITED = 1 << 62


class _Everything(Container[Any]):
    """A container of all keys, or of all workers."""

    def __contains__(self, _item: object) -> bool:
        return True


@dataclass(frozen=True)
class Allowed:
    """What may be wrong with the samples of one pass.

    Attributes:
        missing: The keys of samples that may be left out.
        losses: How many samples of a stream may be left out, if each has its own file.
        workers: The workers of a stream that may have left out samples.
        replaced: The keys of samples that may be replaced by another sample, or by a placeholder.
        unread: The keys of samples for which nothing was read: each may have its own placeholder.
        replacements: How many samples of a stream may be replaced.
        damage: Whether samples may consist of damaged bytes.
        other_order: Whether samples may be delivered under other keys.
    """

    missing: Container[Any] = ()
    losses: int = 0
    workers: Container[int | None] = ()
    replaced: Container[Any] = ()
    unread: Container[Any] = ()
    replacements: int = 0
    damage: bool = False
    other_order: bool = False

    def permits(self, key: Any, *, is_known: bool, is_certain: bool) -> bool:
        """Whether the sample with this *key* may have other content.

        *is_known*: whether it may be another sample's content, or a placeholder. *is_certain*:
        whether it can be nothing else.
        """
        if key in self.replaced and (is_known or key in self.unread):
            return True
        return self.damage and not is_certain


NOTHING = Allowed()


def allowed_in(epoch: int, outcome: Outcome, contract: Contract) -> Allowed:
    """What *contract* allows in this *epoch*, from 1, of *outcome*."""
    fired = [each for each in outcome.faults if each.fired]
    lasting = [each for each in fired if Effect.LASTING in each.fault.effects]
    firings = [firing for each in fired for firing in each.firings if _may_be_in(firing, epoch)]
    unlisted = sum(each.fired - len(each.firings) for each in fired)
    hit: Container[Any] = {firing.sample for firing in firings}
    if lasting or unlisted or None in hit:
        hit = _Everything()
    count = _UNLIMITED if lasting else len(firings) + unlisted
    lasting_firings = (firing for each in lasting for firing in each.firings)
    workers: Container[Any] = {firing.worker for firing in (*firings, *lasting_firings)}
    without_data = (each for each in fired if each.fault.errno or _empties_file(each.fault))
    unread = {
        firing.sample
        for each in without_data
        for firing in each.firings
        if _may_be_in(firing, epoch)
    }
    reorders = any(Effect.ORDER in each.fault.effects for each in fired)
    skips, substitutes = contract.may_skip, contract.may_substitute
    return Allowed(
        missing=hit if skips else (),
        losses=count if skips else 0,
        workers=(_Everything() if None in workers else workers) if skips else (),
        replaced=hit if substitutes else (),
        unread=unread if substitutes else (),
        replacements=count if substitutes else 0,
        damage=may_be_damaged(outcome, contract),
        other_order=contract.may_reorder and reorders,
    )


def may_be_damaged(outcome: Outcome, contract: Contract) -> bool:
    """Whether samples of *outcome* may consist of bytes that a fault has damaged."""
    return outcome.has_fired(CorruptedFile) and not contract.detects_corruption


def _may_be_in(firing: Firing, epoch: int) -> bool:
    """Whether *firing* was in that epoch, in an unknown one, or while the dataset was created."""
    return firing.epoch in (None, 0, epoch)


def _empties_file(fault: Fault) -> bool:
    return isinstance(fault, TruncatedFile) and not fault.keep
