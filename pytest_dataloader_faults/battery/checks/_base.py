"""What a check is, and the plans that several checks share. Pure."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from pytest_dataloader_faults._settings.jobs import ONE_EPOCH, Resume, TrialOptions
from pytest_dataloader_faults.battery._workload import FileSet, NotApplicable, Workload
from pytest_dataloader_faults.faults import Fault, TruncatedFile
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.outcomes.contract import Finding


@dataclass(frozen=True)
class Variant:
    """One of the ways to ask a check. A check passes if the dataset passes each of its variants.

    Attributes:
        faults: The faults of its trial.
        title: What sets it apart from the other variants, in a few words; "" if there is one only.
        changes: Loader options that it needs besides those of the check.
        resume: Which states of its loader new processes go on from, or None.
        same_draws: Whether the sampler of each epoch draws what that of the first one drew.
        whole_batches: Whether batches are as large as the loader makes them.
        circumstance: What the sentence of its verdict begins with; "" if that needs no saying.
        skip_reason: Why it shows nothing after all, given its own trial, or None.
    """

    faults: tuple[Fault, ...] = ()
    title: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    resume: Resume | None = None
    same_draws: bool = False
    whole_batches: bool = False
    circumstance: str = ""
    skip_reason: Callable[[Outcome], NotApplicable | None] = lambda _outcome: None


HALF = 0.5
FLIPS = 8
"""Bytes of a damaged file that differ."""
Plan: TypeAlias = tuple[Variant, ...] | NotApplicable
Rule: TypeAlias = Callable[[Outcome, Reference], Finding | None]


def no_fault(_: Workload) -> Plan:
    return (Variant(),)


def once(*faults: Fault) -> Plan:
    """The plan of a check that is asked in one way: with *faults*."""
    return (Variant(faults),)


@dataclass(frozen=True)
class Check:
    """One item of the battery.

    Attributes:
        name: Its name in results, options and the documentation.
        promise: What a dataset that passes it does, or what happens to the dataset.
        plan: The ways to ask it, given the workload; or why it does not apply.
        changes: Loader options that it needs.
        options: What its trial does beyond one epoch under the faults.
        extra_rule: A violation that only this check looks for: its verdict and the sentence, or
            None. It is asked where the judge has found nothing wrong, or no more than an unclear
            error.
        preface: What it does that the reader of any advice has to know.
        advice: What to know and to do when it fails, beyond the evidence.
        is_about_errors: Whether these are also about an error without a fault. Otherwise such an
            error may come in any check.
        keep_randomness: Whether random numbers are left as they are in its trial, whatever the
            contract says. Then only types and shapes are compared.
        gpu: Whether it needs an accelerator.
        ranks: Whether its trial has several ranks.
        skip_reason: Why it does not apply after all, given the workload and its own trial, or None.
    """

    name: str
    promise: str
    plan: Callable[[Workload], Plan] = no_fault
    changes: dict[str, Any] = field(default_factory=dict)
    options: TrialOptions = ONE_EPOCH
    extra_rule: Rule = lambda _outcome, _reference: None
    preface: str = ""
    advice: str = ""
    is_about_errors: bool = False
    keep_randomness: bool = False
    gpu: bool = False
    ranks: bool = False
    skip_reason: Callable[[Workload, Outcome], NotApplicable | None] = lambda _workload, _outcome: (
        None
    )


def on(
    files: Literal["opened", "read", "content", "cut", "filled"],
    kind: Callable[..., Fault],
    *,
    one: bool = False,
    no_target: Callable[[Workload], NotApplicable] | None = None,
    **options: Any,
) -> Callable[[Workload], Plan]:
    """A plan: a fault of these *files* of the workload, or of *one* of them, of each kind.

    "content" is for faults that happen as a file is opened: it does not matter whether Python or C
    reads it then. "cut" is for those of its length, and "filled" for those of files that are not
    empty by themselves. *no_target*: why it does not apply where there are no such files.
    """

    def plan(workload: Workload) -> Plan:
        found: FileSet | NotApplicable = getattr(workload, files)
        if isinstance(found, NotApplicable):
            return found
        if not found.paths and no_target is not None:
            return no_target(workload)
        if not found.paths:
            return workload.no_target("open" if files == "opened" else "read")
        return once(kind(found.middle if one else found.path, **options))

    return for_each_kind(plan)


def tails_cut_off(workload: Workload) -> tuple[Fault, ...]:
    """Files that end where they look whole; none where there is no such place."""
    points = workload.truncation_points
    return tuple(TruncatedFile(glob.escape(path), keep=end) for path, end in points)


def for_each_kind(plan: Callable[[Workload], Plan]) -> Callable[[Workload], Plan]:
    """*plan* for one kind of file after the other, so that an index does not shield the data."""

    def of_each(workload: Workload) -> Plan:
        kinds = workload.kinds
        plans = [(kind.title if len(kinds) > 1 else "", plan(kind)) for kind in kinds]
        variants = [
            replace(each, title=", ".join(filter(None, (title, each.title))))
            for title, found in plans
            if not isinstance(found, NotApplicable)
            for each in found
        ]
        return tuple(variants) or plans[0][1]

    return of_each
