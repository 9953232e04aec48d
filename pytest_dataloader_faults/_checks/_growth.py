"""A check that asks what many epochs leave behind that one does not show. Pure."""

from __future__ import annotations

from pytest_dataloader_faults._checks._base import Check, Recon, no_fault
from pytest_dataloader_faults.outcomes import FEWEST_EPOCHS, Outcome

_MOST_EPOCHS = 40


def _too_slow(_: Recon, outcome: Outcome) -> str | None:
    """A few epochs show nothing, if they were all that there was time for."""
    if not all(one.complete for one in outcome.passes) or outcome.phase != "done":
        return None
    came = len(outcome.passes)
    if came >= FEWEST_EPOCHS:
        return None
    return (
        f"{came} epochs were all that fit into half of the deadline ({outcome.deadline:g} s), and"
        f" {FEWEST_EPOCHS} are needed to tell what grows. Raise the deadline or give fewer samples"
    )


GROWTH = (
    Check(
        "growth",
        "descriptors, threads and memory do not grow with each epoch",
        no_fault,
        {"persistent_workers": True},
        trial={"epochs": _MOST_EPOCHS, "footprints": True},
        moot=_too_slow,
    ),
)
