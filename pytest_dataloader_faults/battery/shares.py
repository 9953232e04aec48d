"""What each worker gave of a dataset in a run without a fault. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.reference import Share

# Some facts about streams that draw. Training on a large text draws random windows of it, and each
# worker seeds its generator with its id. So n samples of the stream are n in each worker, and none
# of them need be among those that the main process draws. A stream that forgot to share its data
# among workers gives as many, but each worker gives the same samples, in this order or another.


_MOST_SHARED = 3 / 4
"""Workers that draw from few samples draw some of the same; two that read all share each."""


def shares_of(fault_free: Outcome) -> tuple[Share, ...]:
    """What each worker gave of a stream, where that is known."""
    workers = fault_free.workers
    files = {each.worker: len(each.files) for each in workers if each.worker is not None}
    came: dict[int, list[str]] = {worker: [] for worker in files}
    for each in fault_free.delivered:
        if each.worker is None or each.rows is None or fault_free.kind == "map":
            return ()
        came.setdefault(each.worker, []).extend(each.rows)
    return tuple(Share(each, tuple(came[each]), files.get(each, 0)) for each in sorted(came))


def drawn_in(fault_free: Outcome) -> int | None:
    """How many samples its sampler drew, if it drew as many batches as its length says."""
    (one,) = fault_free.passes
    has_length = fault_free.kind == "map" and len(one.drawn) == one.batches
    return sum(map(len, one.drawn)) if has_length else None


def count_own_samples(fault_free: Outcome, reference: Reference) -> int | None:
    """How many samples each worker gives, if they are random and its own; or else None."""
    shares, count = shares_of(fault_free), len(reference.samples)
    if not shares[1:] or {len(each.samples) for each in shares} != {count}:
        return None
    files, *others = (each.files.keys() for each in fault_free.workers)
    if len(files) >= count and all(files == each for each in others):
        return None
    is_of_content = reference.comparison.is_of_content
    contents = [Counter(each.samples) for each in shares] if is_of_content else []
    pairs = itertools.combinations(contents, 2)
    return None if any((a & b).total() > count * _MOST_SHARED for a, b in pairs) else count


def are_alike(one: Outcome, other: Outcome) -> bool:
    """Whether each worker gave the same bytes in both."""
    return _bytes(one) == _bytes(other)


def _bytes(outcome: Outcome) -> dict[int | None, list[str]]:
    found = defaultdict(list)
    for each in outcome.delivered:
        found[each.worker].append(each.digest)
    return found
