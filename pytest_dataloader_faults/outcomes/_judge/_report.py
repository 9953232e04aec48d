"""The text of a verdict: one sentence, bounded evidence, one line that reproduces it. Pure."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Iterable, Iterator

from pytest_dataloader_faults.outcomes._error_text import messages
from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._fault_facts import beyond_reach, shared_files
from pytest_dataloader_faults.outcomes._records import FaultFacts, Firing
from pytest_dataloader_faults.outcomes._text import printable
from pytest_dataloader_faults.outcomes._verdicts import Judgement, Verdict

_MAX_LINES = 12
_MAX_FIRINGS = 3
_MAX_PROCESSES = 5
_MAX_FILES = 3


def explain(
    outcome: TrialFacts, judgement: Judgement, reproduce: str, notes: Iterable[str] = ()
) -> str:
    """All that a person needs to see *judgement* for themselves.

    *notes*: sentences that come before the evidence.
    """
    sentence = "\n  ".join(map(printable, judgement.sentence.split("\n")))
    parts = [f"{judgement.verdict}: {sentence}."]
    parts += [f"  {printable(note)}." for note in notes]
    parts += [f"  {printable(line)}" for line in _evidence(outcome, judgement)]
    parts.append(f"  reproduce: {reproduce}")
    return "\n".join(parts)


def _evidence(outcome: TrialFacts, judgement: Judgement) -> Iterator[str]:
    for each in outcome.faults:
        yield from _about_fault(each)
    if outcome.engine == "python":
        yield "engine: python, which sees only what Python code opens and reads"
    if hidden := beyond_reach(outcome.workers):
        yield f"hidden from the engine: {hidden}"
    for path, workers in itertools.islice(shared_files(outcome.workers).items(), _MAX_FILES):
        yield f"{path}: opened before the fork, {workers} workers read it through one offset"
    yield _about_delivery(outcome)
    yield from (f"death: {each} (pid {each.pid})" for each in outcome.deaths)
    if outcome.exception is not None:
        yield from _about_exception(outcome.exception.text)
    if outcome.stacks and judgement.verdict in (Verdict.HUNG, Verdict.POISONED):
        yield from _about_stacks(outcome.stacks)
    if _is_told_on_stderr(judgement) and outcome.stderr.strip():
        yield "printed by the workers:"
        yield from _bounded(outcome.stderr.strip().splitlines())


def _is_told_on_stderr(judgement: Judgement) -> bool:
    """Errors in a queue's feeder thread, or before the fetch loop, are printed and dropped."""
    return judgement.verdict in (Verdict.HUNG, Verdict.CRASHED, Verdict.FAILED_UNCLEARLY)


def _about_fault(each: FaultFacts) -> Iterator[str]:
    counts = f"reached {each.reached}, fired {each.fired}, surfaced {each.surfaced}"
    yield f"fault: {each.fault!r} ({counts})"
    for firing in each.firings[:_MAX_FIRINGS]:
        what = f"{_call(firing.call)} {firing.path or ''}".rstrip()
        yield f"  {_where(firing)}: {what}"
    if each.fired > _MAX_FIRINGS:
        yield f"  ... and {each.fired - _MAX_FIRINGS} more"


def _where(firing: Firing) -> str:
    if firing.worker is None:
        return f"in the loader's process (pid {firing.pid})"
    return f"in worker {firing.worker} (pid {firing.pid}), fetch {firing.fetch}"


def _call(call: str) -> str:
    """``signal 9`` with its name; system calls as they are."""
    word, _, number = call.partition(" ")
    if word == "signal":
        done = "stopped" if int(number) == signal.SIGSTOP else "killed"
        return f"{done} by {signal.Signals(int(number)).name}"
    return f"left by _exit({number})" if word == "exit" else call


def _about_delivery(outcome: TrialFacts) -> str:
    came = f"delivered: {len(outcome.delivered)} batches"
    if outcome.timed_out or outcome.died:
        return f"{came}, then nothing more (in phase {outcome.phase!r}); {outcome.duration:g} s"
    asked = sum(len(one.drawn) for one in outcome.passes)
    ended = (
        "then the epoch ended" if outcome.passes[-1:] and outcome.passes[-1].complete else "so far"
    )
    end = ended if outcome.exception is None else "then an error"
    return f"{came} of {asked} asked for, {end}; {outcome.duration:g} s"


def _about_exception(text: str) -> Iterator[str]:
    yield "error:"
    yield from _bounded(messages(text).split("\n"))


def _about_stacks(stacks: str) -> Iterator[str]:
    yield "stacks at the deadline:"
    blocks = re.split(r"\n(?=Process \d+)", stacks.strip())
    for block in blocks[:_MAX_PROCESSES]:
        title, _, rest = block.partition("\n")
        yield f"  {title}"
        yield from _bounded(_innermost(rest.splitlines()))
    if len(blocks) > _MAX_PROCESSES:
        yield f"  ... and {len(blocks) - _MAX_PROCESSES} more processes"


def _innermost(lines: list[str]) -> list[str]:
    """The main thread's frames, from where it is stuck up to where torch's or our code begins."""
    starts = [place for place, line in enumerate(lines) if line.startswith("Current thread")]
    frames = lines[starts[0] + 1 :] if starts else lines
    outer = ("_worker_loop", "/_trial/", "/pytest_dataloader_faults/_engine/")
    kept = itertools.takewhile(lambda line: not any(name in line for name in outer), frames)
    return [line for line in kept if line.strip()]


def _bounded(lines: list[str]) -> Iterator[str]:
    """Their beginning and their end: of a chain of errors, the last one is the one that came."""
    if len(lines) <= _MAX_LINES:
        shown = lines
    else:
        left_out = len(lines) - _MAX_LINES
        half = _MAX_LINES // 2
        shown = [*lines[:half], f"... {left_out} lines are left out here ...", *lines[-half:]]
    yield from (f"  {line[:300]}" for line in shown)
