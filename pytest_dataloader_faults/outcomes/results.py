"""The results of trials and checks, and how they are shown. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from pytest_dataloader_faults._arguments import PrintsItself, StrEnum
from pytest_dataloader_faults.outcomes.agreement import EXACT, Comparison
from pytest_dataloader_faults.outcomes.contract import Finding, Verdict
from pytest_dataloader_faults.outcomes.records import TrialFacts
from pytest_dataloader_faults.outcomes.stages import DONE
from pytest_dataloader_faults.outcomes.text import (
    pluralize,
    printable,
    printable_lines,
    was_or_were,
)
from pytest_dataloader_faults.wire import Note, register

_MOST = 200
"""Characters of a value that is shown on one line: a schedule may list thousands of paths."""


class Shown:
    """Base of results: a short ``repr``; the attributes and ``to_dict`` have everything."""

    __slots__ = ()
    _repr_pretty_ = PrintsItself()

    def _facts(self) -> Iterator[tuple[str, object]]:
        """Names and values for the one line."""
        raise NotImplementedError

    def _texts(self) -> Iterator[tuple[str, str]]:
        """Names and longer text, only for the table."""
        yield from ()

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={_on_one_line(value)}" for name, value in self._facts())
        return f"<{type(self).__name__}: {facts}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the facts of the ``repr``, and the longer text."""
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


# Some facts about ranks. In a training job of several processes, each has a rank and its own
# loader. After each batch, the ranks average their gradients in a collective, which waits until all
# of them have joined. A collective does not know batches or epochs: the n-th calls of all ranks
# meet. So a rank that has one batch fewer than the others meets them one batch later in its next
# epoch, and in the last epoch they wait for it forever: NCCL for half an hour, and gloo until the
# process of that rank exits.


class Reason(StrEnum):
    """Why a rank is missing in a collective in which others wait."""

    FINISHED = "finished"
    """It has received all batches of its last epoch."""
    FAILED = "failed"
    """An error ended its epoch."""
    GONE = "gone"
    """Its process has exited."""


@dataclass(frozen=True)
class Position:
    """The position of a rank when it met the others.

    Attributes:
        epoch: The epoch of the trial, from 1.
        batch: The batch of that epoch, from 1.
    """

    epoch: int
    batch: int


@dataclass(frozen=True)
class Absence(Note):
    """A rank that was missing in a collective, which ended the epochs of another one.

    Attributes:
        rank: The missing rank; None if it is unknown.
        reason: Why it was missing.
        position: Where the rank was that waited.
    """

    rank: int | None
    reason: Reason
    position: Position


@dataclass(frozen=True)
class EpochsApart(Note):
    """Ranks that met each other in different epochs.

    Attributes:
        positions: Where each rank was when that first happened.
    """

    positions: tuple[Position, ...]


@dataclass(frozen=True)
class FolderShared(Note):
    """The rank shared the folder that make_dataset receives with the others."""


register(Absence, EpochsApart, FolderShared)


def has_lost_rank(outcome: TrialFacts) -> bool:
    """Whether its error is gloo's about a rank that has exited."""
    return outcome.exception is not None and "gloo/transport/" in outcome.exception.message


@dataclass(frozen=True, repr=False)
class Outcome(Shown, TrialFacts):  # noqa: D101  # it has that of TrialFacts
    __doc__ = TrialFacts.__doc__
    ranks: tuple[Outcome, ...] = ()

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "schedule", self.schedule
        if self.ranks:
            yield "rank", f"{self.request.rank} of {len(self.ranks)}"
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


@dataclass(frozen=True, repr=False)
class CheckResult(Shown):
    """The result of one check.

    Attributes:
        check: The name of the check.
        finding: What the trials show together.
        verdict: The verdict of *finding*; ``not_exercised`` is never a pass.
        passed: Whether the verdict is a pass under the contract.
        sentence: What was observed, on one line, without the verdict.
        explanation: The verdict in a sentence, the evidence, and how to reproduce it.
        outcome: The facts; None if the check did not apply.
        applies: False if the check does not apply to this dataset.
        expected: The reason from ``expected_failures``, if the check is listed there.
        reproduced: False if the check is flaky: one trial failed, but two repeats passed.
        notes: Remarks on the run: how many samples were checked, if not all; that a file check read
            a newly created cache, or that every run writes the files; which hosts the workers
            connected to; that a client's timeout was not reached.
        cause: What the dataset is likely to do wrong, in a few words; "" if it passed. For a check
            that does not apply: why, if the dataset has what the check is about.
        fix: What to do about the cause, in one sentence; "" if there is no cause.
        trials: The outcome of each trial: one, or two or three if the first was not as expected;
            those of every scenario, if the check has several.
        reproduce: The command or the code that runs the check again; "" if there was no trial.
    """

    check: str
    finding: Finding
    explanation: str = ""
    outcome: Outcome | None = None
    applies: bool = True
    expected: str | None = None
    reproduced: bool = True
    notes: tuple[str, ...] = ()
    trials: tuple[Outcome, ...] = ()
    reproduce: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict of the finding."""
        return self.finding.verdict

    @property
    def passed(self) -> bool:
        """Whether the verdict is a pass."""
        return self.finding.passed

    @property
    def sentence(self) -> str:
        """The sentence of the finding."""
        return self.finding.sentence

    @property
    def cause(self) -> str:
        """The phrase of the likely cause."""
        return self.finding.cause.phrase if self.finding.cause else ""

    @property
    def fix(self) -> str:
        """The fix of the likely cause."""
        return self.finding.cause.fix if self.finding.cause else ""

    @property
    def warns(self) -> bool:
        """Whether the failure is only a warning, about an error that a library raised."""
        return bool(self.finding.library) and self.reproduced and not self.expected

    @property
    def failed(self) -> bool:
        """Whether the dataset fails the check every time, and was not expected to fail it.

        Also true if the dataset passes a check that it was expected to fail.
        """
        if not (self.applies and self.reproduced) or self.warns:
            return False
        return self.passed if self.expected else not self.passed

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield from _drop_usual(self, "check", "")
        yield "verdict", self.verdict
        yield "passed", self.passed
        yield from _drop_usual(self, "applies", True)
        yield from _drop_usual(self, "reproduced", True)
        yield from _drop_usual(self, "warns", False)
        yield from _drop_usual(self, "expected", None)
        yield from _drop_usual(self, "cause", "")
        yield from _drop_usual(self, "fix", "")
        if self.outcome:
            yield from self.outcome._facts()

    def _texts(self) -> Iterator[tuple[str, str]]:
        yield "explanation", self.explanation


def _drop_usual(result: object, name: str, usual: object) -> Iterator[tuple[str, object]]:
    """The attribute *name* of *result*, unless its value is the *usual* one."""
    value = getattr(result, name)
    if value != usual:
        yield name, value


@dataclass(frozen=True, repr=False)
class Exploration(Shown):
    """The result of a search.

    Attributes:
        trials: How many trials ran, including those of shrinking.
        examples: How many trials it took to find the first failure; None if there was none.
        verdicts: How many trials had each verdict, before any shrinking.
        attempted: How many trials contained a fault of each kind.
        fired: In how many of these trials it fired.
        failure: The explanation of the shrunk failure, or None.
        outcome: The facts of the shrunk failure, or None.
        verdict: The verdict of the shrunk failure. Without a failure, ``failed_cleanly`` if any
            trial failed, ``survived`` if none did, or ``not_exercised`` if no fault fired.
        comparison: How samples were compared, as in an ``Outcome``.
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
        """The statistics, as text."""
        total = sum(self.verdicts.values())
        conclusive = total - self.verdicts[Verdict.NOT_EXERCISED.value]
        shrinking = "" if self.examples is None else f", {self.trials - total} more to shrink one"
        tried = f"{pluralize(total, 'example')} tried{shrinking}"
        lines = [f"{tried}; {conclusive} of them {was_or_were(conclusive)} conclusive"]
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
