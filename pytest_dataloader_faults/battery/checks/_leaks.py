"""Checks of what each epoch leaves behind, and of pinned batches. Pure."""

from __future__ import annotations

from pytest_dataloader_faults._trial.job import TrialOptions
from pytest_dataloader_faults.battery._workload import NotApplicable, Workload
from pytest_dataloader_faults.battery.checks._base import Check, Plan, no_fault
from pytest_dataloader_faults.outcomes import Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes._records import FEWEST_EPOCHS
from pytest_dataloader_faults.outcomes._verdicts import Finding

_EPOCHS = 40
"""A trial that looks for growth stops as soon as it has seen enough."""
_EPOCHS_OF_NEW_WORKERS = 3

_LEFTOVERS = (
    "A worker exits without atexit handlers and without the finalizers of its objects. Remove a"
    " temporary file in the sample that created it, or create and remove it in the main process"
)


def _too_slow(_: Workload, outcome: Outcome) -> str | None:
    """A few epochs show nothing, if there was no time for more."""
    if not all(one.complete for one in outcome.passes) or outcome.phase != "done":
        return None
    came = len(outcome.passes)
    if came >= FEWEST_EPOCHS:
        return None
    return (
        f"only {came} epochs fit into half of the deadline ({outcome.deadline:g} s), and growth"
        f" shows after {FEWEST_EPOCHS} at least. Raise the deadline or use fewer samples"
    )


def _left_files(outcome: Outcome, _: Reference) -> Finding | None:
    """A cache is made in the first epoch; files that most workers make anew are no cache."""
    left = [each.leftover_files for each in outcome.workers if each.leftover_files]
    if len(left) * 2 <= len(outcome.workers):
        return None
    count, every = sum(map(len, left)), len(outcome.workers)
    sentence = f"{len(left)} of {every} workers left {count} temporary files ({left[-1][0]})"
    return Verdict.LEAKED, sentence


def _needs_kernel_engine(workload: Workload) -> Plan:
    if workload.is_python_engine:
        reason = "the python engine does not see which files are made; the kernel's does"
        return NotApplicable(reason)
    return ()


GROWTH = (
    Check(
        "growth",
        "descriptors, threads and memory do not grow with each epoch",
        no_fault,
        {"persistent_workers": True},
        options=TrialOptions(epochs=_EPOCHS, footprints=True, same_order=True),
        skip_reason=_too_slow,
    ),
    Check(
        "leftovers",
        "workers that exit leave no temporary file and no shared memory",
        _needs_kernel_engine,
        {"persistent_workers": False},
        options=TrialOptions(epochs=_EPOCHS_OF_NEW_WORKERS, same_order=True),
        extra_rule=_left_files,
        advice=_LEFTOVERS,
    ),
)

_PINNED = (
    "The loader's process used the accelerator first, as a training job does. A thread of it pinned"
    " each batch, and the process copied the batch to the device. A batch class of your own needs a"
    " pin_memory() that returns the batch. Workers must leave samples on the CPU"
)

PINNING = (
    Check(
        "pinned",
        "pinned batches have the same samples on the device, and no epoch keeps its memory",
        no_fault,
        {"pin_memory": True},
        options=TrialOptions(accelerator=True, epochs=_EPOCHS, footprints=True, same_order=True),
        advice=_PINNED,
        gpu=True,
    ),
)
