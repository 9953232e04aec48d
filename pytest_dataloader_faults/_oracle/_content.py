"""What came, beside what should have come. Pure."""

from __future__ import annotations

from collections import Counter

from pytest_dataloader_faults.outcomes import Delivery, Outcome, Pass, Reference
from pytest_dataloader_faults.verdicts import Verdict

_SHOWN = 5


def corrupted(outcome: Outcome, reference: Reference) -> tuple[Verdict, str] | None:
    for number, one in enumerate(outcome.passes, start=1):
        wrong = wrong_in(one, reference)
        if wrong:
            where = f" in epoch {number}" if len(outcome.passes) > 1 else ""
            return Verdict.CORRUPTED, f"{wrong}{where}, and no error came before it"
    return None


def wrong_in(one: Pass, reference: Reference) -> str | None:
    """What is not as it should be in the batches of *one*, or None."""
    if reference.kind == "iterable":
        return _wrong_in_stream(one, reference)
    return _wrong_batch(one, reference) or _missing(one)


def _wrong_batch(one: Pass, reference: Reference) -> str | None:
    samples, batches = dict(reference.samples), dict(reference.batches)
    owners = {digest: index for index, digest in reference.samples}
    for place, delivery in enumerate(one.delivered):
        indices = delivery.indices or ()
        if delivery.rows is not None and samples:
            for index, digest in zip(indices, delivery.rows, strict=False):
                if samples[index] != digest:
                    return f"sample {index!r} in batch {place} {_instead(digest, owners)}"
        elif samples or batches[indices] != delivery.digest:
            return _wrong_size(delivery, place, indices)
    return None


def _wrong_size(delivery: Delivery, place: int, indices: tuple[object, ...]) -> str:
    if delivery.rows is None:
        return f"batch {place} does not hold the samples {list(indices)} that were asked for"
    return f"batch {place} has wrong content"


def _instead(digest: str, owners: dict[str, object]) -> str:
    if digest in owners:
        return f"holds the content of sample {owners[digest]!r}"
    return "has wrong content"


def _missing(one: Pass) -> str | None:
    if not one.complete:
        return None
    asked = Counter(index for indices in one.drawn for index in indices)
    came = Counter(index for each in one.delivered for index in each.indices or ())
    missing = list((asked - came).elements())
    return f"{len(missing)} samples never came ({_first(missing)})" if missing else None


def _wrong_in_stream(one: Pass, reference: Reference) -> str | None:
    known = Counter(digest for _, digest in reference.samples)
    came = Counter(digest for each in one.delivered for digest in each.rows or (each.digest,))
    extra, missing = came - known, known - came
    if repeated := sum(count for digest, count in extra.items() if digest in known):
        return f"{repeated} samples came more often than they should"
    if extra:
        return f"{sum(extra.values())} samples have wrong content"
    if one.complete and missing:
        return f"{sum(missing.values())} of {sum(known.values())} samples never came"
    return None


def _first(items: list[object]) -> str:
    shown = ", ".join(map(repr, items[:_SHOWN]))
    return f"{shown}, ..." if len(items) > _SHOWN else shown
