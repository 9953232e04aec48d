"""The results of trials, checks and sweeps, and how they show themselves. Plain data."""

from __future__ import annotations

import errno
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from pytest_dataloader_faults._arguments import PrintsItself
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.outcomes.contract import (
    EXACT,
    Comparison,
    Contract,
    Judgement,
    Verdict,
)
from pytest_dataloader_faults.outcomes.records import Event, TrialFacts
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import DONE
from pytest_dataloader_faults.outcomes.text import counted, printable, printable_lines

_MOST = 200
"""Characters of a value that is shown on one line: a schedule may list thousands of paths."""


class Shown:
    """Base of results, which say what they show; ``to_dict`` and the attributes have it all."""

    __slots__ = ()
    _repr_pretty_ = PrintsItself()

    def _facts(self) -> Iterator[tuple[str, object]]:
        """Names and values for the one line."""
        raise NotImplementedError

    def _texts(self) -> Iterator[tuple[str, str]]:
        """Names and longer texts, for the table alone."""
        yield from ()

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={_on_one_line(value)}" for name, value in self._facts())
        return f"<{type(self).__name__}: {told}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the same as the one line, and the longer texts."""
        rows = [
            _row(name, f"<td>{escape(_on_one_line(value))}</td>") for name, value in self._facts()
        ]
        rows += [
            _row(name, f"<td><pre>{escape(printable_lines(text))}</pre></td>")
            for name, text in self._texts()
        ]
        return f"<table>{''.join(rows)}</table>"


def _row(name: str, cell: str) -> str:
    return f"<tr><th>{escape(name)}</th>{cell}</tr>"


def _on_one_line(value: object) -> str:
    text = printable(str(value))
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


@dataclass(frozen=True, repr=False)
class Outcome(Shown, TrialFacts):  # noqa: D101  # it has that of TrialFacts
    __doc__ = TrialFacts.__doc__
    ranks: tuple[Outcome, ...] = ()

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "schedule", self.schedule
        if self.ranks:
            yield "rank", f"{self.rank} of {len(self.ranks)}"
        yield "fired", self.fired
        yield "batches", len(self.delivered)
        if self.exception:
            yield "exception", self.exception.type
        if self.phase != DONE:
            yield "phase", self.phase
        if self.timed_out or self.died:
            yield "ended", self.died or "by the deadline"
        yield "duration", f"{self.duration:g} s"

    def _texts(self) -> Iterator[tuple[str, str]]:
        yield "repeat", self.reproduce()

    def judge(self, reference: Reference, contract: Contract | None = None) -> Judgement:
        """The verdict on these facts, given what the dataset gives when nothing is wrong.

        Raises:
            ValueError: *reference* does not know a batch that was delivered.
            InvalidArgumentError: The samples of *reference* were compared in another way.
        """
        # Imported on use: the process of a trial does not load the judge.
        from pytest_dataloader_faults.outcomes.judge import judge

        return judge(self, reference, contract or Contract())


@dataclass(frozen=True, repr=False)
class CheckResult(Shown):
    """What one check found.

    Attributes:
        check: Its name.
        verdict: The verdict; ``not_exercised`` is never a pass.
        passed: Whether the contract allows it.
        sentence: What was found, on one line, without the verdict.
        explanation: The verdict in a sentence, the evidence, and how to reproduce it.
        outcome: The facts; None if the check did not apply.
        applies: False if the check does not apply to this dataset.
        expected: The reason given in ``expected_failures``, if it was listed there.
        reproduced: False if one trial failed, and two more of the same kind passed.
        notes: What to know about the dataset: how many of its samples were looked at, where that is
            not all; that a check of files read a new cache, or that each run writes the files; to
            which hosts the workers connected; that a time limit of a client was not reached.
        cause: What the dataset is likely to do wrong, in a few words; "" if it passed. Of a check
            that does not apply: why, where the dataset has what the check is about.
        fix: What to do about the cause, in one sentence; "" if there is no cause.
        trials: The outcome of each trial: one, or two or three where the first was not as expected;
            of each variant, where the check has several.
        part: Which of several loaders or datasets it is about, or None.
        parts: The results of each of them, where this one sums them up.
        reproduce: The command or the code that runs it again; "" if there was no trial.
    """

    check: str
    verdict: Verdict
    passed: bool
    sentence: str
    explanation: str
    outcome: Outcome | None = None
    applies: bool = True
    expected: str | None = None
    reproduced: bool = True
    notes: tuple[str, ...] = ()
    trials: tuple[Outcome, ...] = ()
    cause: str = ""
    fix: str = ""
    part: str | None = None
    parts: tuple[CheckResult, ...] = ()
    reproduce: str = ""

    @property
    def failed(self) -> bool:
        """Whether the dataset fails the check each time, and was not expected to fail it.

        True also where the dataset passes a check that it was expected to fail.
        """
        if not (self.applies and self.reproduced):
            return False
        return self.passed if self.expected else not self.passed

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield from _named(self, "part", None)
        yield from _named(self, "check", "")
        yield "verdict", self.verdict
        yield "passed", self.passed
        yield from _named(self, "applies", True)
        yield from _named(self, "reproduced", True)
        yield from _named(self, "expected", None)
        yield from _named(self, "cause", "")
        yield from _named(self, "fix", "")
        if self.outcome:
            yield from self.outcome._facts()

    def _texts(self) -> Iterator[tuple[str, str]]:
        yield "explanation", self.explanation


def _named(result: object, name: str, usual: object) -> Iterator[tuple[str, object]]:
    """The attribute *name* of *result*, unless its value is the *usual* one."""
    value = getattr(result, name)
    if value != usual:
        yield name, value


@dataclass(frozen=True, repr=False)
class SweepStep(Shown):
    """One trial of a sweep.

    Attributes:
        fault: The fault, as it was asked for.
        fired: How often it happened, over all workers; 0 where there were fewer operations.
        verdict: The verdict; ``not_exercised`` at the end of a row of steps.
        passed: Whether the contract allows it, or nothing fired and nothing went wrong.
        explanation: The verdict, the evidence, and how to repeat this step alone.
    """

    fault: Fault
    fired: int
    verdict: Verdict
    passed: bool
    explanation: str

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "fault", self.fault
        yield "fired", self.fired
        yield "verdict", self.verdict
        yield "passed", self.passed

    def _texts(self) -> Iterator[tuple[str, str]]:
        yield "explanation", self.explanation


@dataclass(frozen=True, repr=False)
class SweepResult(Shown):
    """What a sweep found.

    Attributes:
        steps: The trials, in order.
        next: The fault to go on with, as ``start_at``; None if nothing is left to try.
    """

    steps: tuple[SweepStep, ...]
    next: Fault | None = None

    @property
    def complete(self) -> bool:
        """Whether every row of steps came to its end."""
        return self.next is None

    @property
    def counts(self) -> dict[str, int]:
        """How many steps had each verdict; those in which nothing fired are left out."""
        return dict(Counter(str(each.verdict) for each in self.steps if not _is_exhausted(each)))

    def table(self) -> str:
        """A line per N, a column per kind of fault, and the counts."""
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        end = "complete" if self.complete else f"stopped; go on with start_at={self.next!r}"
        total = f"{counted(len(self.steps), 'trial')}: {counts or 'no fault fired'}; {end}"
        return "\n".join([*_lines(self.steps), total])

    __str__ = table

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "steps", len(self.steps)
        yield "counts", self.counts
        yield "complete", self.complete
        if self.next:
            yield "next", self.next

    def _texts(self) -> Iterator[tuple[str, str]]:
        yield "table", self.table()


def _is_exhausted(step: SweepStep) -> bool:
    return step.fired == 0 and step.passed


def _lines(steps: tuple[SweepStep, ...]) -> Iterator[str]:
    cells: dict[tuple[int, str], str] = {}
    for each in steps:
        fault: Any = each.fault
        cells[fault.nth, _title(fault)] = "." if _is_exhausted(each) else str(each.verdict)
    titles = list(dict.fromkeys(title for _, title in cells))
    yield "  ".join(["   N", *titles]).rstrip()
    for number in sorted({number for number, _ in cells}):
        columns = [cells.get((number, title), "").ljust(len(title)) for title in titles]
        yield "  ".join([f"{number:4}", *columns]).rstrip()


def _title(fault: Any) -> str:
    code = getattr(fault, "errno", None)
    name = f"{type(fault).__name__} {errno.errorcode.get(code, code)}" if code else str(fault)
    return f"{name}, {'once' if fault.times == 1 else 'every time'}"


_BY_RANK = (("epoch", "error", "exit"), ("batch",), ("fault",), ("fetch",), ("open",))
"""Kinds of events: each rank has what room those before it leave."""
_MODEST = ("batch", "fetch")
"""They take half of that room at most, since the next rank would have none."""
_PLURALS = {"batch": "batches", "fetch": "fetches"}


def bounded(events: Sequence[Event], most: int) -> list[Event]:
    """At most *most* of *events*, which are in order, and one in each place where others were.

    Of a kind that is too frequent the first and the last are kept. Faults crowd out no batch, no
    epoch and no error.
    """
    kept = {id(each) for each in _chosen(events, most)}
    shown = [each for each in events if id(each) in kept]
    groups: dict[tuple[str, str], list[Event]] = {}
    for each in events:
        groups.setdefault((each.process, each.kind), []).append(each)
    gaps = (gap for group in groups.values() for gap in _gaps(group, kept))
    return sorted([*shown, *gaps], key=lambda each: each.time)


def gap(time: float, process: str, kind: str, count: int) -> Event:
    """What stands for *count* events that are left out between two others of their kind."""
    plural = _PLURALS.get(kind, f"{kind}s")
    text = f"{count:,} more {kind if count == 1 else plural}, left out here"
    return Event(time, process, kind, text, omitted=count)


def _chosen(events: Sequence[Event], most: int) -> Iterator[Event]:
    room = most
    for kinds in _BY_RANK:
        found = [each for each in events if each.kind in kinds and not each.omitted]
        share = room // 2 if set(kinds) & {*_MODEST} else room
        chosen = _without_middle(found, share)
        room -= len(chosen)
        yield from chosen


def _without_middle(events: list[Event], most: int) -> list[Event]:
    if len(events) <= most:
        return events
    last = most // 2
    return [*events[: most - last], *events[len(events) - last :]]


def _gaps(group: Iterable[Event], kept: set[int]) -> Iterator[Event]:
    """One for each run of events of the *group* that are not *kept*."""
    before: Event | None = None
    for is_kept, run in itertools.groupby(group, key=lambda each: id(each) in kept):
        found = list(run)
        if is_kept:
            before = found[-1]
            continue
        count = sum(each.omitted or 1 for each in found)
        yield gap((before or found[0]).time, found[0].process, found[0].kind, count)


@dataclass(frozen=True, repr=False)
class Exploration(Shown):
    """What a search has found.

    Attributes:
        trials: How many trials ran, with those of shrinking.
        examples: How many trials it took to find the first failure; None if there was none.
        verdicts: How many trials had each verdict, before any shrinking.
        attempted: In how many trials there was a fault of each kind.
        fired: In how many of these trials it happened.
        failure: The explanation of the shrunk failure, or None.
        outcome: The facts of the shrunk failure, or None.
        verdict: The verdict of the shrunk failure. Without a failure ``failed_cleanly`` if any
            trial failed, else ``survived``, or ``not_exercised`` if no fault of any trial fired.
        comparison: What of samples was compared, as in an ``Outcome``.

    """

    trials: int
    examples: int | None
    verdicts: Counter[str] = field(default_factory=Counter)
    attempted: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    outcome: Outcome | None = None
    verdict: Verdict = Verdict.SURVIVED
    comparison: Comparison = EXACT

    def describe(self) -> str:
        """The statistics, for people."""
        total = sum(self.verdicts.values())
        shown = total - self.verdicts[Verdict.NOT_EXERCISED.value]
        found = "" if self.examples is None else f", {self.trials - total} more to shrink one"
        lines = [f"{counted(total, 'example')} tried{found}; {shown} of them showed something"]
        lines += [f"  {verdict}: {count}" for verdict, count in self.verdicts.most_common()]
        if self.comparison != EXACT:
            lines.append(f"  samples were compared by {self.comparison}")
        kinds = sorted(self.attempted.items())
        lines += [f"  {kind}: fired in {self.fired[kind]} of {count}" for kind, count in kinds]
        return "\n".join(lines)

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "verdict", self.verdict
        yield "trials", self.trials
        yield "verdicts", dict(self.verdicts)
        if self.failure:
            yield "examples", self.examples
        if self.outcome:
            yield from self.outcome._facts()

    def _texts(self) -> Iterator[tuple[str, str]]:
        yield "statistics", self.describe()
        if self.failure:
            yield "failure", self.failure
