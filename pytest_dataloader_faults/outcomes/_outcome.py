"""The facts of a trial, with the method that judges them."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._reference import Reference
from pytest_dataloader_faults.outcomes._verdicts import Contract, Judgement


@dataclass(frozen=True)
class Outcome(TrialFacts):
    __doc__ = TrialFacts.__doc__

    def judge(self, reference: Reference, contract: Contract | None = None) -> Judgement:
        """The verdict on these facts, given what the dataset gives when nothing is wrong.

        Raises:
            ValueError: *reference* does not know a batch that was delivered.
            InvalidArgumentError: The samples of *reference* were compared in another way.
        """
        # Imported on use: the process of a trial does not load the judge.
        from pytest_dataloader_faults.outcomes._judge import judge

        return judge(self, reference, contract or Contract())
