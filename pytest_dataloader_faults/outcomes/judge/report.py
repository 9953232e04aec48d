"""The text of a verdict: one sentence, bounded evidence, one line that reproduces it. Pure."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Iterable, Iterator

from pytest_dataloader_faults.faults import Fault, TruncatedFile, WorkerExited, WorkerKilled
from pytest_dataloader_faults.faults.base import FiringKind
from pytest_dataloader_faults.globs import is_excluded
from pytest_dataloader_faults.outcomes import fault_facts, stacks
from pytest_dataloader_faults.outcomes.chains import exception_lines
from pytest_dataloader_faults.outcomes.contract import Compared, Comparison, Judgement, Verdict
from pytest_dataloader_faults.outcomes.records import FaultFacts, Firing, FiringPlace, TrialFacts
from pytest_dataloader_faults.outcomes.stages import Reason
from pytest_dataloader_faults.outcomes.text import (
    counted,
    listed,
    printable,
    shown_fault,
    signal_name,
    without_binary,
)

_MAX_LINES = 12
_MAX_FIRINGS = 3
_MAX_PROCESSES = 5
_MAX_FILES = 3
_TRIAL = f"{stacks.OURS}_trial/"
_SEE_STDERR = (Verdict.HUNG, Verdict.CRASHED, Verdict.FAILED_UNCLEARLY)
"""torch prints errors in a queue's feeder thread or before the fetch loop, and drops them."""


def explain(
    outcome: TrialFacts, judgement: Judgement, reproduce: str, notes: Iterable[str] = ()
) -> str:
    """The verdict, the evidence for it, and the line that repeats the trial.

    *notes* are sentences that come before the evidence.
    """
    sentence = judgement.sentence.removesuffix(".").replace("\n", "\n  ")
    parts = [f"{judgement.verdict}: {sentence}."]
    parts += [f"  {printable(note)}." for note in notes]
    parts += [f"  {printable(line)}" for line in _evidence(outcome, judgement)]
    parts.append(f"  reproduce: {reproduce}")
    return "\n".join(parts)


def _evidence(outcome: TrialFacts, judgement: Judgement) -> Iterator[str]:
    for each in outcome.faults:
        yield from _about_fault(each)
    if outcome.engine == "python":
        yield "engine: python, which sees only what Python code opens, reads and writes"
    if hidden := fault_facts.unobserved_operations(outcome.workers):
        yield f"hidden from the engine: {hidden}"
    shared = fault_facts.shared_offset_files(outcome.workers)
    for path, workers in itertools.islice(shared.items(), _MAX_FILES):
        before = f"{path}: opened before the fork"
        yield f"{before}, so {counted(workers, 'worker')} share its file offset"
    yield from _about_comparison(outcome)
    if outcome.ranks:
        yield from map(_about_rank, outcome.ranks)
    else:
        yield _about_delivery(outcome)
    yield from (f"death: {each} (pid {each.pid})" for each in outcome.deaths)
    if outcome.exception is not None:
        yield "error:"
        yield from _bounded(exception_lines(outcome.exception.text).split("\n"))
    if outcome.stacks and judgement.verdict in (Verdict.HUNG, Verdict.POISONED):
        yield from _about_stacks(outcome.stacks)
    if judgement.verdict in _SEE_STDERR and outcome.stderr.strip():
        yield "printed by the workers:"
        yield from _bounded(stacks.for_reader(outcome.stderr.strip().splitlines()))


def _about_fault(each: FaultFacts) -> Iterator[str]:
    counts = (
        f"reached by {counted(each.reached, 'operation')}, fired {counted(each.fired, 'time')},"
        f" surfaced in {'an' if each.surfaced else 'no'} exception"
    )
    yield f"fault: {shown_fault(each.fault)} ({counts})"
    # The printing of a traceback opens the source, and an import a module: no data is concerned.
    data = [firing for firing in each.firings if not (firing.path and is_excluded(firing.path))]
    first = (data or each.firings)[:_MAX_FIRINGS]
    for firing in first:
        yield f"  {_where(firing)}: {_what(firing, each.fault)}"
    if each.fired > len(first):
        yield f"  ... and {each.fired - len(first)} more"


def _what(firing: Firing, fault: Fault) -> str:
    path = firing.path or ""
    if firing.kind is FiringKind.REPLACED:
        how = "is cut off" if isinstance(fault, TruncatedFile) else "is damaged"
        return f"{path} {how} under a handle from before the worker's first batch"
    return f"{_call(firing, fault)} {path}".rstrip()


def _where(firing: Firing) -> str:
    if firing.place is FiringPlace.CONSTRUCTOR:
        return f"while make_dataset() ran (pid {firing.pid})"
    if firing.worker is None:
        return f"in the loader's process (pid {firing.pid})"
    return f"in worker {firing.worker} (pid {firing.pid}), fetch {firing.fetch}"


def _call(firing: Firing, fault: Fault) -> str:
    """Signals with their names; system calls as they are."""
    match fault:
        case WorkerKilled():
            done = "stopped" if fault.signal == signal.SIGSTOP else "killed"
            return f"{done} by {signal_name(fault.signal)}"
        case WorkerExited():
            return f"exited by _exit({fault.code})"
        case _:
            return firing.call


_OF_OTHERS = (
    "If they are random, draw from the global generators of torch, NumPy or Python, which trials"
    " seed. If they hold a time or an id, return it in a part of its own: the other parts are then"
    " compared"
)
_OF_ITSELF = (
    "Its samples draw from the global generators, which trials seed, and still vary. If the dataset"
    " seeds these generators, let the test turn that off; if it has another generator, draw from"
    " the global ones instead"
)
_IN_WORKERS = (
    "samples vary from reading to reading in one process, as those of a dataset that seeds itself"
    " do, so they were compared with those of an epoch of workers without a fault"
)


def parts_that_vary(comparison: Comparison) -> str:
    """The names of the parts that *comparison* leaves out."""
    return listed(path or "all" for path, _ in comparison.varying)


def note_on(comparison: Comparison, *, draws: bool) -> Iterator[str]:
    """What was not compared, which no check speaks for, and what to do.

    *draws*: whether samples draw numbers of the global generators.
    """
    if comparison.limit is not None:
        return
    if comparison.in_workers:
        yield _IN_WORKERS
    if not comparison.is_of_content:
        compared = "types and shapes" if comparison.what is Compared.SHAPES else "types"
        yield (
            f"samples vary from reading to reading, so only their {compared} were compared, and"
            f" zeros in place of a sample would pass. {_OF_ITSELF if draws else _OF_OTHERS}"
        )
    if comparison.varying:
        vary, their = ("varies", "its") if len(comparison.varying) == 1 else ("vary", "their")
        yield (
            f"{parts_that_vary(comparison)} of a sample {vary} from reading to reading, so {their}"
            f" content was not compared, and zeros in {their} place would pass. All other parts"
            " were compared"
        )


_COMPARED = {
    Compared.SHAPES: "by types and shapes",
    Compared.TYPES: "by types, since shapes differ, too",
}


def _about_comparison(outcome: TrialFacts) -> Iterator[str]:
    found = outcome.comparison
    how = _COMPARED.get(found.what)
    if found.own:
        of_each = f"{found.limit} of its own in each worker"
        yield f"samples are random, {of_each}: compared {how}"
    elif found.limit is not None:
        first = f"the first {found.limit} of each worker"
        yield f"the stream does not end: {first} were taken, and compared {how}"
    elif how:
        yield f"samples vary from reading to reading: compared {how}"
    elif found.in_workers:
        yield "samples vary from reading to reading: compared with an epoch of workers"
    elif found.seeded is not None and outcome.kind == "map":
        yield "samples are random: compared under seeds"
    if found.varying:
        yield f"compared: all parts but {parts_that_vary(found)}"


def _about_delivery(outcome: TrialFacts) -> str:
    came, seconds = len(outcome.delivered), f"({outcome.duration:g} s)"
    if outcome.timed_out or outcome.died:
        nothing = f"then nothing more in phase '{outcome.phase}'"
        return f"delivered {counted(came, 'batch')}, {nothing} {seconds}"
    # A stream's number of batches is not known beforehand, nor that of a process that was killed.
    drawn = sum(len(one.drawn) for one in outcome.passes) if outcome.kind == "map" else 0
    if drawn:
        asked = counted(drawn, "batch")
        return f"delivered {came} of {asked} asked for, {_how_it_ended(outcome)} {seconds}"
    return f"delivered {counted(came, 'batch')}, {_how_it_ended(outcome)} {seconds}"


def _about_rank(one: TrialFacts) -> str:
    absent = one.absence
    if absent is None:
        return f"rank {one.rank}: {_about_delivery(one)}"
    batches = counted(len(one.delivered), "batch")
    who = "a rank" if absent.rank is None else f"rank {absent.rank}"
    return f"rank {one.rank}: delivered {batches}, then waited for {who}, {_ABSENT[absent.reason]}"


_ABSENT = {
    Reason.FINISHED: "which had no more batches",
    Reason.FAILED: "which an error had ended",
    Reason.GONE: "whose process had ended",
}


def _how_it_ended(outcome: TrialFacts) -> str:
    if outcome.exception is not None:
        return "then an exception"
    if outcome.passes and outcome.passes[-1].complete:
        count = len(outcome.passes)
        if left := sum(not (one.complete or one.exception) for one in outcome.passes):
            return f"{counted(left, 'epoch')} left early, {counted(count - left, 'epoch')} complete"
        return "epoch complete" if count == 1 else f"{counted(count, 'epoch')} complete"
    return "epoch not complete"


def _about_stacks(text: str) -> Iterator[str]:
    yield "stacks at the deadline:"
    blocks = re.split(r"\n(?=Process \d+)", text.strip())
    for block in blocks[:_MAX_PROCESSES]:
        title, _, rest = block.partition("\n")
        yield f"  {title}"
        yield from _bounded(_innermost(rest.splitlines()))
    if len(blocks) > _MAX_PROCESSES:
        yield f"  ... and {counted(len(blocks) - _MAX_PROCESSES, 'more process')}"


def _innermost(lines: list[str]) -> list[str]:
    """The main thread's frames, from the call that hangs up to torch's loop or the trial's code."""
    starts = [place for place, line in enumerate(lines) if line.startswith("Current thread")]
    frames = lines[starts[0] + 1 :] if starts else lines
    kept = itertools.takewhile(lambda line: not _is_outer(line), frames)
    return stacks.for_reader([line for line in kept if line.strip()])


def _is_outer(line: str) -> bool:
    return line.endswith(" in _worker_loop") or f'"{_TRIAL}' in line


def _bounded(lines: list[str]) -> Iterator[str]:
    """The first and the last of *lines*. Of a chain of errors, the loop got the last one."""
    shown = stacks.bounded(list(map(without_binary, lines)), _MAX_LINES)
    yield from (f"  {line[:300]}" for line in shown)
