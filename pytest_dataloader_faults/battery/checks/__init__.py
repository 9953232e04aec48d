"""The checks of the battery: what each promises, and the faults it needs. Pure.

A check sees the workload of a run without a fault. It answers with the variants to run, or says why
it does not apply.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_dataloader_faults._arguments import meant
from pytest_dataloader_faults.battery.checks._at_rest import AT_REST
from pytest_dataloader_faults.battery.checks._base import Check as Check
from pytest_dataloader_faults.battery.checks._base import Variant as Variant
from pytest_dataloader_faults.battery.checks._epochs import EPOCHS, PINNING
from pytest_dataloader_faults.battery.checks._faults import FAULTS, NETWORK, WRITES
from pytest_dataloader_faults.battery.checks._ranks import RANKS
from pytest_dataloader_faults.battery.checks._ranks import RANKS_AGREE as RANKS_AGREE
from pytest_dataloader_faults.battery.checks._ranks import WITHOUT_RANKS as WITHOUT_RANKS
from pytest_dataloader_faults.battery.checks._resume import RESUME
from pytest_dataloader_faults.exceptions import InvalidArgumentError

CHECKS: dict[str, Check] = {
    check.name: check
    for check in (*EPOCHS, *FAULTS, *AT_REST, *WRITES, *NETWORK, *RESUME, *RANKS, *PINNING)
}


GROUPS = {
    "quick": (
        "workers-agree",
        "used-before",
        "pickles",
        "read-error-later",
        "truncated-empty",
        "truncated-tail",
        "closed-descriptor",
        "worker-killed-first",
    )
}
"""Names for several checks. ``quick`` has those that find most of what all of them find in the
classes of docs/evidence/datasets.md, for a part of the time; tests/battery/test_quick.py counts it.
"""


def names_of_checks(argument: str, names: str | Iterable[str]) -> set[str]:
    """*names* as a set; each must be a check's, or that of a group.

    A text may have several, between commas.
    """
    given = [names] if isinstance(names, str) or not isinstance(names, Iterable) else names
    texts = list(given)
    if not all(isinstance(each, str) for each in texts):
        message = f"{argument}={names!r} must be the name of a check, or several names"
        raise InvalidArgumentError(message)
    found = {name for each in texts for part in each.split(",") if (name := part.strip())}
    if texts and not found:
        message = f"{argument}={names!r} names no check. Name some, as in 'pickles, open-error'"
        raise InvalidArgumentError(message)
    checks = {each for name in found for each in GROUPS.get(name, (name,))}
    require_checks(argument, checks)
    return checks


def require_checks(argument: str, names: Iterable[str]) -> None:
    """Raise InvalidArgumentError if one of *names* is no check."""
    for name in names:
        if name not in CHECKS:
            known = tuple(CHECKS) if name in GROUPS else (*CHECKS, *GROUPS)
            advice = meant(str(name), known) or f"Choose from {', '.join(known)}"
            message = f"{argument} names {name!r}, which is no check. {advice}"
            raise InvalidArgumentError(message)
