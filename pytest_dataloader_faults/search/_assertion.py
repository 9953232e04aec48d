"""The property that a dataset keeps under any faults: trials of it, and the error if it fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._arguments import FLAG
from pytest_dataloader_faults._settings import Settings, check
from pytest_dataloader_faults._trial import run_trial_job
from pytest_dataloader_faults._trial.factory import (
    DatasetFactory,
    is_named,
)
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults.battery.fault_free_run import ONE_WORKER, FaultFreeRun
from pytest_dataloader_faults.battery.targets import require_match
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    FaultNotFiredError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Contract, Finding, Outcome, Verdict
from pytest_dataloader_faults.outcomes.agreement import Comparison
from pytest_dataloader_faults.outcomes.fault_facts import explain_unfired
from pytest_dataloader_faults.outcomes.judge import explain
from pytest_dataloader_faults.outcomes.judge.errors import torch_dropped_a_batch
from pytest_dataloader_faults.outcomes.judge.sharing import start_cause
from pytest_dataloader_faults.outcomes.text import call_in_lines
from pytest_dataloader_faults.steps import TrialOptions, run_epochs

if TYPE_CHECKING:
    from pytest_dataloader_faults.strategies.choices import DataFiles

VIOLATIONS: dict[Verdict, type[CheckFailedError]] = {
    verdict: type(
        f"{verdict.value.title().replace('_', '')}Error",
        (CheckFailedError,),
        {"__doc__": f"A trial's verdict is ``{verdict}``.", "__module__": __name__},
    )
    for verdict in Verdict
}
"""One class for each verdict. Hypothesis considers failures of the same class and line as the same
bug, so it would shrink a hang into a different failure."""

_NAMELESS = "make_dataset"


class Survey:
    """A dataset, and its fault-free run.

    Attributes:
        make_dataset: The dataset factory.
        before_init: Whether its faults are armed before the dataset is created.
        contract: What the dataset promises, including how samples are compared.
    """

    def __init__(
        self, make_dataset: DatasetFactory, settings: Settings, *, before_init: bool = False
    ) -> None:
        FLAG.check("before_init", before_init)
        run = FaultFreeRun(make_dataset, settings, attempts=[ONE_WORKER])
        self._fault_free_run, self.make_dataset, self.before_init = run, make_dataset, before_init
        self.contract, self._workload = run.contract, run.workload
        if before_init:
            (self._workload, *_) = run.workload.at_rest
            if not self._workload.is_at_rest and (refusal := self._workload.refusal):
                raise InvalidArgumentError(f"before_init=True: {refusal.reason}")
        require_match(run.settings.files, self._workload.fault_free)

    def __repr__(self) -> str:
        """The files, which matter in a failing example."""
        return f"Survey(files={self.files!r})"

    @cached_property
    def files(self) -> DataFiles:
        """What can fail."""
        from pytest_dataloader_faults.strategies.choices import DataFiles

        return DataFiles.of(self._workload, self._fault_free_run.reference.sample_count)

    @property
    def is_iterable(self) -> bool:
        """Whether the dataset is a stream, which has no indices."""
        return self._fault_free_run.reference.kind == "iterable"

    @property
    def comparison(self) -> Comparison:
        """How samples are compared."""
        return self._fault_free_run.comparison

    def run_trial(
        self,
        *faults: Fault,
        epochs: int = 1,
        loader: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Outcome:
        """Run a trial with the survey's settings, except for those in *settings*.

        *loader*: options that replace, or are added to, those of the survey.
        """
        fault_free_run = self._fault_free_run
        check(loader=loader, epochs=epochs)
        # Another loader may request other samples, which are known alone, but not other batches.
        reference = fault_free_run.reference
        is_known = not loader or reference.comparison.in_batches
        loader = {**(fault_free_run.settings.loader or {}), **(loader or {})}
        job = Job(
            make_dataset=self.make_dataset,
            faults=faults,
            settings=fault_free_run.settings.override({**settings, "loader": loader}),
            comparison=self.comparison,
            options=TrialOptions(processes=run_epochs(epochs, before_init=self.before_init)),
            draws=reference.draws if is_known else (),
            length=reference.readable,
            recovers_in_workers=bool(reference.workers),
            history=fault_free_run.history,
        )
        return run_trial_job(job)

    def judge(self, outcome: Outcome) -> Finding:
        """The verdict on *outcome*, by the survey's contract."""
        return self._fault_free_run.judge(outcome, self.contract)


def assert_survives_or_fails_cleanly(outcome: Outcome, survey: Survey) -> Verdict:
    """Raise unless the dataset of *outcome* survived the faults, or failed cleanly.

    Inside a Hypothesis test, verdicts and faults go to Hypothesis' statistics. A trial in which no
    fault fired (``not_exercised``) only counts there; outside of Hypothesis it raises.
    """
    import hypothesis

    __tracebackhide__ = True
    finding = judge_outcome(outcome, survey)
    inside = hypothesis.currently_in_test_context()
    if inside:
        record_statistics(outcome, finding)
    if is_violation(finding):
        raise violation(outcome, finding, survey.make_dataset, survey.contract)
    if finding.verdict is Verdict.NOT_EXERCISED and not inside:
        raise not_exercised(outcome, finding)
    return finding.verdict


def judge_outcome(outcome: Outcome, survey: Survey) -> Finding:
    """The verdict; ``not_exercised`` also if torch itself causes a hang."""
    if torch_dropped_a_batch(outcome):
        sentence = (
            "torch ran out of file descriptors or shared memory while sharing a batch, dropped the"
            " batch, and waits for it forever"
        )
        return Finding(Verdict.NOT_EXERCISED, sentence)
    return survey.judge(outcome)


def is_violation(finding: Finding) -> bool:
    """Whether the dataset broke the property; False if no fault fired, or for a warning."""
    return finding.verdict.fails and not finding.library


def record_statistics(outcome: Outcome, finding: Finding) -> None:
    """Add the verdict and the faults to Hypothesis' statistics, inside one of its tests."""
    import hypothesis

    hypothesis.event("verdict", str(finding.verdict))
    for facts in outcome.faults:
        kind = type(facts.fault).__name__
        hypothesis.event(kind, "fired" if facts.fired else "did not fire")


def not_exercised(outcome: Outcome, finding: Finding) -> FaultNotFiredError:
    """The error that says why no fault fired."""
    reason = explain_unfired(outcome.faults, outcome.processes)
    return FaultNotFiredError(f"not_exercised: {reason or finding.sentence}")


def violation(
    outcome: Outcome,
    finding: Finding,
    make_dataset: DatasetFactory | None = None,
    contract: Contract | None = None,
) -> CheckFailedError:
    """The error to raise: the verdict's own explanation, and a test that repeats the trial."""
    request = outcome.request
    factory = make_dataset if _importable_name(make_dataset) else None
    promise = contract if contract not in {None, Contract()} else None
    again = call_in_lines(
        "replay",
        _importable_name(factory) or _NAMELESS,
        *map(repr, request.schedule),
        loader=request.loader,
        contract=promise,
        **request.run_options,
        deadline=request.deadline,
        seed=request.seed,
    )
    imports = [*_import_lines(outcome, promise), _import_line(factory)]
    test = "\n".join(["", *imports, "", "", "def test_again():", f"    {again}"])
    cause = start_cause(outcome)
    notes = (cause.advice,) if cause else ()
    return VIOLATIONS[finding.verdict](explain(outcome, finding, test, notes))


def _import_lines(outcome: Outcome, contract: Contract | None) -> Iterator[str]:
    """The lines above the test that import names of this package."""
    if contract is not None:
        yield "from pytest_dataloader_faults import Contract"
    if names := ", ".join(sorted({type(fault).__name__ for fault in outcome.schedule})):
        yield f"from pytest_dataloader_faults.faults import {names}"
    yield "from pytest_dataloader_faults.search import replay"


def _import_line(factory: Any) -> str:
    """The line that imports the *factory*, or says that it is to be inserted."""
    if factory is None:
        return f"# Insert here: your dataset factory, {_NAMELESS}, and other names of your own"
    return f"from {factory.__module__} import {_importable_name(factory).partition('.')[0]}"


def _importable_name(function: Any) -> str:
    """The name that *function* has in its module; empty if others cannot import it."""
    if not is_named(function):
        return ""
    name, module = str(function.__qualname__), function.__module__
    value: object = None if module == "__main__" else sys.modules.get(module or "")
    for part in name.split("."):
        value = getattr(value, part, None)
    return name if value is not None and value == function else ""
