"""The checks of the battery: what each promises, and the faults it needs. Pure.

A check sees the workload of a run without a fault. It answers with the variants to run, or says why
it does not apply.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pytest_dataloader_faults.battery.checks._base import Check as Check
from pytest_dataloader_faults.battery.checks._base import Variant as Variant
from pytest_dataloader_faults.battery.checks._epochs import EPOCHS, PINNING
from pytest_dataloader_faults.battery.checks._faults import FAULTS, NETWORK, WRITES
from pytest_dataloader_faults.exceptions import InvalidArgumentError

CHECKS: dict[str, Check] = {
    check.name: check for check in (*EPOCHS, *FAULTS, *WRITES, *NETWORK, *PINNING)
}


def names_of_checks(argument: str, names: str | Iterable[str]) -> set[str]:
    """*names* as a set; each must be a check's."""
    try:
        chosen = {names} if isinstance(names, str) else set(names)
    except TypeError as error:
        message = f"{argument}={names!r} must be the name of a check, or several names"
        raise InvalidArgumentError(message) from error
    for name in chosen:
        if name not in CHECKS:
            near = difflib.get_close_matches(str(name), CHECKS, n=2)
            advice = f"Did you mean {near}?" if near else f"Choose from {list(CHECKS)}"
            message = f"{argument} names {name!r}, which is no check. {advice}"
            raise InvalidArgumentError(message)
    return chosen
