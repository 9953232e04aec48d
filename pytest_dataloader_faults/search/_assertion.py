"""The property that a dataset keeps under any faults, and the error for one that breaks it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytest_dataloader_faults._arguments import Rule
from pytest_dataloader_faults._trial.factory import (
    DatasetFactory,
    PartOf,
    is_a,
    is_named,
    takes_folder,
)
from pytest_dataloader_faults.battery.survey import Survey, require_same_comparison
from pytest_dataloader_faults.exceptions import CheckFailedError, FaultNotFiredError
from pytest_dataloader_faults.outcomes import Contract, Judgement, Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes.fault_facts import unfired
from pytest_dataloader_faults.outcomes.judge.errors import torch_dropped_a_batch
from pytest_dataloader_faults.outcomes.judge.report import explain
from pytest_dataloader_faults.outcomes.judge.starts import cause_of_start
from pytest_dataloader_faults.outcomes.text import call_in_lines, code, plain, run_settings

VIOLATIONS: dict[Verdict, type[CheckFailedError]] = {
    verdict: type(
        f"{verdict.value.title().replace('_', '')}Error",
        (CheckFailedError,),
        {"__doc__": f"A trial's verdict is ``{verdict}``.", "__module__": __name__},
    )
    for verdict in Verdict
}
"""One class for each verdict: Hypothesis takes failures of one class and one place for the same
bug, and would shrink a hang into a failure of another kind."""

_OUTCOME = Rule(lambda value: isinstance(value, Outcome), "what run_trial(...) returned")
_KNOWN = Rule(
    lambda value: isinstance(value, (Survey, Reference)), "a survey(make_dataset) or a Reference"
)
_NAMELESS = "make_dataset"


def assert_survives_or_fails_cleanly(
    outcome: Outcome, reference: Reference | Survey, *, contract: Contract | None = None
) -> Verdict:
    """Raise unless the dataset of *outcome* survived the faults, or failed cleanly.

    Inside a Hypothesis test, verdicts and faults go to Hypothesis' statistics. A trial in which no
    fault fired (``not_exercised``) only counts there; outside of Hypothesis it raises.

    Args:
        outcome: Of ``run_trial``.
        reference: ``survey(make_dataset)``: what the dataset gives when nothing is wrong.
        contract: What the author promises beyond the ordinary; by default the survey's.

    Returns:
        The verdict, if it is a pass or, inside of Hypothesis, ``not_exercised``.

    Raises:
        CheckFailedError: The verdict, the evidence, a test that repeats the trial.
        FaultNotFiredError: No fault fired, outside of Hypothesis.

    """
    import hypothesis

    __tracebackhide__ = True
    judgement = judge_outcome(outcome, reference, contract)
    make_dataset = getattr(reference, "make_dataset", None)
    promise = contract or getattr(reference, "contract", None)
    inside = hypothesis.currently_in_test_context()
    if inside:
        record_statistics(outcome, judgement)
    if is_violation(judgement):
        raise violation(outcome, judgement, make_dataset, promise)
    if judgement.verdict is Verdict.NOT_EXERCISED and not inside:
        raise not_exercised(outcome, judgement)
    return judgement.verdict


def judge_outcome(
    outcome: Outcome, known: Reference | Survey, contract: Contract | None = None
) -> Judgement:
    """The verdict; ``not_exercised`` also where torch hangs for a reason of its own."""
    contract = contract and Contract.given(contract)
    _OUTCOME.check("outcome", outcome)
    _KNOWN.check("reference", known)
    if torch_dropped_a_batch(outcome):
        sentence = (
            "torch ran out of descriptors or shared memory while sharing a batch, dropped it, and"
            " waits forever"
        )
        return Judgement(Verdict.NOT_EXERCISED, sentence, passed=False)
    if isinstance(known, Survey):
        return known.judge(outcome, contract)
    require_same_comparison(contract or Contract(), Contract())
    return outcome.judge(known, contract)


def is_violation(judgement: Judgement) -> bool:
    """Whether the dataset broke the property; not so where nothing was exercised."""
    return not judgement.passed and judgement.verdict is not Verdict.NOT_EXERCISED


def record_statistics(outcome: Outcome, judgement: Judgement) -> None:
    """Add the verdict and the faults to Hypothesis' statistics, inside one of its tests."""
    import hypothesis

    hypothesis.event("verdict", str(judgement.verdict))
    for each in outcome.faults:
        kind = type(each.fault).__name__
        hypothesis.event(kind, "fired" if each.fired else "did not fire")


def not_exercised(outcome: Outcome, judgement: Judgement) -> FaultNotFiredError:
    """The error that says why nothing was shown."""
    reason = unfired(outcome.faults, outcome.processes, outcome.engine) or judgement.sentence
    return FaultNotFiredError(f"not_exercised: {reason}")


def violation(
    outcome: Outcome,
    judgement: Judgement,
    make_dataset: DatasetFactory | None = None,
    contract: Contract | None = None,
) -> CheckFailedError:
    """The error to raise: the verdict's own explanation, and a test that repeats the trial."""
    name, home = _factory(make_dataset)
    promise = contract if contract not in {None, Contract()} else None
    again = call_in_lines(
        "replay",
        name,
        *map(repr, outcome.schedule),
        loader=outcome.loader,
        contract=promise,
        epochs=outcome.epochs if outcome.epochs != 1 else None,
        from_start=outcome.from_start or None,
        **run_settings(outcome.deadline, outcome.seed, outcome.engine),
    )
    imports = [*_imports(outcome, promise), *home]
    test = "\n".join(["", *imports, "", "", "def test_again():", f"    {again}"])
    cause = cause_of_start(outcome)
    notes = (cause.advice,) if cause else ()
    return VIOLATIONS[judgement.verdict](explain(outcome, judgement, test, notes))


def _factory(make_dataset: DatasetFactory | None) -> tuple[str, Iterable[str]]:
    """The factory as Python, and the lines that import it or say where to put it."""
    whole: Any = make_dataset
    while is_a(whole, PartOf):
        whole = whole.source
    takes = whole is not None and takes_folder(whole)
    shown = "lambda folder: MyDataset(data, cache=folder)" if takes else "lambda: MyDataset(folder)"
    missing = f"# Put here what gave the dataset, such as: {_NAMELESS} = {shown}"
    if not is_a(make_dataset, PartOf):
        return _name_of(whole) or _NAMELESS, [_home_of(whole, missing)]
    home = f"{_NAMELESS} = {_name_of(whole)}" if _name_of(whole) else ""
    part = "from pytest_dataloader_faults import part_of"
    return str(make_dataset), filter(None, [part, _home_of(whole, missing), home])


def _imports(outcome: Outcome, contract: Contract | None) -> Iterator[str]:
    """The lines above the test, which import its names or, if that cannot be done, explain them."""
    if contract is not None:
        yield "from pytest_dataloader_faults import Contract"
        for name in ("compare", "split"):
            if (function := getattr(contract, name)) is not None:
                shown = code(plain({name: function})[name])
                missing = f"# {shown}: the contract's {name}"
                yield _home_of(function, missing) if _name_of(function) == shown else missing
    yield from _explained(outcome.loader)
    if names := ", ".join(sorted({type(fault).__name__ for fault in outcome.schedule})):
        yield f"from pytest_dataloader_faults.faults import {names}"
    yield "from pytest_dataloader_faults.search import replay"


def _home_of(function: Any, missing: str) -> str:
    """The line that imports *function*; if it has no name to import it by, *missing*."""
    name = _name_of(function)
    return f"from {function.__module__} import {name.partition('.')[0]}" if name else missing


def _explained(loader: Mapping[str, Any]) -> Iterator[str]:
    """What the names mean that stand in an outcome's *loader* for values that are no plain data."""
    for option, value in loader.items():
        name = value.get("code", "") if isinstance(value, dict) else ""
        if name.isidentifier():
            yield f"# {name}: what the loader had as {option}"


def _name_of(function: Any) -> str:
    """The name that *function* has in its module; empty if others cannot import it."""
    if not is_named(function):
        return ""
    name, module = str(function.__qualname__), function.__module__
    found: object = None if module == "__main__" else sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is not None and found == function else ""
