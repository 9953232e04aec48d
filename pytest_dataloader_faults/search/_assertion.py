"""The property that every schedule of faults is to keep, and the text where one breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pytest_dataloader_faults.battery._survey import Survey, require_same_comparison
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    FaultNotFiredError,
    InvalidArgumentError,
)
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import Contract, Judgement, Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes._fault_facts import unfired
from pytest_dataloader_faults.outcomes._judge._deaths import torch_dropped_a_batch
from pytest_dataloader_faults.outcomes._judge._report import explain
from pytest_dataloader_faults.outcomes._text import code, plain

VIOLATIONS: dict[Verdict, type[CheckFailedError]] = {
    verdict: type(
        f"{verdict.value.title().replace('_', '')}Error",
        (CheckFailedError,),
        {"__doc__": f"A trial's verdict is ``{verdict}``.", "__module__": __name__},
    )
    for verdict in Verdict
}
"""A class for each: Hypothesis takes failures of one class and one place for the same bug, and
would shrink a hang into some other crime."""

_NAMELESS = "make_dataset"


def judged(
    outcome: Outcome, known: Reference | Survey, contract: Contract | None = None
) -> Judgement:
    """The verdict; ``not_exercised`` also where torch alone is to blame."""
    contract = contract and Contract.given(contract)
    if not isinstance(outcome, Outcome):
        message = f"outcome={outcome!r} must be what run_trial(...) returned"
        raise InvalidArgumentError(message)
    if not isinstance(known, (Survey, Reference)):
        message = f"reference={known!r} must be a survey(make_dataset) or a Reference"
        raise InvalidArgumentError(message)
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
    """Whether it convicts. What was not exercised is no pass either, and convicts nobody."""
    return not judgement.passed and judgement.verdict is not Verdict.NOT_EXERCISED


def note(outcome: Outcome, judgement: Judgement) -> None:
    """Tell Hypothesis' statistics, inside one of its tests."""
    import hypothesis

    hypothesis.event("verdict", str(judgement.verdict))
    for each in outcome.faults:
        kind = type(each.fault).__name__
        hypothesis.event(kind, "fired" if each.fired else "did not fire")


def violation(
    outcome: Outcome,
    judgement: Judgement,
    make_dataset: Callable[[], Any] | None = None,
    contract: Contract | None = None,
) -> CheckFailedError:
    """The error to raise: the verdict's own explanation, and a test that repeats it."""
    again = "\n".join(["", *_again(outcome, make_dataset, contract)])
    return VIOLATIONS[judgement.verdict](explain(outcome, judgement, again))


def not_exercised(outcome: Outcome, judgement: Judgement) -> FaultNotFiredError:
    """The error to raise where nobody else tells that nothing was shown."""
    reason = unfired(outcome.faults, outcome.workers, outcome.engine) or judgement.sentence
    return FaultNotFiredError(f"not_exercised: {reason}")


def _again(
    outcome: Outcome, make_dataset: Callable[[], Any] | None, contract: Contract | None
) -> list[str]:
    name = name_of(make_dataset)
    parts = [name, *map(repr, outcome.schedule), f"loader={code(outcome.loader)}"]
    import_, promise = promised(contract)
    parts += promise
    import_ += stand_ins(outcome.loader)
    parts += [f"epochs={outcome.epochs}"] if outcome.epochs != 1 else []
    parts += [f"deadline={outcome.deadline}", f"seed={outcome.seed}"]
    parts += ["engine='python'"] if outcome.engine == "python" else []
    imports = [
        *import_,
        "from pytest_dataloader_faults.search import replay",
        *faults_of(outcome.schedule),
    ]
    return to_paste(imports, f"replay({', '.join(parts)})", make_dataset)


def promised(contract: Contract | None) -> tuple[list[str], list[str]]:
    """The line that imports what *contract* takes, and the argument, if it says anything."""
    if contract in {None, Contract()}:
        return [], []
    lines = ["from pytest_dataloader_faults import Contract"]
    if contract is not None and contract.compare is not None:
        lines.append(_home_of("the contract's compare", contract.compare))
    return lines, [f"contract={contract!r}"]


def _home_of(what: str, function: Callable[..., Any]) -> str:
    """The line that imports *function* or, if that cannot be done, says what it was."""
    if (name := name_of(function)) != _NAMELESS:
        return f"from {function.__module__} import {name}"
    return f"# {code(plain({'compare': function})['compare'])}: {what}"


def stand_ins(loader: Mapping[str, Any]) -> list[str]:
    """Lines that say what the names are that stand in an outcome's *loader* for what is no data."""
    codes = {name: each.get("code", "") for name, each in loader.items() if isinstance(each, dict)}
    return [
        f"# {each}: what the loader had as {name}"
        for name, each in codes.items()
        if each.isidentifier()
    ]


def faults_of(schedule: Iterable[Fault]) -> list[str]:
    """The line that imports the faults of *schedule*, if there are any."""
    kinds = ", ".join(sorted({type(fault).__name__ for fault in schedule}))
    return [f"from pytest_dataloader_faults.faults import {kinds}"] if kinds else []


def to_paste(imports: list[str], call: str, make_dataset: Callable[[], Any] | None) -> list[str]:
    """A test to paste into a file of its own, where ``make_dataset`` is what it was."""
    name = name_of(make_dataset)
    home = "# make_dataset: what gave the dataset, as lambda: MyDataset(folder)"
    if name != _NAMELESS:
        home = f"from {getattr(make_dataset, '__module__', None)} import {name}"
    return [*imports, home, "", "def test_again():", f"    {call}"]


def name_of(make_dataset: Callable[[], Any] | None) -> str:
    """What to call the factory: its name, if it can be imported by that."""
    name = getattr(make_dataset, "__qualname__", "")
    module = getattr(make_dataset, "__module__", None) or ""
    return name if name.isidentifier() and module not in {"", "__main__"} else _NAMELESS
