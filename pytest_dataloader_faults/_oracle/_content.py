"""What came, beside what should have come. Pure."""

from __future__ import annotations

from collections import Counter

from pytest_dataloader_faults._oracle._allowed import NOTHING, Allowed, allowed
from pytest_dataloader_faults._oracle._rows import wrong_rows
from pytest_dataloader_faults.outcomes import Delivery, Outcome, Pass, Reference
from pytest_dataloader_faults.verdicts import Contract, Verdict

_SHOWN = 5


def corrupted(
    outcome: Outcome, reference: Reference, contract: Contract
) -> tuple[Verdict, str] | None:
    for number, one in enumerate(outcome.passes, start=1):
        wrong = wrong_in(one, reference, allowed(outcome, contract, number))
        if wrong:
            where = f" in epoch {number}" if len(outcome.passes) > 1 else ""
            return Verdict.CORRUPTED, f"{wrong}{where}, and no error came before it"
    return None


def wrong_in(one: Pass, reference: Reference, may: Allowed = NOTHING) -> str | None:
    """What is not as it should be in the batches of *one*, or None."""
    if reference.kind == "iterable":
        return _wrong_in_stream(one, reference, may)
    return _wrong_batch(one, reference, may) or _missing(one)


def skipped(outcome: Outcome, reference: Reference) -> int:
    """How many samples are missing in the epochs that came to their end."""
    return sum(_skipped_in(one, reference) for one in outcome.passes if one.complete)


def _skipped_in(one: Pass, reference: Reference) -> int:
    if reference.kind == "iterable":
        return len(reference.samples) - sum(len(_digests(each)) for each in one.delivered)
    split = [each for each in one.delivered if each.rows is not None]
    return sum(len(each.indices or ()) - len(each.rows or ()) for each in split)


def _digests(delivery: Delivery) -> tuple[str, ...]:
    """Of each sample; of the whole batch, where it cannot be split. An empty batch has none."""
    return (delivery.digest,) if delivery.rows is None else delivery.rows


def _wrong_batch(one: Pass, reference: Reference, may: Allowed) -> str | None:
    samples, batches = dict(reference.samples), dict(reference.batches)
    for place, delivery in enumerate(one.delivered):
        indices = delivery.indices or ()
        if delivery.rows is not None and samples:
            if wrong := wrong_rows(place, delivery, reference, may):
                return wrong
        elif samples or (batches[indices] != delivery.digest and not may.content):
            return _wrong_size(delivery, place, indices)
    return None


def _wrong_size(delivery: Delivery, place: int, indices: tuple[object, ...]) -> str:
    if delivery.rows is None:
        return f"batch {place} does not hold the samples {list(indices)} that were asked for"
    return f"batch {place} has wrong content"


def _missing(one: Pass) -> str | None:
    if not one.complete:
        return None
    asked = Counter(index for indices in one.drawn for index in indices)
    came = Counter(index for each in one.delivered for index in each.indices or ())
    missing = list((asked - came).elements())
    return f"{len(missing)} samples never came ({_first(missing)})" if missing else None


def _wrong_in_stream(one: Pass, reference: Reference, may: Allowed) -> str | None:
    known = Counter(digest for _, digest in reference.samples)
    came = Counter(digest for each in one.delivered for digest in _digests(each))
    extra, missing = came - known, known - came
    if repeated := sum(count for digest, count in extra.items() if digest in known):
        return f"{repeated} samples came more often than they should"
    strange = sum(extra.values())
    if strange and not may.content:
        return f"{strange} samples have wrong content"
    lost = sum(missing.values()) - strange
    if one.complete and lost > may.lost:
        said = f"{lost} of {sum(known.values())} samples never came"
        return f"{said}, and faults hit only {may.lost}" if may.lost else said
    return None


def _first(items: list[object]) -> str:
    shown = ", ".join(map(repr, items[:_SHOWN]))
    return f"{shown}, ..." if len(items) > _SHOWN else shown
