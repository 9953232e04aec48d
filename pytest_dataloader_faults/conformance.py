"""The battery: is this dataset robust? ``check_dataset`` asks every check, or those you name.

Works without pytest; the fixture ``fault_check`` is ``Battery.check`` with a name per test item.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._battery import CHECKS, Check, Recon, Unsuitable, names_of_checks
from pytest_dataloader_faults._engine import choose
from pytest_dataloader_faults._engine._paths import Matcher
from pytest_dataloader_faults._evidence import explain
from pytest_dataloader_faults._oracle import Judgement, judge
from pytest_dataloader_faults._reproduce import code, plain
from pytest_dataloader_faults._trial import observe, take_reference
from pytest_dataloader_faults._victims import (
    EVERY_FILE,
    Files,
    globs_for,
    globs_of,
    nothing_matches,
)
from pytest_dataloader_faults.exceptions import (
    CheckFailedError,
    InvalidArgumentError,
    UnusableDatasetError,
)
from pytest_dataloader_faults.outcomes import Outcome, Reference
from pytest_dataloader_faults.verdicts import Contract, Verdict

__all__ = ("Battery", "CheckResult", "check_dataset", "select_checks")

_ON_FAIL = ("raise", "warn", None)


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Attributes:
        check: Its name.
        verdict: The verdict; ``not_exercised`` is never a pass.
        passed: Whether the contract allows it.
        explanation: The verdict in a sentence, the evidence, and how to reproduce it.
        outcome: The facts; None if the check did not apply.
        applies: False if recon showed that the check cannot be asked of this dataset.
        expected: The reason given in ``expected_failures``, if it was listed there.

    """

    check: str
    verdict: Verdict
    passed: bool
    explanation: str
    outcome: Outcome | None = None
    applies: bool = True
    expected: str | None = None

    @property
    def failed(self) -> bool:
        """Whether somebody has to be told: it fails, and neither should nor may."""
        return self.applies and (self.passed if self.expected else not self.passed)


def select_checks(
    only: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> list[str]:
    """The names of the checks to ask, in the battery's order; every name given must be one.

    Raises:
        InvalidArgumentError: A name is no check, an argument is of the wrong kind, or no check is
            left.

    """
    _arguments.check(expected_failures=expected_failures)
    wanted = set(CHECKS) if only is None else names_of_checks("only", only)
    wanted -= names_of_checks("exclude", exclude)
    names_of_checks("expected_failures", expected_failures or ())
    if not wanted:
        message = f"only={only!r} and exclude={exclude!r} leave no check to ask. Leave one"
        raise InvalidArgumentError(message)
    return [name for name in CHECKS if name in wanted]


class Battery:
    """A dataset, and what was found out about it before any fault."""

    def __init__(
        self,
        make_dataset: Callable[[], Any],
        *,
        files: Files | None = None,
        loader: Mapping[str, Any] | None = None,
        contract: Contract | None = None,
        deadline: float = 30.0,
        seed: int = 0,
        engine: str = "auto",
    ) -> None:
        self._engine = choose(engine)
        _arguments.check(make_dataset=make_dataset, deadline=deadline, seed=seed, contract=contract)
        self._make_dataset = make_dataset
        self._files = globs_of(files)
        self._loader = dict(loader or {})
        self._contract = contract or Contract()
        self._deadline = deadline
        self._seed = seed
        self._changes: dict[str, Any] = {}
        self._broken: str | None = None
        self._recon = self._look()

    @property
    def reference(self) -> Reference:
        """What the dataset gives when nothing is wrong; what ``Outcome.judge`` asks for."""
        return self._reference

    def check(
        self, name: str, *, expected: str | None = None, how: str | None = None
    ) -> CheckResult:
        """Ask one check. *how* is the command that repeats it, if there is a better one."""
        check = CHECKS[name]
        if self._broken and name != "workers-agree":
            return _not_applicable(name, self._broken, expected)
        plan = check.plan(self._recon)
        outcome = plan if isinstance(plan, Unsuitable) else self._outcome(check, plan)
        if isinstance(outcome, Unsuitable):
            return _not_applicable(name, outcome.reason, expected)
        if reason := check.moot(self._recon, outcome):
            return _not_applicable(name, reason, expected)
        judgement = self._judge(outcome, self._contract)
        text = explain(outcome, judgement, how or self._reproduce(name))
        if check.advice and not judgement.passed:
            sentence, _, evidence = text.partition("\n")
            text = f"{sentence}\n  {check.advice}.\n{evidence}"
        if judgement.passed and expected:
            text = f"expected to fail ({expected}), but it passed. Take it off the list.\n{text}"
        return CheckResult(
            name, judgement.verdict, judgement.passed, text, outcome, expected=expected
        )

    def _outcome(self, check: Check, plan: tuple[Any, ...]) -> Outcome | Unsuitable:
        """What comes of it; unsuitable where the python engine cannot make it happen."""
        if check.name == "workers-agree":
            return self._control
        changes = {**self._changes, **check.changes}
        try:
            return self._observe(changes, faults=plan, touch=check.touch, watch_files=check.touch)
        except InvalidArgumentError as error:
            if self._engine != "python":
                raise
            return Unsuitable(str(error))

    def _look(self) -> Recon:
        """Recon: the reference, then one epoch with workers and no fault."""
        reference = self._reference = self._take_reference()
        if reference.unstable is not None:
            raise UnusableDatasetError(_unstable(reference.unstable))
        control = self._control = self._observe({}, watch_files=True)
        if not self._judge(control, Contract()).passed:
            # It is wrong with several workers and no fault at all. That has a check of its own;
            # the others ask what faults do to it, with one worker that shares nothing.
            self._changes = {"num_workers": 1}
            control = self._observe(self._changes, watch_files=True)
            self._broken = self._what_breaks_it(control)
        recon = Recon.of(control, Matcher(self._files), partial(globs_for, asked=self._files))
        if self._files != EVERY_FILE and not (self._broken or recon.opened or recon.read):
            raise InvalidArgumentError(nothing_matches(self._files, control))
        return recon

    def _what_breaks_it(self, control: Outcome) -> str | None:
        found = self._judge(control, Contract())
        if found.passed:
            return None
        return (
            f"with one worker and no fault it fails already ({found.sentence}); see workers-agree"
        )

    def _judge(self, outcome: Outcome, contract: Contract) -> Judgement:
        if lacking := self._reference.lacks(outcome):
            self._reference = self._reference.with_more(self._take_reference(lacking))
        return judge(outcome, self._reference, contract)

    def _take_reference(self, asked: list[tuple[Any, ...]] | None = None) -> Reference:
        return take_reference(
            self._make_dataset,
            loader=self._loader,
            deadline=self._deadline,
            seed=self._seed,
            asked=asked,
        )

    def _observe(self, changes: Mapping[str, Any], **options: Any) -> Outcome:
        return observe(
            self._make_dataset,
            loader=self._loader,
            changes=changes,
            deadline=self._deadline,
            seed=self._seed,
            engine=self._engine,
            **options,
        )

    def _reproduce(self, name: str) -> str:
        parts = ["make_dataset", f"only={name!r}"]
        parts += [f"files={self._files!r}"] if self._files != EVERY_FILE else []
        parts += [f"loader={code(plain(self._loader))}"] if self._loader else []
        parts += [f"contract={self._contract!r}"] if self._contract != Contract() else []
        parts += [f"deadline={self._deadline}", f"seed={self._seed}"]
        parts += ["engine='python'"] if self._engine == "python" else []
        return f"check_dataset({', '.join(parts)})"


def _not_applicable(name: str, reason: str, expected: str | None) -> CheckResult:
    text = f"not_exercised: {name} does not apply to this dataset: {reason}"
    return CheckResult(name, Verdict.NOT_EXERCISED, False, text, None, False, expected)


def _unstable(index: Any) -> str:
    return (
        f"the samples are not deterministic: sample {index!r} was different when it was read a"
        " second time in the same process, so a corrupted one could not be told. Seed it by its"
        " index, or turn augmentation off in the test"
    )


def check_dataset(
    make_dataset: Callable[[], Any],
    *,
    files: Files | None = None,
    loader: Mapping[str, Any] | None = None,
    contract: Contract | None = None,
    only: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
    deadline: float = 30.0,
    seed: int = 0,
    engine: str = "auto",
    on_fail: str | None = "raise",
) -> list[CheckResult]:
    """Ask every check of the battery of the dataset that *make_dataset* returns.

    Args:
        make_dataset: Returns a map-style or iterable dataset, or a ready ``DataLoader``.
        files: Globs of the files to put at risk; by default all that the workers read.
        loader: Options of the ``DataLoader``; by default ``num_workers=2, batch_size=4``.
        contract: What the author promises beyond, or short of, the ordinary.
        only: Names of the only checks to ask.
        exclude: Names of checks to leave out.
        expected_failures: ``{check: reason}``; one of these that passes is a failure.
        deadline: Seconds for each trial.
        seed: Of the samplers and workers.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        on_fail: ``"raise"`` at the first failure, ``"warn"`` of each, or None.

    Returns:
        One result per check, also for those that do not apply.

    Raises:
        CheckFailedError: A check failed and *on_fail* is ``"raise"``.
        InvalidArgumentError, UnusableDatasetError, EngineUnavailableError: See ``run_trial``.

    """
    if on_fail not in _ON_FAIL:
        message = f"on_fail={on_fail!r} must be one of {_ON_FAIL}"
        raise InvalidArgumentError(message)
    names = select_checks(only, exclude, expected_failures)
    battery = Battery(
        make_dataset,
        files=files,
        loader=loader,
        contract=contract,
        deadline=deadline,
        seed=seed,
        engine=engine,
    )
    return list(_ask(battery, names, expected_failures or {}, on_fail))


def _ask(
    battery: Battery, names: list[str], expected: Mapping[str, str], on_fail: str | None
) -> Iterator[CheckResult]:
    for name in names:
        result = battery.check(name, expected=expected.get(name))
        if result.failed:
            text = f"{name}: {result.explanation}"
            if on_fail == "raise":
                raise CheckFailedError(text)
            if on_fail == "warn":
                warnings.warn(text, stacklevel=3)
        yield result
