"""Search the lives that a loader can have for one that convicts its dataset, and shrink it.

A life is a list of steps: a loader is made, gone through, broken off, its workers killed, faults
armed and disarmed, the dataset pickled. ``explore_lifecycle`` draws them, ``replay_life`` runs one.
The steps are in ``lifecycle``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._trial import run_lifecycle
from pytest_dataloader_faults.battery._survey import Survey, survey
from pytest_dataloader_faults.battery._targets import Files
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import (
    KINDS,
    ClosedDescriptor,
    Fault,
    OpenError,
    ReadError,
    ShortRead,
    SlowRead,
    TruncatedFile,
    has_files,
)
from pytest_dataloader_faults.lifecycle import (
    Arm,
    BreakEpoch,
    DeleteLoader,
    Disarm,
    Iterate,
    KillWorker,
    NewLoader,
    PickleDataset,
    StartEpoch,
    Step,
)
from pytest_dataloader_faults.outcomes import Contract, Verdict
from pytest_dataloader_faults.search._assertion import is_violation, not_exercised
from pytest_dataloader_faults.search._explore import Exploration, settle

__all__ = ("LifeExploration", "explore_lifecycle", "replay_life")

DEFAULT_KINDS = (OpenError, ReadError, ShortRead, TruncatedFile, SlowRead, ClosedDescriptor)
FAULTS = tuple(kind for kind in KINDS.values() if has_files(kind()))
STEPS = (
    NewLoader,
    Iterate,
    BreakEpoch,
    StartEpoch,
    KillWorker,
    Arm,
    Disarm,
    PickleDataset,
    DeleteLoader,
)
_OF_STEPS = ("num_workers", "batch_size", "persistent_workers")
_MOST_STEPS = 12


@dataclass(frozen=True)
class LifeExploration(Exploration):
    """What a search among lives has found: an ``Exploration``, and the steps.

    Attributes:
        steps: The shrunk program that convicts, or None.
        left_out: Why steps that were asked for were not drawn, or None.

    """

    steps: tuple[Step, ...] | None = None
    left_out: str | None = None
    _tried: ClassVar[str] = "lives"

    def describe(self) -> str:
        """The statistics, for people."""
        return "\n".join(filter(None, [super().describe(), self.left_out]))


def explore_lifecycle(
    make_dataset: Callable[[], Any],
    *,
    files: Files | None = None,
    kinds: Iterable[type[Fault]] | None = None,
    steps: Iterable[type[Step]] | None = None,
    max_steps: int = _MOST_STEPS,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    max_examples: int = 100,
    deadline: float = 10.0,
    seed: int | None = None,
    engine: str = "auto",
    on_fail: str | None = "raise",
    report: Callable[[str], object] | None = None,
    **settings: Any,
) -> LifeExploration:
    """Search for steps in the life of a loader after which something is not as it has to be.

    After each step: every sample that came is right, an error came only of a fault that happened to
    its workers, and tells so, and no descriptors, processes or shared memory pile up.

    Args:
        make_dataset: Returns a map-style or iterable dataset.
        files: Globs of the files to put at risk; by default all that its worker reads.
        kinds: Fault classes to arm; by default ``living.DEFAULT_KINDS``.
        steps: Classes of steps to draw; by default all that there are.
        max_steps: The most steps in one life.
        loader: Options that every loader of a life has, as ``collate_fn``.
        contract: What the author promises beyond the ordinary.
        max_examples: Lives before any shrinking.
        deadline: Seconds for each life; a hang costs as many each time it is tried.
        seed: Of the search. By default Hypothesis chooses.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        on_fail: ``"raise"``, ``"warn"`` or None.
        report: Called with the statistics, before anything is raised.
        **settings: What else ``hypothesis.settings`` takes, as ``derandomize`` or ``database``.

    Raises:
        CheckFailedError: The shrunk steps, the verdict, the evidence, a test that repeats it.
        FaultNotFiredError: No fault of any life happened, so nothing was shown.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    from pytest_dataloader_faults.search._lifecycle_runner import LifeSearch
    from pytest_dataloader_faults.search._lifecycle_strategy import programs

    _arguments.check(max_examples=max_examples, max_steps=max_steps, on_fail=on_fail, report=report)
    __tracebackhide__ = True
    _arguments.check(seed=seed or 0, deadline=deadline)
    _check_loader(loader)
    wanted = _some("kinds", DEFAULT_KINDS if kinds is None else kinds, FAULTS)
    chosen = _some("steps", STEPS if steps is None else steps, STEPS)
    how: dict[str, Any] = {"loader": loader, "deadline": deadline, "engine": engine}
    found = survey(make_dataset, files=files, contract=contract, **how)
    left_out = _left_out(chosen, found, make_dataset, how)
    search = LifeSearch(make_dataset, found, **how)
    drawn = programs(found, wanted, [each for each in chosen if each not in left_out], max_steps)
    failure = search.run(drawn, seed, max_examples=max_examples, **settings)
    shrunk = search.convicted[0] if failure and search.convicted else None
    reasons = "\n".join(left_out.values()) or None
    result = LifeExploration(**search.summary(failure), steps=shrunk, left_out=reasons)
    if report is not None:
        report(result.describe())
    settle(result, search.unexercised(), on_fail)
    return result


def _check_loader(loader: Mapping[str, Any] | None) -> None:
    _arguments.check(loader=loader)
    for name in _OF_STEPS:
        if (loader or {}).get(name) is not None:
            message = f"loader={loader!r} must not have {name!r}, which NewLoader() says"
            raise InvalidArgumentError(message)


def _some(name: str, given: Iterable[type[Any]], known: Sequence[type[Any]]) -> list[type[Any]]:
    chosen = list(given) if isinstance(given, Iterable) else []
    if not chosen or not all(each in known for each in chosen):
        allowed = ", ".join(each.__name__ for each in known)
        message = f"{name}={given!r} must be a list of one or more of {allowed}"
        raise InvalidArgumentError(message)
    return chosen


def _left_out(
    chosen: Sequence[type[Step]],
    found: Survey,
    make_dataset: Callable[[], Any],
    how: dict[str, Any],
) -> dict[type[Step], str]:
    """Those of the *chosen* steps that this dataset cannot be asked for, and why."""
    left_out: dict[type[Step], str] = {}
    if Arm in chosen and not (found.files.opens or found.files.reads):
        left_out[Arm] = "Arm() was left out: the workers of this dataset open and read no data file"
    if PickleDataset not in chosen:
        return left_out
    # A dataset need not be picklable where workers are forked.
    raised = run_lifecycle(make_dataset, (PickleDataset(),), seed=0, **how).outcome.exception
    if raised is not None:
        why = f"a new dataset cannot be pickled ({raised.type}: {raised.message})"
        left_out[PickleDataset] = f"PickleDataset() was left out: {why}"
    return left_out


def replay_life(
    make_dataset: Callable[[], Any],
    *steps: Step,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    deadline: float = 10.0,
    seed: int = 0,
    engine: str = "auto",
) -> Verdict:
    """Live through *steps* once and judge that: what a failure prints, to be pasted.

    Raises:
        CheckFailedError: The verdict, the evidence, a test that repeats it.
        FaultNotFiredError: There were faults, and none of them fired.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    from pytest_dataloader_faults.search._lifecycle_runner import lived, violation_in

    __tracebackhide__ = True
    _require_order(steps)
    _check_loader(loader)
    _arguments.check(seed=seed, deadline=deadline)
    how: dict[str, Any] = {"loader": loader, "deadline": deadline, "seed": seed, "engine": engine}
    found = survey(make_dataset, contract=contract, **how)
    outcome, judgement = lived(make_dataset, steps, found, **how)
    if is_violation(judgement):
        raise violation_in(steps, outcome, judgement, make_dataset, contract)
    if judgement.verdict is Verdict.NOT_EXERCISED:
        raise not_exercised(outcome, judgement)
    return judgement.verdict


_NEED_A_LOADER = (Iterate, BreakEpoch, StartEpoch, KillWorker)


def _require_order(steps: tuple[Any, ...]) -> None:
    """Raise InvalidArgumentError unless *steps* are steps that can follow each other."""
    if not steps:
        message = "steps=() must have one step or more: the first is NewLoader()"
        raise InvalidArgumentError(message)
    workers = None
    for number, step in enumerate(steps, start=1):
        if not isinstance(step, Step):
            message = f"step {number} is {step!r}, which is no step of a life, such as Iterate(2)"
            raise InvalidArgumentError(message)
        if isinstance(step, _NEED_A_LOADER) and workers is None:
            message = f"step {number} is {step!r}, but there is no loader: put NewLoader() before"
            raise InvalidArgumentError(message)
        if isinstance(step, KillWorker) and step.worker >= (workers or 0):
            message = f"step {number} is {step!r}, but the loader has num_workers={workers}, from 0"
            raise InvalidArgumentError(message)
        if isinstance(step, (NewLoader, DeleteLoader)):
            workers = getattr(step, "num_workers", None)
