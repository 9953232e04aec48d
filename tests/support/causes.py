"""Every likely cause that a failure may have."""

from collections.abc import Iterator
from dataclasses import replace

from pytest_dataloader_faults import Verdict
from pytest_dataloader_faults.battery.checks import _epochs, files, memory, network, workers
from pytest_dataloader_faults.battery.checks import ranks as rank_checks
from pytest_dataloader_faults.battery.checks.resume import rules
from pytest_dataloader_faults.outcomes import (
    FileCounts,
    Finding,
    Pass,
    WorkerFacts,
    Wrong,
    judge,
    leaks,
)
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.judge import (
    at_rest,
    causes,
    compare,
    errors,
    hangs,
    ranks,
    sharing,
)
from pytest_dataloader_faults.outcomes.judge import rules as trial_rules
from pytest_dataloader_faults.outcomes.libraries import HINTS
from pytest_dataloader_faults.outcomes.stages import SharedConnection
from support.facts import EPOCH_1, ordinary, raised, revised

MODULES = (
    *(causes, errors, hangs, sharing, rules, memory, workers),
    *(ranks, rank_checks, trial_rules, compare, at_rest, _epochs, files),
    judge,
    leaks,
    network,
)


def all_causes() -> Iterator[Cause]:
    """Those of the judge and of verdicts, of libraries, and those that name a file."""
    values = (value for module in MODULES for value in vars(module).values())
    yield from (cause for cause in values if isinstance(cause, Cause))
    yield from hangs._BY_ACTIVITY.values()
    yield from filter(any, (verdict.usual_cause for verdict in Verdict))
    for hint in HINTS:
        yield from (Cause(phrase, hint.advice, fix=hint.fix) for phrase in hint.causes)
    yield _cause_of_connection()
    yield from (_cause_of_early_read(), _cause_of_temporary_name())
    yield from map(_cause_of_handle, ("/data/a.h5", "/data/data.mdb", "/data/a.bin"))


def _cause_of_connection() -> Cause:
    notes = (SharedConnection("a connection to 127.0.0.1:9000"),)
    outcome = revised(ordinary(Pass(EPOCH_1, complete=True)), notes=notes)
    cause = sharing.connection_cause(outcome, Verdict.CORRUPTED)
    assert cause is not None
    return cause


def _cause_of_early_read() -> Cause:
    worker = WorkerFacts(1, 8, 1, {}, unwritten_files=("/data/all.bin",))
    outcome = revised(ordinary(Pass(EPOCH_1, complete=True)), processes=(worker,))
    cause = sharing.early_read_cause(outcome, Verdict.CORRUPTED)
    assert cause is not None
    return cause


def _cause_of_temporary_name() -> Cause:
    path = "/data/all.tmp"
    workers = (
        WorkerFacts(number, number, 1, {path: FileCounts(1, writes=1)}) for number in range(2)
    )
    error = raised("FileNotFoundError", f"[Errno 2] No such file or directory: '{path}' -> '/a'")
    outcome = revised(ordinary(Pass(EPOCH_1, exception=error)), processes=tuple(workers))
    cause = sharing.temporary_name_cause(outcome)
    assert cause is not None
    return cause


def _cause_of_handle(path: str) -> Cause:
    shared = (path,) if path.endswith(".bin") else ()
    worker = WorkerFacts(0, 7, 1, {path: FileCounts(0, 3, 9)}, shared_offset_files=shared)
    outcome, finding = ordinary(Pass(EPOCH_1, complete=True)), Finding(Verdict.CORRUPTED, "x")
    fault_free = revised(ordinary(Pass(EPOCH_1)), processes=(worker,))
    cause = causes.likely_cause(outcome, replace(finding, wrong=Wrong.DIFFERS), fault_free)
    assert cause is not None
    return cause
