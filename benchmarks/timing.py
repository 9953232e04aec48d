"""Time pieces of work in turn, and put what they take into tables."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

ROUNDS, FEW_ROUNDS = 9, 3
Measure = Callable[[], float]


def clock(work: Callable[[], object]) -> Measure:
    """A measure of *work*: its seconds by the clock."""

    def measure() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return measure


def cpu(work: Callable[[], object], count: int = 1) -> Measure:
    """A measure of *work*: the seconds of CPU for each of its *count* parts.

    Processes that this one has started, and waited for, count as well.
    """

    def measure() -> float:
        began = sum(os.times()[:4])
        work()
        return (sum(os.times()[:4]) - began) / count

    return measure


def in_turn(rounds: int, *measures: Measure) -> list[list[float]]:
    """What each of *measures* gives, round by round. What else runs here disturbs all alike."""
    samples = [[measure() for measure in measures] for _ in range(rounds)]
    return [list(column) for column in zip(*samples, strict=True)]


def ratio(bare: list[float], compared: list[float]) -> float:
    """How many times as much as *bare* the *compared* is: the median of the rounds."""
    return statistics.median(
        numerator / denominator for denominator, numerator in zip(bare, compared, strict=True)
    )


def shown(seconds: float) -> str:
    """*seconds* in a unit that suits, with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


@dataclass
class Table:
    """Rows of text."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def compare(self, name: str, rounds: int, bare: Measure, compared: Measure) -> None:
        """Add a row: the medians of *bare* and *compared*, measured in turn, and their ratio."""
        bare_samples, compared_samples = in_turn(rounds, bare, compared)
        medians = [shown(statistics.median(each)) for each in (bare_samples, compared_samples)]
        self.rows.append((name, *medians, f"{ratio(bare_samples, compared_samples):.2f}"))

    def text(self) -> str:
        """The table for a terminal."""
        rows = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )
