"""What a round came to, and whether that is a violation. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from chaos.rounds import VERDICTS, Round, round_from

CLEAN_SECONDS = 5.0
"""After so many seconds nothing may be left."""
IMPORT_SECONDS = 60.0
"""The same for fork servers: a new one first imports torch, and then sees that its user is gone."""
_REFUSALS = (
    *("HarnessError", "LostProcessError"),
    *("UnusableEnvironmentError", "FaultNotFiredError"),
)
_OF_HARNESS = (
    *(f"exceptions.{refusal}" for refusal in _REFUSALS),
    *("No dataset was judged", "the trial proves nothing about the dataset"),
)
"""What the report of a failed test says of a refusal."""
_NO_ROOM = "/temporary/tmp"
_NO_THREAD = "RuntimeError: can't start new thread"
"""execnet starts one to end each process of pytest-xdist."""
_PASSES = {"survived", "failed_cleanly", "passed"}


def longest(*, only_servers: bool) -> float:
    """Seconds that the processes which are left may take to end; *only_servers*: of workers."""
    return IMPORT_SECONDS if only_servers else CLEAN_SECONDS


@dataclass(frozen=True)
class Result:
    """What was seen of one round.

    *acted*: whether there was such a process to hurt. *clean_after*: seconds until all processes
    had ended; None if some had not. *left*: the names of processes and files that were left.
    """

    drawn: Round
    acted: bool
    words: tuple[str, ...]
    ended: str
    clean_after: float | None
    left: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    seconds: float = 0.0

    def violations(self) -> Iterator[str]:
        """What must not have been."""
        for name in self.left:
            if not self._is_fork_server_folder(name):
                yield f"left: {name}"
        for name in self.changed:
            yield f"changed: {name}"
        if self.ended == "stuck":
            yield "stuck"
        for word in self.words:
            if not _is_allowed(self.drawn, word):
                yield f"word: {word[:600]}"

    def _is_fork_server_folder(self, name: str) -> bool:
        """Whether *name* is that of the folder in which Python's own fork server has its socket."""
        drawn = self.drawn
        has_socket = (
            drawn.subject == "inject" and drawn.method == "forkserver" and drawn.role == "main"
        )
        return has_socket and name.rpartition("/")[2].startswith("pymp-")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def result_from(data: dict[str, Any]) -> Result:
    """The result that ``to_dict`` made *data* from."""
    return Result(**{**data, "drawn": round_from(data["drawn"])})


def _is_allowed(drawn: Round, word: str) -> bool:
    """A refusal always is; a verdict on the dataset, if nobody but the dataset can have caused it.

    The loader's process or a worker may have been hurt by the dataset itself.
    """
    of_harness = word.startswith(_REFUSALS) or any(phrase in word for phrase in _OF_HARNESS)
    of_main = drawn.role == "main" and (
        word.startswith(("KeyboardInterrupt", "SystemExit")) or word.endswith("KeyboardInterrupt\n")
    )
    of_xdist = (drawn.role == "runner" and "crashed" in word) or (
        (drawn.subject, drawn.act, word) == ("xdist", "no-processes", _NO_THREAD)
    )
    # pytest itself needs files there, for what tests print.
    of_pytest = drawn.act == "no-inodes" and "No space left" in word and _NO_ROOM in word
    # inject() is in the user's own loop, which says what torch says.
    is_loops = drawn.subject == "inject"
    of_dataset = drawn.role in ("root", "worker") and word not in _PASSES
    excuses = of_harness, of_main, of_xdist, of_pytest, is_loops, of_dataset
    return any(excuses) or word in _expected_words(drawn)


def _expected_words(drawn: Round) -> set[str]:
    if drawn.subject in ("pytest", "xdist"):
        return {"passed"}
    if drawn.subject == "battery":
        return {"survived", "failed_cleanly"}
    if drawn.subject == "explore":
        return {"corrupted"} if drawn.dataset == "zeros" else {"failed_cleanly"}
    return {VERDICTS[drawn.dataset]}


@dataclass
class Table:
    """Counts over many rounds."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def add(self, result: Result) -> None:
        hurt = result.drawn.hurt
        row = self.counts.setdefault(hurt, Counter())
        row["rounds"] += 1
        row["hurt"] += result.acted
        violations = list(result.violations())
        row["violations"] += len(violations)
        self.violations += [
            f"round {result.drawn.number}, {_describe(result.drawn)}: {violation}"
            for violation in violations
        ]
        self.slowest[hurt] = max(self.slowest.get(hurt, 0.0), result.clean_after or 0.0)

    def lines(self) -> Iterable[str]:
        """A row for each hurt, and the sums."""
        yield f"{'hurt':<22} {'rounds':>7} {'hurt':>7} {'slowest end':>12} {'violations':>11}"
        for hurt, row in sorted(self.counts.items()):
            numbers = f"{row['rounds']:>7} {row['hurt']:>7} {self.slowest[hurt]:>11.2f}s"
            yield f"{hurt:<22} {numbers} {row['violations']:>11}"
        sums = sum(self.counts.values(), Counter())
        yield f"{'all':<22} {sums['rounds']:>7} {sums['hurt']:>7} {'':>12} {sums['violations']:>11}"


def _describe(drawn: Round) -> str:
    description = f"{drawn.hurt} after {drawn.delay:g} s" if drawn.role else drawn.hurt
    return f"{description}: {drawn.subject} of {drawn.dataset}, {drawn.method}"
