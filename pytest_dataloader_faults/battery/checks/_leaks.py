"""Checks that ask what each epoch leaves behind. Pure.

What pinning makes of a batch. Needs an accelerator. Pure.
"""

from __future__ import annotations

from pytest_dataloader_faults._trial.job import TrialOptions
from pytest_dataloader_faults.battery.checks._base import (
    MOST_EPOCHS,
    Check,
    NotApplicable,
    Plan,
    Recon,
    no_fault,
)
from pytest_dataloader_faults.outcomes import Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes._records import FEWEST_EPOCHS

_EPOCHS_OF_NEW_WORKERS = 3


_LEFTOVERS = (
    "A worker ends without atexit handlers, and without the finalizers of what it holds: remove a"
    " temporary file in the sample that made it, or make it in the main process and remove it there"
)


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


def _left_files(outcome: Outcome, _: Reference) -> tuple[Verdict, str] | None:
    """A cache is made in the first epoch; what most workers make anew is none."""
    left = [each.leftover_files for each in outcome.workers if each.leftover_files]
    if len(left) * 2 <= len(outcome.workers):
        return None
    count, every = sum(map(len, left)), len(outcome.workers)
    sentence = f"{len(left)} of {every} workers left {count} temporary files ({left[-1][0]})"
    return Verdict.LEAKED, sentence


def _is_unseen(recon: Recon) -> Plan:
    if recon.is_blind:
        return NotApplicable(
            "the python engine does not see which files are made; the kernel's does"
        )
    return ()


GROWTH = (
    Check(
        "growth",
        "descriptors, threads and memory do not grow with each epoch",
        no_fault,
        {"persistent_workers": True},
        options=TrialOptions(epochs=MOST_EPOCHS, footprints=True, same_order=True),
        moot=_too_slow,
    ),
    Check(
        "leftovers",
        "workers that end leave no temporary file and no shared memory",
        _is_unseen,
        {"persistent_workers": False},
        options=TrialOptions(epochs=_EPOCHS_OF_NEW_WORKERS, same_order=True),
        rule=_left_files,
        advice=_LEFTOVERS,
    ),
)

_PINNED = (
    "The loader's process used the accelerator first, as a training job does, had a thread pin each"
    " batch, and copied it to the device. A class of your own for batches needs a pin_memory() that"
    " returns the batch; samples stay on the CPU until they are in that process"
)

PINNING = (
    Check(
        "pinned",
        "pinned batches hold the same samples on the device, and no epoch keeps its memory",
        no_fault,
        {"pin_memory": True},
        options=TrialOptions(
            accelerator=True, epochs=MOST_EPOCHS, footprints=True, same_order=True
        ),
        advice=_PINNED,
        gpu=True,
    ),
)
