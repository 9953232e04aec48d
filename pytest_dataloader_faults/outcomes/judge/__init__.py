"""The judge: facts in, verdict out. Pure.

The rules are ordered by severity, and the first one that is violated decides. They hold even if no
fault fired. But without a fault that fired, a trial is never a pass. If a change of a file was
refused, that alone decides, because all else may follow from it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_dataloader_faults._arguments import errno_name
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import Fault, TruncatedFile, WorkerExited, WorkerKilled
from pytest_dataloader_faults.faults.base import FiringKind
from pytest_dataloader_faults.faults.globs import is_excluded
from pytest_dataloader_faults.outcomes import fault_facts
from pytest_dataloader_faults.outcomes.agreement import EXACT, Comparison
from pytest_dataloader_faults.outcomes.chains import exception_lines
from pytest_dataloader_faults.outcomes.contract import Cause, Contract, Finding, Verdict
from pytest_dataloader_faults.outcomes.judge import ranks
from pytest_dataloader_faults.outcomes.judge.at_rest import AtRestJudge
from pytest_dataloader_faults.outcomes.judge.compare import align
from pytest_dataloader_faults.outcomes.judge.rules import Judge
from pytest_dataloader_faults.outcomes.records import Outcome
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import Refusal, describe_change, describe_phase
from pytest_dataloader_faults.outcomes.text import (
    OURS,
    join_some,
    limit_lines,
    pluralize,
    printable,
    shown_fault,
    signal_name,
    sort_for_reader,
    without_binary,
)
from pytest_dataloader_faults.wire import FaultFacts, Firing, FiringPlace

DESTROYS = Cause(
    "deletes or overwrites a file that it cannot read",
    "An error of the storage says nothing about the file, which may be intact at the next attempt."
    " Raise the error, and leave it to a person to remove the file",
    fix="raise the error, and keep the file",
)
REMEDY = (
    "Pass copy=FOLDER with the data: each trial then gets a copy, which it may change. Or give"
    " make_dataset a parameter for a folder, and let it write its cache there"
)


def judge(outcome: Outcome, reference: Reference, contract: Contract) -> Finding:
    """The verdict on *outcome*, compared with the *reference*, the fault-free run.

    Raises:
        InvalidArgumentError: The samples of the reference were compared in a different way.
    """
    if outcome.comparison != reference.comparison:
        message = (
            f"the trial compared samples by '{outcome.comparison}', but the reference by"
            f" '{reference.comparison}'. Pass a reference that was compared in the same way"
        )
        raise InvalidArgumentError(message)
    finding = find_refusal(outcome) or _judge(outcome, reference, contract)
    return replace(finding, library="") if contract.names_file else finding


def _judge(outcome: Outcome, reference: Reference, contract: Contract) -> Finding:
    """The verdict on a trial, of one process or of several ranks."""
    outcome, reference = align(outcome, reference)
    if outcome.ranks:
        findings = [
            _judge(rank, ranks.reference_for(number, outcome, reference), contract)
            for number, rank in enumerate(outcome.ranks)
        ]
        return ranks.judge_together(outcome, findings, reference, contract)
    kind = AtRestJudge if outcome.before_init else Judge
    return kind(outcome, reference, contract).judge()


def find_refusal(outcome: Outcome) -> Finding | None:
    """What the first refusal that counts shows; None if nothing was refused.

    A dataset may replace a file that is damaged or missing. So only what it does to its data after
    a fault of another kind is a defect. After a refusal, nothing else in the trial counts.
    """
    if not outcome.refusals:
        return None
    sentence = _describe_refusal(outcome)
    is_at_rest = any(fault.is_at_rest for fault in _fired_faults(outcome))
    if _deciding_refusal(outcome).is_read and not is_at_rest:
        return Finding(
            Verdict.POISONED, f"{sentence}; the file may be intact at the next attempt", DESTROYS
        )
    return Finding(Verdict.NOT_EXERCISED, f"{sentence}. {REMEDY}")


def explain_refusal(outcome: Outcome) -> tuple[str, str, None, str]:
    """Why a check does not apply after a refusal: the arguments of ``NotApplicable``."""
    return _describe_refusal(outcome), "it would delete or overwrite files", None, REMEDY


def _describe_refusal(outcome: Outcome) -> str:
    faults = " and ".join(dict.fromkeys(map(_name_fault, _fired_faults(outcome))))
    change = describe_change(_deciding_refusal(outcome))
    return f"it would {change} after {faults or 'the end of a process'}"


def _deciding_refusal(outcome: Outcome) -> Refusal:
    return next((each for each in outcome.refusals if each.is_read), outcome.refusals[0])


def _fired_faults(outcome: Outcome) -> list[Fault]:
    return [fault for job in outcome.jobs for fault in job.fired_faults]


def _name_fault(fault: Fault) -> str:
    name = type(fault).__name__
    return f"{name} ({errno_name(fault.errno)})" if fault.errno else name


# The text of a verdict: one sentence, bounded evidence, and one line that reproduces it.


_MAX_LINES = 12
_MAX_FIRINGS = 3
_MAX_PROCESSES = 5
_MAX_FILES = 3
_TRIAL = f"{OURS}_trial/"


def explain(outcome: Outcome, finding: Finding, reproduce: str, notes: Iterable[str] = ()) -> str:
    """The verdict, its evidence, and the line that repeats the trial.

    *notes* are sentences that precede the evidence.
    """
    sentence = finding.sentence.removesuffix(".").replace("\n", "\n  ")
    parts = [f"{finding.verdict}: {sentence}."]
    parts += [f"  {printable(note)}." for note in notes]
    parts += [f"  {printable(line)}" for line in _evidence(outcome, finding)]
    parts.append(f"  reproduce: {reproduce}")
    return "\n".join(parts)


def _evidence(outcome: Outcome, finding: Finding) -> Iterator[str]:
    for block in dict.fromkeys(tuple(_describe_fault(facts)) for facts in outcome.faults):
        yield from block
    if hidden := fault_facts.unobserved_operations(outcome.workers):
        yield f"not visible to the engine: {hidden}"
    shared = fault_facts.shared_offset_files(outcome.workers)
    for path, workers in itertools.islice(shared.items(), _MAX_FILES):
        yield f"{path}: opened before the fork, so {pluralize(workers, 'worker')} share its offset"
    if outcome.comparison != EXACT:
        yield f"samples were compared by {outcome.comparison}"
    yield from (
        f"rank {each.request.rank}: {ranks.describe_absence(each) or _describe_delivery(each)}"
        for each in outcome.ranks
    )
    if not outcome.ranks:
        yield _describe_delivery(outcome)
    yield from (f"death: {each} (pid {each.pid})" for each in outcome.deaths)
    if outcome.exception is not None:
        yield "error:"
        lines = exception_lines(outcome.exception.text).split("\n")
        yield from _limit_lines([line for line, _ in itertools.groupby(lines)])
    if outcome.end.stacks and finding.verdict in (Verdict.HUNG, Verdict.POISONED):
        yield from _describe_stacks(outcome.end.stacks)
    # torch prints some errors, in a queue's feeder thread or before the fetch loop, and drops them.
    # And a library that aborts prints why.
    may_be_dropped = (Verdict.HUNG, Verdict.CRASHED, Verdict.FAILED_UNCLEARLY)
    is_explained = finding.verdict in may_be_dropped or (outcome.deaths and not finding.passed)
    if is_explained and outcome.stderr.strip():
        yield "output of the workers:"
        yield from _limit_lines(sort_for_reader(outcome.stderr.strip().splitlines()))


def _describe_fault(facts: FaultFacts) -> Iterator[str]:
    counts = (
        f"matched {pluralize(facts.matched, 'operation')}, fired {pluralize(facts.fired, 'time')},"
        f" mentioned in {'an' if facts.mentioned else 'no'} exception"
    )
    yield f"fault: {shown_fault(facts.fault)} ({counts})"
    # Printing a traceback opens source files, and an import opens modules. Neither is data.
    data = [firing for firing in facts.firings if not (firing.path and is_excluded(firing.path))]
    listed_firings = (data or facts.firings)[:_MAX_FIRINGS]
    for firing in listed_firings:
        yield f"  {_locate(firing)}: {_describe_firing(firing, facts.fault)}"
    if facts.fired > len(listed_firings):
        yield f"  ... and {facts.fired - len(listed_firings)} more"


def _describe_firing(firing: Firing, fault: Fault) -> str:
    path = firing.path or ""
    if firing.kind is FiringKind.REPLACED:
        state = "is truncated" if isinstance(fault, TruncatedFile) else "is damaged"
        return f"{path} {state} when read through a handle opened before the worker's first batch"
    call = firing.call  # Signals have names; system calls stay as they are.
    if isinstance(fault, WorkerKilled):
        call = f"killed by {signal_name(fault.signal)}"
    elif isinstance(fault, WorkerExited):
        call = f"exited by _exit({fault.code})"
    return f"{call} {path}".rstrip()


def _locate(firing: Firing) -> str:
    if firing.place is FiringPlace.CONSTRUCTOR:
        return f"in make_dataset() (pid {firing.pid})"
    if firing.worker is None:
        return f"in the main process (pid {firing.pid})"
    return f"in worker {firing.worker} (pid {firing.pid}), fetch {firing.fetch}"


_DRAW_GLOBALLY = (
    "If they are random, draw from the global generators of torch, NumPy or Python, which trials"
    " seed, and do not seed these in the dataset. If they contain a time or an id, return it as a"
    " separate part, so that the other parts can be compared"
)
_IN_WORKERS = (
    "samples differ each time they are read in one process, as in a dataset that seeds itself, so"
    " they were compared with the samples that workers returned in a fault-free run"
)


def comparison_notes(comparison: Comparison) -> Iterator[str]:
    """What was not compared, so that no check covers it, and what to do."""
    if comparison.limit is not None:
        return
    if comparison.in_workers:
        yield _IN_WORKERS
    if comparison.by_form:
        yield (
            f"samples differ each time they are read, so only their {comparison.form} were"
            f" compared, and zeros returned for a sample would pass. {_DRAW_GLOBALLY}"
        )
    elif comparison.mask:
        paths = join_some(path or "all" for path in comparison.mask.paths)
        yield (
            "samples differ each time they are read, so the content of these parts was not"
            f" compared, and zeros returned for them would pass: {paths}"
        )


def _describe_delivery(outcome: Outcome) -> str:
    count = len(outcome.delivered)
    batches, seconds = pluralize(count, "batch"), f"({outcome.duration:g} s)"
    if outcome.timed_out or outcome.died:
        end = "the deadline passed" if outcome.timed_out else "the process died"
        return f"delivered {batches}, then {end} {describe_phase(outcome.phase)} {seconds}"
    # The number of batches is unknown for a stream, and for a process that was killed.
    drawn = sum(len(epoch.drawn) for epoch in outcome.epochs) if outcome.kind == "map" else 0
    if drawn:
        requested = pluralize(drawn, "batch")
        return f"delivered {count} of {requested} requested, {_describe_end(outcome)} {seconds}"
    return f"delivered {batches}, {_describe_end(outcome)} {seconds}"


def _describe_end(outcome: Outcome) -> str:
    if outcome.exception is not None:
        return "then an exception"
    if outcome.epochs and outcome.epochs[-1].complete:
        count = len(outcome.epochs)
        unfinished = sum(not (epoch.complete or epoch.exception) for epoch in outcome.epochs)
        complete = count - unfinished
        if unfinished:
            early = pluralize(unfinished, "epoch")
            return f"{early} left early, {pluralize(complete, 'epoch')} complete"
        return "epoch complete" if count == 1 else f"{pluralize(count, 'epoch')} complete"
    return "epoch incomplete"


def _describe_stacks(text: str) -> Iterator[str]:
    yield "stacks at the deadline:"
    blocks = re.split(r"\n(?=Process \d+)", text.strip())
    for block in blocks[:_MAX_PROCESSES]:
        title, _, body = block.partition("\n")
        yield f"  {title}"
        yield from _limit_lines(_inner_frames(body.splitlines()))
    if len(blocks) > _MAX_PROCESSES:
        yield f"  ... and {pluralize(len(blocks) - _MAX_PROCESSES, 'more process')}"


def _inner_frames(lines: list[str]) -> list[str]:
    """The main thread's frames, from the call that hangs up to torch's loop or the trial's code."""
    starts = [place for place, line in enumerate(lines) if line.startswith("Current thread")]
    frames = lines[starts[0] + 1 :] if starts else lines
    inner = itertools.takewhile(
        lambda line: not line.endswith(" in _worker_loop") and f'"{_TRIAL}' not in line, frames
    )
    return sort_for_reader([line for line in inner if line.strip()])


def _limit_lines(lines: list[str]) -> Iterator[str]:
    """The first and the last of *lines*. The last error of a chain is the one that the loop got."""
    visible = limit_lines(list(map(without_binary, lines)), _MAX_LINES)
    yield from (f"  {line[:300]}" for line in visible)
