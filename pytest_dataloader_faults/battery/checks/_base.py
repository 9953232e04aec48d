"""What a check is, what recon tells it, and the plans that several checks share. Pure."""

from __future__ import annotations

import glob
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pytest_dataloader_faults._trial.job import ONE_EPOCH, TrialOptions
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Outcome, Reference, Verdict

MOST_EPOCHS = 40
"""Of a trial that looks at what grows; a trial stops as soon as it has seen enough."""

Globs: TypeAlias = Callable[[tuple[str, ...], set[str]], tuple[str, ...]]


@dataclass(frozen=True)
class NotApplicable:
    """Why a check does not apply to a dataset."""

    reason: str


@dataclass(frozen=True)
class Recon:
    """What a dataset does when nothing is wrong.

    Attributes:
        control: One epoch with workers, the engine on and no fault.
        opened: Globs for exactly the data files that workers open.
        read: Globs for those that they read or have mapped.
        reads: The reads of the busiest worker.
        readers: The workers that read by calls, and not only in what was mapped before.
        fetches: The batches that worker 0 makes.
        paths: The files that they read or have mapped.
        opened_paths: Those that they open.
        ends: Places where some of these could end without looking shorter, by path.

    """

    control: Outcome
    opened: tuple[str, ...]
    read: tuple[str, ...]
    reads: int
    readers: tuple[int, ...]
    fetches: int
    paths: tuple[str, ...] = ()
    opened_paths: tuple[str, ...] = ()
    ends: tuple[tuple[str, int], ...] = ()

    @property
    def is_blind(self) -> bool:
        """Whether files may be opened and read, in C, with nobody noticing."""
        return self.control.engine == "python"

    def nothing(self, verb: str) -> NotApplicable:
        """Why a check has no victim: its workers *verb* none."""
        if self.is_blind:
            seen = f"the python engine saw its workers {verb} no data file; code in C may do so"
            return NotApplicable(f"{seen} unseen. engine='kernel' sees that, too")
        return NotApplicable(f"its workers {verb} no data file")

    @classmethod
    def of(cls, control: Outcome, matches: Callable[[str], bool], globs_for: Globs) -> Recon:
        """Sum up *control*, as far as files are concerned that *matches* means.

        *globs_for* makes globs for some of all the files seen.
        """
        seen = {path for worker in control.workers for path in worker.files}
        per_worker = [
            {path: counts for path, counts in worker.files.items() if matches(path)}
            for worker in control.workers
        ]
        opened = {path for files in per_worker for path, (opens, _, _) in files.items() if opens}
        read = {path for files in per_worker for path, (_, reads, _) in files.items() if reads}
        return cls(
            control,
            globs_for(tuple(sorted(opened)), seen),
            globs_for(tuple(sorted(read)), seen),
            reads=max(
                (sum(counts[1] for counts in files.values()) for files in per_worker), default=0
            ),
            readers=_readers(control, per_worker),
            fetches=max((each.fetches for each in control.workers if each.worker == 0), default=0),
            paths=tuple(sorted(read)),
            opened_paths=tuple(sorted(opened)),
        )


def _readers(
    control: Outcome, per_worker: list[dict[str, tuple[int, int, int]]]
) -> tuple[int, ...]:
    """A mapping that was there before counts as one read, of a file that the worker never opened.

    The python engine does not exchange those.
    """
    is_blind = control.engine == "python"
    return tuple(
        worker.worker
        for worker, files in zip(control.workers, per_worker, strict=True)
        if any(reads and (opens or length or is_blind) for opens, reads, length in files.values())
    )


Plan: TypeAlias = tuple[Fault, ...] | NotApplicable
Rule: TypeAlias = Callable[[Outcome, Reference], tuple[Verdict, str] | None]


@dataclass(frozen=True)
class Check:
    """One item of the battery.

    Attributes:
        changes: Loader options that it needs.
        options: What its trial does beyond one epoch under the faults.
        rule: A crime that only this check looks for: what it is and the sentence, or None. Asked
            where the judge has found nothing wrong.
        advice: What to know and to do when it fails, beyond the evidence.
        unseeded: Random numbers are left as they are in its trial, whatever the contract; then only
            types and shapes are compared.
        gpu: Whether it needs an accelerator.
        moot: Of what recon found and the check's own trial: why it does not apply after all.

    """

    name: str
    promise: str
    plan: Callable[[Recon], Plan]
    changes: dict[str, Any] = field(default_factory=dict)
    options: TrialOptions = ONE_EPOCH
    rule: Rule = lambda _outcome, _reference: None
    advice: str = ""
    unseeded: bool = False
    gpu: bool = False
    moot: Callable[[Recon, Outcome], str | None] = lambda _recon, _outcome: None


def path_of(globs: tuple[str, ...]) -> str | tuple[str, ...]:
    """As a person would write them."""
    return globs[0] if len(globs) == 1 else globs


def no_fault(_: Recon) -> Plan:
    return ()


_Choose: TypeAlias = Callable[[Recon], tuple[str, ...]]
_OnFiles: TypeAlias = Callable[[Callable[[Any], Fault]], Callable[[Recon], Plan]]


def _on(verb: str, choose: _Choose) -> _OnFiles:
    """For a fault of the files that *choose* gives; there may be none that workers *verb*."""

    def on(make: Callable[[Any], Fault]) -> Callable[[Recon], Plan]:
        def plan(recon: Recon) -> Plan:
            files = choose(recon)
            return (make(path_of(files)),) if files else recon.nothing(verb)

        return plan

    return on


def _one(paths: tuple[str, ...]) -> tuple[str, ...]:
    """The middle one, as a glob: its neighbours could stand in for it."""
    return tuple(map(glob.escape, paths[len(paths) // 2 :][:1]))


on_opened = _on("open", lambda recon: recon.opened)
on_one_opened = _on("open", lambda recon: _one(recon.opened_paths))
on_read = _on("read", lambda recon: recon.read)
# What happens as a file is opened: who reads it then, in Python or in C, is all one.
on_content = _on("read", lambda recon: recon.read or (recon.opened if recon.is_blind else ()))
on_content_of_one = _on(
    "read",
    lambda recon: _one(recon.paths or (recon.opened_paths if recon.is_blind else ())),
)
