"""The facts of a trial, which know how to have themselves judged."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._reference import Reference
from pytest_dataloader_faults.outcomes._verdicts import Contract, Judgement


@dataclass(frozen=True)
class Outcome(TrialFacts):
    __doc__ = TrialFacts.__doc__

    def judge(self, reference: Reference, contract: Contract | None = None) -> Judgement:
        """The verdict on these facts, with its evidence."""
        # Imported when asked for: a trial's own process loads nothing to judge with.
        from pytest_dataloader_faults.outcomes._judge import judge

        return judge(self, reference, contract or Contract())
