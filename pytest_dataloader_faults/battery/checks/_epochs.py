"""Checks that ask for more than one epoch. Pure."""

from __future__ import annotations

from typing import Any

from pytest_dataloader_faults._trial.job import TrialOptions
from pytest_dataloader_faults.battery.checks._base import Check, Plan, Recon, no_fault, path_of
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes import Outcome, Pass, Reference, Verdict

_ENOUGH = 8
"""Random samples that have to agree before that is no accident."""


def _is_different(outcome: Outcome, reference: Reference) -> tuple[Verdict, str] | None:
    """A second epoch that is empty, or that is the first one once more where it should not be."""
    first, second = outcome.passes
    if reference.again is not None:
        count = f"{reference.again} of its {len(reference.samples)} samples"
        return Verdict.CORRUPTED, f"iterated once more in one process, the stream gave {count}"
    if outcome.kind == "map" and not second.drawn:
        return Verdict.CORRUPTED, "in epoch 2 the sampler drew no index, so no sample came"
    if reference.varied >= _ENOUGH and _repeats(first, second):
        repeated = "the random samples of epoch 2 are, bit by bit, those of epoch 1"
        return Verdict.CORRUPTED, f"{repeated}, although reading one twice gives two"
    return None


def _repeats(first: Pass, second: Pass) -> bool:
    one, other = _parts(first), _parts(second)
    common = one.keys() & other.keys()
    return len(common) >= _ENOUGH and all(one[key] == other[key] for key in common)


def _parts(one: Pass) -> dict[Any, Any]:
    """What the samples are made of, by index; those of a stream by their place in the epoch."""
    told = [
        (index, parts)
        for each in one.delivered
        for index, parts in zip(each.indices or each.rows or (), each.leaves, strict=False)
    ]
    if any(each.indices is None for each in one.delivered):
        return dict(enumerate(sorted(parts for _, parts in told)))
    return dict(told)


def _first_read_once(recon: Recon) -> Plan:
    if not recon.read:
        return recon.nothing("read")
    return (ReadError(path_of(recon.read), times=1),)


def _is_remembered(outcome: Outcome, _reference: Reference) -> tuple[Verdict, str] | None:
    """An error of the second epoch, in which no read failed."""
    raised = outcome.exception
    epochs = {one.epoch for each in outcome.faults for one in each.firings}
    if raised is None or len(outcome.passes) < 2 or epochs != {1}:  # noqa: PLR2004  # two epochs
        return None
    after = "although no read failed in epoch 2, the same workers raised"
    return Verdict.POISONED, f"{after} {raised.type}: {raised.message.strip()[-200:]}"


EPOCHS = (
    Check(
        "two-epochs",
        "the second epoch is as good as the first, and not the same where samples are random",
        no_fault,
        options=TrialOptions(epochs=2),
        rule=_is_different,
        advice=(
            "Each epoch starts workers from the dataset as it is in the main process: what an"
            " iterator, a sampler or a random generator that is kept on it has used up is used up"
            " for good there, or comes again in every worker. Make it anew in __iter__, or in"
            " each worker from torch.initial_seed()"
        ),
        unseeded=True,
    ),
    Check(
        "persistent-workers",
        "workers that live on give a whole second epoch",
        no_fault,
        {"persistent_workers": True},
        TrialOptions(epochs=2),
        advice="With persistent_workers=True each worker keeps its copy of the dataset, used",
    ),
    Check(
        "read-error-next-epoch",
        "an error is forgotten by workers that live on",
        _first_read_once,
        {"persistent_workers": True},
        TrialOptions(epochs=2, keep_workers=True),
        rule=_is_remembered,
    ),
)
