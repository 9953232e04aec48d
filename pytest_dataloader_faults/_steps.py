"""Which faults a sweep goes through, and the table of what they did. Pure."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import Fault, OpenError
from pytest_dataloader_faults.verdicts import Verdict

_ANY_FILE = "*"
_END = "."


@dataclass(frozen=True)
class Step:
    """One trial of a sweep.

    Attributes:
        fault: What was to happen, to the files that *faults* and *files* mean.
        fired: How often it did, over all workers; 0 where there were no so many operations.
        verdict: What that shows; ``not_exercised`` at the end of a row of steps.
        passed: Whether the contract allows it, or nothing fired and nothing went wrong.
        explanation: The verdict, the evidence, and how to repeat this step alone.

    """

    fault: Fault
    fired: int
    verdict: Verdict
    passed: bool
    explanation: str


@dataclass(frozen=True)
class Swept:
    """What a sweep has shown.

    Attributes:
        steps: The trials, in order.
        next: The fault to go on with, as ``start_at``; None if nothing is left to try.

    """

    steps: tuple[Step, ...]
    next: Fault | None = None

    @property
    def complete(self) -> bool:
        """Whether every row of steps came to its end."""
        return self.next is None

    @property
    def counts(self) -> dict[str, int]:
        """How many steps had each verdict; those in which nothing fired are left out."""
        return dict(Counter(str(each.verdict) for each in self.steps if not _is_end(each)))

    def table(self) -> str:
        """A line per N, a column per kind of fault, and the counts."""
        return "\n".join([*_lines(self.steps), self._sum()])

    def _sum(self) -> str:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        end = "complete" if self.complete else f"stopped; go on with start_at={self.next!r}"
        return f"{len(self.steps)} trials: {counts or 'no fault fired'}; {end}"

    def __str__(self) -> str:
        """The table."""
        return self.table()


def rows_of(templates: Iterable[Any]) -> list[Any]:
    """The first step of each row: each of *templates*, once and for good."""
    if isinstance(templates, Fault) or not (templates := list(templates)):
        message = f"faults={templates!r} must be several faults, such as [OpenError(), ReadError()]"
        raise InvalidArgumentError(message)
    rows = []
    for template in templates:
        _require_template(template)
        rows += [replace(template, times=times) for times in (1, None)]
    return rows


def aimed(fault: Any, opened: Any, read: Any) -> Any:
    """*fault* at the files it means; None if there are none.

    *opened*, *read*: the files that the workers open, and those that they read.
    """
    files = opened if isinstance(fault, OpenError) else read
    path = files if fault.path == _ANY_FILE else fault.path
    return replace(fault, path=path) if path else None


def _require_template(template: Any) -> None:
    names = set(getattr(template, "__dataclass_fields__", ()))
    if isinstance(template, Fault) and {"path", "nth", "times"} <= names:
        if (template.nth, template.times, template.probability) == (1, None, 1):
            return
        problem = "must leave nth and times to the sweep, and probability as it is"
    else:
        problem = "must be a fault of files with nth and times, such as OpenError() or ReadError()"
    message = f"faults: {template!r} {problem}"
    raise InvalidArgumentError(message)


def left_of(rows: list[Any], start_at: Any) -> list[Any]:
    """*rows* from *start_at* on, which is a step of one of them."""
    if start_at is None:
        return rows
    for place, row in enumerate(rows):
        if isinstance(start_at, type(row)) and replace(start_at, nth=1) == row:
            return [start_at, *rows[place + 1 :]]
    shown = "".join(f"\n  {row!r}" for row in rows)
    message = f"start_at={start_at!r} is no step of this sweep. These are, with any nth:{shown}"
    raise InvalidArgumentError(message)


def _is_end(step: Step) -> bool:
    return step.fired == 0 and step.passed


def _lines(steps: tuple[Step, ...]) -> Iterator[str]:
    """The table without its last line."""
    rows = list(dict.fromkeys(_title(each.fault) for each in steps))
    cells = {(_title(each.fault), _nth(each)): _cell(each) for each in steps}
    numbers = sorted({_nth(each) for each in steps})
    yield "  ".join(["   N", *rows]).rstrip()
    for number in numbers:
        columns = [cells.get((row, number), "").ljust(len(row)) for row in rows]
        yield "  ".join([f"{number:4}", *columns]).rstrip()


def _cell(step: Step) -> str:
    return _END if _is_end(step) else str(step.verdict)


def _nth(step: Step) -> int:
    fault: Any = step.fault
    return int(fault.nth)


def _title(fault: Any) -> str:
    code = getattr(fault, "errno", None)
    name = f"{type(fault).__name__} {errno.errorcode.get(code, code)}" if code else str(fault)
    return f"{name}, {'once' if fault.times == 1 else 'for good'}"
