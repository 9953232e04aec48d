"""What a check is, and the plans that several checks share. Pure."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeAlias

from pytest_dataloader_faults import _arguments as allow
from pytest_dataloader_faults.battery.targets import titles_of
from pytest_dataloader_faults.battery.workload import NotApplicable, Workload, map_applicable
from pytest_dataloader_faults.exceptions import InvalidArgumentError, InvalidCheckError
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes import CheckResult, Outcome, Reference, Verdict
from pytest_dataloader_faults.outcomes.contract import Cause, Finding
from pytest_dataloader_faults.outcomes.text import pluralize
from pytest_dataloader_faults.steps import PROCESSES, Action, TrialOptions, run_epochs

WORKERS_AGREE = "workers-agree"
PATIENCE = 1.0
"""Seconds. A dataset or a client with a shorter timeout raises an error before that."""
_TEXT = allow.ArgumentRule(lambda value: isinstance(value, str), "a str")
_FLAGS = [each.name for each in fields(TrialOptions) if isinstance(each.default, bool)]


_LOADER_OPTIONS = (
    *("batch_size", "drop_last", "multiprocessing_context", "num_workers", "persistent_workers"),
    *("pin_memory", "prefetch_factor", "sampler", "shuffle", "timeout", "worker_init_fn"),
)


def _is_loader(value: object) -> bool:
    if not isinstance(value, Mapping) or not set(value) <= set(_LOADER_OPTIONS):
        return False
    return value.get("batch_size", 1) is not None


def _is_faults(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, Fault) for each in value)


def _are_parts(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(each, Scenario) and not (each.faults or each.parts) for each in value
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Scenario(allow.Checked, TrialOptions):
    """What the trial of a check does; the attributes of ``TrialOptions`` belong to it as well.

    If a plan returns several scenarios, the dataset must pass each of them.

    Attributes:
        faults: The faults of the trial.
        title: What distinguishes it from the other scenarios of its check, in a few words.
        loader: Options of the ``DataLoader`` that it needs.
        circumstance: The start of its verdict sentence, or "".
        keep_randomness: Whether random numbers are left unseeded, whatever the contract says. Then
            only types and shapes are compared.
        ranks: Whether the trial has several ranks.
        on_rank: The rank that gets the faults; None for the last one whose workers read.
        shares_folder: Whether all ranks get the same folder, if make_dataset takes one.
        deadlines: How many times the usual deadline the trial may take.
        require_effect: A function of the workload and the outcome that raises ``NotApplicable`` if
            the trial proves nothing; or None.
        parts: Scenarios that decide if the dataset does not pass this one, or if it proves nothing.
            Otherwise they need no trials. Neither the scenario nor a part has faults.
        unless_met: The title of an earlier scenario of the check; this one runs only if no fault of
            that one happened in a worker, and the dataset passed it. None to run in any case.
    """

    faults: tuple[Fault, ...] = ()
    title: str = ""
    loader: Mapping[str, Any] = field(default_factory=dict)
    circumstance: str = ""
    keep_randomness: bool = False
    ranks: bool = False
    on_rank: int | None = None
    shares_folder: bool = False
    deadlines: int = 1
    require_effect: Callable[[Workload, Outcome], None] | None = None
    parts: tuple[Scenario, ...] = ()
    unless_met: str | None = None

    _rules: ClassVar = {
        **dict.fromkeys((*_FLAGS, "keep_randomness", "ranks", "shares_folder"), allow.FLAG),
        **dict.fromkeys(("title", "circumstance"), _TEXT),
        "processes": PROCESSES,
        "patience": allow.optional(allow.SECONDS.allows, "a positive number of seconds, or None"),
        "measuring": allow.SECONDS,
        "deadlines": allow.ArgumentRule(allow.at_least(1), "an int, 1 or more"),
        "descriptors": allow.optional(allow.at_least(1), "an int, 1 or more, or None"),
        "on_rank": allow.optional(allow.at_least(0), "an int, 0 or more, or None"),
        "faults": allow.ArgumentRule(_is_faults, "a tuple of faults, such as (OpenError('*.h5'),)"),
        "loader": allow.ArgumentRule(
            _is_loader,
            f"a dict whose keys are among {', '.join(_LOADER_OPTIONS)}; options that change what a"
            " batch consists of belong in the test: fault_check(..., loader=...)",
        ),
        "require_effect": allow.optional(
            callable, "a function of the workload and the outcome, or None"
        ),
        "parts": allow.ArgumentRule(_are_parts, "a tuple of scenarios without faults or parts"),
        "unless_met": allow.optional(lambda value: isinstance(value, str), "a title, or None"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("faults", not (self.faults and self.parts), "() in a scenario with parts")

    @property
    def options(self) -> TrialOptions:
        """The part that the process of the trial needs."""
        return TrialOptions(
            **{each.name: getattr(self, each.name) for each in fields(TrialOptions)}
        )

    @property
    def is_before_init(self) -> bool:
        """Whether faults are armed before the dataset is created, in its single rank."""
        return not self.ranks and self.processes[0][0] is Action.ARM

    @property
    def uses_accelerator(self) -> bool:
        """Whether it needs an accelerator."""
        return self.has_step(Action.USE_ACCELERATOR)

    def with_defaults(self, defaults: Scenario) -> Scenario:
        """The same scenario, with what it leaves open from *defaults*."""
        own = {
            each.name: value
            for each in fields(self)
            if (value := getattr(self, each.name)) != getattr(_EMPTY, each.name)
        }
        return replace(defaults, **{**own, "loader": {**defaults.loader, **self.loader}})


_EMPTY = Scenario()
Scenarios: TypeAlias = tuple[Scenario, ...]
Plan: TypeAlias = Callable[[Workload], Iterable[Scenario]]
Rule: TypeAlias = Callable[[Outcome, Reference], Finding | None]
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PLANNED = allow.ArgumentRule(
    lambda value: isinstance(value, tuple) and bool(value) and set(map(type, value)) == {Scenario},
    "one or more scenarios: yield each of them, do not return it; or raise NotApplicable(reason) if"
    " the check does not apply",
)
_FOUND = allow.optional(
    lambda value: isinstance(value, Finding) and not value.passed and bool(value.sentence),
    "a Finding with a sentence and a verdict that is not a pass, or None if there is no violation",
)
_DECIDE_WORKLOAD = ("ranks", "is_before_init", "uses_accelerator")
"""They decide which workload a plan receives."""
_UNMATCHED = Cause(
    "its plan has a fault that matches nothing",
    "Take the path from the workload, as in workload.read.path, and pass the path of a single file"
    " through glob.escape()",
)
_NOTHING_TO_HIT = _UNMATCHED._replace(
    advice="The workers do nothing that this fault could hit. Raise NotApplicable(reason) for such"
    " a dataset, and choose its arguments from what the workers do, as in at=workload.fetches"
)
_LATE = Cause(
    "its plan has a fault that comes too late",
    "Choose nth from what the workers do without faults, as in workload.reads",
)
_SAME = "{}, as in the scenario of the check, which its plan cannot change"


@dataclass(frozen=True, repr=False)
class Check(allow.Checked):
    """One check of the battery.

    Attributes:
        name: Its name in ids, options, reports and baselines: lower-case words joined by hyphens.
        promise: What a dataset that passes it does, or what happens to the dataset.
        plan: A function of the workload. Returns a fault, several faults for one trial, a
            ``Scenario`` or several of them; raises ``NotApplicable`` if the check does not apply.
        rule: A function of the outcome and the reference. Returns a ``Finding`` for a violation
            that only this check looks for, or None. It is called if the judge found only an unclear
            error, or nothing.
        describe: A function of the outcome and the finding, which may be a pass. Returns the
            sentence of the finding.
        note: A function of the outcome. Returns what to know about a dataset that passes, which
            the summary shows, or "".
        cause: The likely cause of wrong samples, if the check itself shows it; or None.
        advice: How to fix a failure, in addition to the evidence.
        preface: What the check does, for readers of the advice.
        scenario: What the scenarios of the plan leave open, such as the number of epochs: each
            attribute that has its default there.
        is_about_errors: Whether preface and advice also explain an error without a fault. Otherwise
            such an error may be raised in any check.
        origin: The file of a check that the user added; "" for a check of this package.
    """

    name: str
    promise: str
    plan: Plan
    _: KW_ONLY
    rule: Rule | None = None
    describe: Callable[[Outcome, Finding], str] | None = None
    note: Callable[[Outcome], str] | None = None
    cause: Cause | None = None
    advice: str = ""
    preface: str = ""
    scenario: Scenario = _EMPTY
    is_about_errors: bool = False
    origin: str = field(default="", compare=False)

    _rules: ClassVar = {
        **dict.fromkeys(("promise", "advice", "preface", "origin"), _TEXT),
        "name": allow.ArgumentRule(
            lambda value: isinstance(value, str) and _NAME.fullmatch(value) is not None,
            "lower-case words and digits joined by hyphens, such as 'stale-handle'",
        ),
        "plan": allow.ArgumentRule(callable, "a function of the workload"),
        "rule": allow.optional(callable, "a function of the outcome and the reference, or None"),
        "describe": allow.optional(callable, "a function of the outcome and the finding, or None"),
        "note": allow.optional(callable, "a function of the outcome, or None"),
        "cause": allow.optional(lambda value: isinstance(value, Cause), "a Cause, or None"),
        "scenario": allow.ArgumentRule(lambda value: isinstance(value, Scenario), "a Scenario"),
        "is_about_errors": allow.FLAG,
    }

    def plan_scenarios(self, workload: Workload) -> Scenarios:
        """The scenarios for *workload*; raises NotApplicable if the check does not apply."""
        with self._report_errors("plan", NotApplicable):
            planned = self.plan(workload)
            # A user's plan may return anything.
            planned = tuple(planned) if isinstance(planned, Iterable) else planned
            _PLANNED.check("result", planned)
            scenarios = tuple(each.with_defaults(self.scenario) for each in planned)
            for scenario, name in itertools.product(
                scenarios, _DECIDE_WORKLOAD if self.origin else ()
            ):
                given = getattr(self.scenario, name)
                is_same = functools.partial(operator.eq, given)
                same = allow.ArgumentRule(is_same, _SAME.format(given))
                same.check(name, getattr(scenario, name), owner="Scenario")
        return scenarios

    def require_effect(self, scenario: Scenario, workload: Workload, outcome: Outcome) -> None:
        """Raise NotApplicable if the trial of *scenario* proves nothing."""
        if scenario.require_effect is not None:
            with self._report_errors("require_effect", NotApplicable):
                scenario.require_effect(workload, outcome)

    def refine(self, finding: Finding, outcome: Outcome, reference: Reference) -> Finding:
        """Apply the rule and the wording of this check to the *finding* of the judge."""
        if finding.verdict is Verdict.NOT_EXERCISED:
            finding = self._find_unused_fault(outcome) or finding
        # What a check looks for is more severe than an error that hides its cause.
        elif finding.passed or finding.verdict is Verdict.FAILED_UNCLEARLY:
            violation = self._find_unused_fault(outcome) or self._apply_rule(outcome, reference)
            if violation and violation.verdict is finding.verdict:  # Only its words differ.
                violation = replace(violation, library=finding.library)
            finding = violation or finding
        if finding.verdict is Verdict.CORRUPTED and finding.cause is None:
            finding = replace(finding, cause=self.cause)
        if self.describe is None:
            return finding
        with self._report_errors("describe"):
            return replace(finding, sentence=self.describe(outcome, finding))

    def note_on(self, result: CheckResult) -> tuple[str, ...]:
        """What to know about a dataset that passes, as the trials of *result* show it."""
        if self.note is None or not result.passed:
            return ()
        with self._report_errors("note"):
            texts = [self.note(outcome) for outcome in result.trials]
            for text in texts:
                _TEXT.check("result", text)
        return tuple(dict.fromkeys(filter(None, texts)))

    def _apply_rule(self, outcome: Outcome, reference: Reference) -> Finding | None:
        """The violation that only this check looks for, if there is one."""
        if self.rule is None:
            return None
        with self._report_errors("rule"):
            finding = self.rule(outcome, reference)
            _FOUND.check("result", finding)
        if finding is None or finding.cause is not None or not self.origin:
            return finding
        # The usual cause of a verdict is that of the package's own rules.
        return replace(finding, cause=Cause(finding.sentence))

    def _find_unused_fault(self, outcome: Outcome) -> Finding | None:
        """A mistake of a user's plan: a fault that matched nothing, or none that fired."""
        unused = [each for each in outcome.faults if not (each.matched or each.fired)]
        if not unused and not outcome.fired:
            unused = list(outcome.faults)
        if not (self.origin and unused):
            return None
        fault, matched = unused[0].fault, unused[0].matched
        operations = pluralize(matched, "operation") if matched else "no operation of a worker"
        sentence = f"{fault!r} matched {operations}, and did not fire: the trial proves nothing"
        # A better path does not help a fault that has none, or that hits every file or connection.
        is_limited = any(each.rpartition("//")[2] != "*" for each in fault.globs)
        unmatched = _UNMATCHED if is_limited else _NOTHING_TO_HIT
        return Finding(Verdict.NOT_EXERCISED, sentence, _LATE if matched else unmatched)

    def error(self, text: str) -> InvalidCheckError:
        """An error of a user's check, which its *text* explains."""
        return InvalidCheckError(f"check {self.name!r} in {self.origin}: {text}")

    @contextlib.contextmanager
    def _report_errors(self, function: str, *allowed: type[Exception]) -> Iterator[None]:
        """Name the check and its file in an error of the user's *function*."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, (*allowed, KeyboardInterrupt)) or not self.origin:
                raise
            is_own = isinstance(error, InvalidArgumentError)
            text = str(error) if is_own else f"it raised {type(error).__name__}: {error}"
            raise self.error(f"its {function}: {text}") from error


def check(name: str, promise: str, **options: Any) -> Callable[[Plan], Check]:
    """Make a check of the plan that is decorated, with a *name* and the *promise* of a dataset.

    *options*: the other attributes of ``Check``. The plan is a generator: a function of the
    workload that yields each scenario. Its docstring says why the faults are chosen so.
    """
    return lambda plan: Check(name, promise, plan, **options)


def for_each_kind(plan: Plan) -> Plan:
    """Apply *plan* to one kind of file after the other, so that an index does not hide the data.

    If all files failed at once, each trial would end at the index, and the effect of a damaged
    shard would remain unknown. A check applies if it applies to one kind.
    """

    def plan_kind(titled_kind: tuple[str, Workload]) -> Scenarios:
        title, kind = titled_kind
        return tuple(
            replace(scenario, title=", ".join(filter(None, (title, scenario.title))))
            for scenario in plan(kind)
        )

    @functools.wraps(plan)
    def plan_kinds(workload: Workload) -> Iterator[Scenario]:
        kinds = workload.kinds
        if len(kinds) == 1:
            yield from plan(workload)
            return
        titled_kinds = zip(titles_of([kind.paths for kind in kinds]), kinds, strict=True)
        yield from itertools.chain.from_iterable(map_applicable(plan_kind, titled_kinds, []))

    return plan_kinds


def at_rest(plan: Plan) -> Plan:
    """Arm the faults of *plan* before the dataset is created, as damage on a disk is.

    A file is rarely truncated while a worker has it open. So the constructor gets the chance to
    notice the damage, and files that it opens or maps are damaged as well. The faults are armed in
    the workers for files that each run writes anew, for all if the constructor cannot be monitored,
    and if no worker meets the damage at rest: the constructor may raise an error, or leave out a
    file that is missing. Then it is unknown what workers do with a file that is damaged later.
    """

    def plan_part(part: Workload) -> Scenarios:
        try:
            planned = tuple(plan(part))
        except NotApplicable as refusal:
            raise part.refusal or refusal from None
        processes = run_epochs(before_init=part.is_at_rest)
        return tuple(replace(scenario, processes=processes) for scenario in planned)

    @functools.wraps(plan)
    def plan_at_rest(workload: Workload) -> Iterator[Scenario]:
        parts = workload.at_rest or (workload,)
        if parts[0].refusal is not None and parts[0].refusal.fatal is not None:
            raise parts[0].refusal
        yield from itertools.chain.from_iterable(map_applicable(plan_part, parts, []))
        with contextlib.suppress(NotApplicable):
            for scenario in plan(workload) if workload.opened.paths else ():
                title = ", ".join(filter(None, (scenario.title, "in the workers only")))
                yield replace(scenario, title=title, unless_met=scenario.title)

    return plan_at_rest


def in_constructor(plan: Plan) -> Plan:
    """Apply *plan* to what the constructor does, with faults from before it is called."""

    @functools.wraps(plan)
    def plan_constructor(workload: Workload) -> Iterator[Scenario]:
        if workload.monitored is None:
            raise NotApplicable("its constructor cannot be monitored")
        for scenario in plan(workload.monitored):
            yield replace(scenario, processes=run_epochs(before_init=True))

    return plan_constructor


def plan_each(plans: Iterable[Plan], workload: Workload) -> Iterator[Scenario]:
    """The scenarios of those *plans* that apply. Raises NotApplicable if none does."""
    scenarios = map_applicable(lambda plan: tuple(plan(workload)), plans, [])
    yield from itertools.chain.from_iterable(scenarios)
