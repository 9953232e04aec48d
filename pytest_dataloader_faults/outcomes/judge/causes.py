"""The likely cause of a failure, in a few words, and the advice that fixes it. Pure.

It follows from facts: what is wrong with the samples, the fault that fired, files and stacks.

Many checks fail for one cause: a dataset that returns zeros for unreadable data fails eight of
them. So a cause is named after what the dataset does, not after the fault that revealed it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pytest_dataloader_faults.faults import (
    CorruptedFile,
    Fault,
    ReadError,
    ShortRead,
    TruncatedFile,
)
from pytest_dataloader_faults.outcomes.contract import (
    DAMAGED,
    SHORT,
    SKIPS,
    SUBSTITUTES,
    TRUNCATED,
    Cause,
    Finding,
    Verdict,
    Wrong,
)
from pytest_dataloader_faults.outcomes.judge import draws, hangs, sharing
from pytest_dataloader_faults.outcomes.judge.errors import (
    find_explaining_deaths,
    last_printed_error,
    lengthens_data,
)
from pytest_dataloader_faults.outcomes.judge.sharing import (
    is_not_forked,
    sending_cause,
    start_cause,
)
from pytest_dataloader_faults.outcomes.libraries import HOW_TO_SHARE, add_advice
from pytest_dataloader_faults.outcomes.records import TrialFacts

_ENDS_WORKER = Cause(
    "terminates a worker without a fault",
    "No injected fault ended this worker: the dataset did, or a library that it uses. Look for"
    " os._exit, sys.exit, os.exec*, a signal sent to the worker, or code that closes file"
    " descriptors it does not own. If the worker crashed, run with num_workers=0 under python -X"
    " faulthandler to see the line",
    fix="remove os._exit, sys.exit and signals from the dataset",
)
_LOCKED_BY_WORKER = Cause(
    "locks a file that its other workers need",
    "One of the dataset's processes holds a lock of the file, and another one cannot get it.",
    overrides=True,
    fix="open the file for reading only",
)
_WRITES_DATA = Cause(
    "opens its data for writing",
    "The dataset opened a truncated file for writing, and wrote to it beyond its end. h5py, LMDB"
    " and np.memmap do that without an error: they treat an empty file as a new one, or extend a"
    " short one with zeros. Open data read-only: h5py.File(path, 'r'), lmdb.open(path,"
    " readonly=True), np.memmap(path, mode='r')",
    overrides=True,
    fix="open data read-only (mode='r')",
)
INTERMITTENT = Cause(
    "hangs or crashes intermittently without a fault",
    "The fault of this check may be unrelated. Libraries with their own threads or locks often do"
    " not survive a fork: open what they read in the worker, or use another start method, such as"
    " loader={'multiprocessing_context': 'spawn'}",
    overrides=True,
    fix="open the library's files in the worker, or start workers with spawn",
)
FAILS_INTERMITTENTLY = Cause(
    "fails intermittently without a fault",
    "A pass without a fault failed in one trial, and passed in another, so its result depends on"
    " which process or thread is first. Look for what workers share: a file that one reads while"
    " another still writes it, a connection, or a folder that several create. Write such a file to"
    " a temporary name, and rename it with os.replace()",
    overrides=True,
    fix="write shared files to a temporary name, and rename them with os.replace()",
)
_CONTENT_VERDICTS = (Verdict.CORRUPTED, Verdict.FAILED_UNCLEARLY)
_LASTING_VERDICTS = (Verdict.CORRUPTED, Verdict.POISONED)
_STAYS_IN_WORKER = Cause(
    Verdict.POISONED.usual_cause.phrase,
    "The worker keeps something from the failed read: a flag, a lock or an unfilled buffer (HDF5"
    " keeps one per open dataset). After an error, close the file and reopen it for the next"
    " sample",
    fix="discard everything from the failed read",
)


class Clues(NamedTuple):
    """What is known beyond the facts of one trial.

    Attributes:
        waits_for_thread: Whether it hung in a lock or in a queue of threads.
        was_read_before_fork: Whether the main process read a sample before its workers started.
    """

    waits_for_thread: bool = False
    was_read_before_fork: bool = False


_NO_CLUES = Clues()


class CauseRules(NamedTuple):
    """What packages of checks know about causes.

    Attributes:
        by_trial: Functions of the outcome, the verdict, and an epoch without faults.
        of_content: By the kind of a fault that replaces content: what a dataset does if its samples
            contain the replacement.
    """

    by_trial: tuple[Callable[[TrialFacts, Verdict, TrialFacts], Cause | None], ...] = ()
    of_content: Mapping[type[Fault], Cause] = {}


_NO_RULES = CauseRules()


def likely_cause(
    outcome: TrialFacts,
    finding: Finding,
    fault_free: TrialFacts,
    clues: Clues = _NO_CLUES,
    rules: CauseRules = _NO_RULES,
) -> Cause | None:
    """The likely cause, if *finding* is a failure; *fault_free*: an epoch without faults.

    A cause that the files show comes before one that the samples show.
    """
    if finding.passed:
        return None
    return add_advice(outcome, _find_cause(outcome, finding, fault_free, clues, rules))


def _find_cause(
    outcome: TrialFacts,
    finding: Finding,
    fault_free: TrialFacts,
    clues: Clues,
    rules: CauseRules,
) -> Cause:
    if finding.verdict is not Verdict.NOT_EXERCISED and (
        cause := sharing.file_cause(outcome, finding.verdict, fault_free)
    ):
        return cause
    found = (rule(outcome, finding.verdict, fault_free) for rule in rules.by_trial)
    by_rule = None if finding.cause is FAILS_INTERMITTENTLY else finding.cause
    if cause := (
        by_rule
        or next(filter(None, found), None)
        or sharing.connection_cause(outcome, finding.verdict)
        or sharing.temporary_name_cause(outcome)
        or sharing.early_read_cause(outcome, finding.verdict)
        or finding.cause
    ):
        return cause
    if finding.verdict in _CONTENT_VERDICTS and lengthens_data(outcome):
        return _WRITES_DATA
    if finding.verdict in _LASTING_VERDICTS and _raised_in_earlier_epoch(outcome):
        return _STAYS_IN_WORKER
    if finding.verdict is Verdict.CORRUPTED:
        replaced: dict[type[Fault], Cause] = {CorruptedFile: _DAMAGE, **rules.of_content}
        return _sample_cause(outcome, finding.wrong, fault_free, replaced)
    return start_cause(outcome) or _cause_by_verdict(outcome, finding.verdict, clues)


def _raised_in_earlier_epoch(outcome: TrialFacts) -> bool:
    return any(epoch.exception for epoch in outcome.epochs[:-1])


def _cause_by_verdict(outcome: TrialFacts, verdict: Verdict, clues: Clues) -> Cause:
    if verdict is Verdict.FAILS_WITHOUT_FAULT:
        return _fault_free_cause(outcome)
    if verdict is Verdict.HUNG and (cause := sending_cause(outcome) or _hang_cause(outcome, clues)):
        return cause
    return verdict.usual_cause


def _hang_cause(outcome: TrialFacts, clues: Clues) -> Cause | None:
    return hangs.likely_cause(
        outcome, in_lock=clues.waits_for_thread, after_one=clues.was_read_before_fork
    )


def _fault_free_cause(outcome: TrialFacts) -> Cause:
    if find_explaining_deaths(outcome) and not last_printed_error(outcome):
        return _ENDS_WORKER._replace(overrides=is_not_forked(outcome))
    text = outcome.exception.text if outcome.exception else ""
    for error, how_to_share in HOW_TO_SHARE.items():
        if re.search(error, text):
            advice = f"{_LOCKED_BY_WORKER.advice} {how_to_share}"
            return _LOCKED_BY_WORKER._replace(advice=advice)
    return Verdict.FAILS_WITHOUT_FAULT.usual_cause


# Some facts about caught errors. A truncated file and a short read do not raise an error
# themselves. A reader may notice, and the dataset may catch the reader's error. Or no code checks,
# and the rest of the sample is whatever was in memory before. If the samples contain nothing of
# the file, an error was caught. If samples are missing, both are possible, and the advice is about
# both.


_SAME_SHARDS = Cause(
    "returns every sample from every worker (not split with get_worker_info())",
    "Each worker iterates over the whole stream. In __iter__, take only this worker's part: info ="
    " torch.utils.data.get_worker_info(), then shards[info.id :: info.num_workers]",
    fix="read shards[info.id :: info.num_workers] in each worker, with info = get_worker_info()",
)
_OWN_PART_AGAIN = Cause(
    "repeats samples of a worker's own part",
    "A worker repeats samples of its own part of the stream, for example because its loop counts to"
    " the length of the whole stream. End __iter__ at the end of the worker's own part",
    fix="end __iter__ after the last sample of the worker's own part",
)
_NEIGHBOR = Cause(
    SUBSTITUTES,
    "A different sample was returned for one that could not be read, without an error. Let the"
    " error reach the loader, or retry the same file a few times and then raise. If the"
    " substitution is intentional, declare Contract(may_substitute=True)",
    fix="raise the error instead of catching it, or declare Contract(may_substitute=True)",
)
_PLACEHOLDER = Cause(
    SUBSTITUTES,
    "A placeholder, such as zeros, was returned for a sample that could not be read. Raise the"
    " error instead of catching it. If the substitution is intentional, declare"
    " Contract(may_substitute=True)",
    fix="raise the error instead of catching it, or declare Contract(may_substitute=True)",
)
_OR_READER = (
    ". If your code does not catch the error, the reader does: np.fromfile and"
    " scipy.io.wavfile.read ignore read errors, so read the bytes with open()"
)
_STARTED_AGAIN = Cause(
    "restarts the stream after an error",
    "More samples were delivered than in the reference: after the error, the stream restarted from"
    " its first sample. Continue after the file that failed, or let the error reach the loader",
    fix="continue after the file that failed",
)
_SKIPPED = Cause(
    SKIPS,
    "Raise the error instead of skipping the sample. If skipping is intentional, declare"
    " Contract(may_skip=True)",
    fix="raise the error instead of skipping the sample, or declare Contract(may_skip=True)",
)
_SHORT_FILE = Cause(
    TRUNCATED,
    "Compare the number of bytes or values that you read with the number that a sample needs, and"
    " raise an error if there are fewer. If the reader already raises one, do not catch it",
    fix="compare the size or the record count with what you expect, and raise an error",
)
_SHORT_READ = Cause(
    SHORT,
    "A read may return fewer bytes than requested: keep reading until you have all of them, as a"
    " buffered open() does. If the reader already raises an error, do not catch it",
    fix="keep reading until you have all bytes",
)
_DAMAGE = Cause(
    DAMAGED,
    "Verify a checksum, and raise an error if it does not match",
    fix="verify a checksum, and raise an error if it does not match",
)
_DIFFERENT_SAMPLES = Cause(
    "returns different samples in workers than in the main process",
    fix="make samples depend on the index alone",
)
_CHANGES_KEPT = Cause(
    "changes a sample that it keeps",
    "A sample is right when a worker reads it for the first time, and another one in the next"
    " epoch: the dataset keeps it, and changes it in place. Change a copy",
    fix="change a copy of a sample that the dataset keeps",
)
_IMPORTS = (
    "Workers that are not forked import the dataset's modules again, so they do not see what a test"
    " changed in them (with monkeypatch, for example). Pass such values to the dataset. Or, if your"
    " own loader forks its workers, pass loader={'multiprocessing_context': 'fork'}"
)
_ORDER_OF_SET = (
    "The order of a set of strings differs between interpreters (PYTHONHASHSEED), and a worker that"
    " is not forked is a new interpreter. If indices depend on that order, sort the set"
)
_DIFFERENT_IF_NOT_FORKED = _DIFFERENT_SAMPLES._replace(
    advice=f"{_IMPORTS}. {_ORDER_OF_SET}", overrides=True
)
_UNORDERED = Cause(
    "orders its samples differently in each process",
    _ORDER_OF_SET,
    overrides=True,
    fix="sort the set that the indices depend on",
)
_UNEVEN = Cause(
    "loses or repeats samples when the number of workers changes",
    "Split the stream with get_worker_info() so that the division leaves nothing over:"
    " shards[info.id :: info.num_workers], not len(shards) // info.num_workers per worker. If your"
    " number of workers never changes, exclude 'workers-agree': 'two-epochs' still compares the"
    " samples for that number",
    fix="split the stream with shards[info.id :: info.num_workers]",
)
_WITHOUT_ERROR: tuple[tuple[type[Fault], Cause], ...] = (
    (TruncatedFile, _SHORT_FILE),
    (ShortRead, _SHORT_READ),
)
"""Faults after which no call fails, and what a dataset does if it does not notice them."""
_OTHER_SAMPLE = (Wrong.SUBSTITUTED, Wrong.REORDERED, Wrong.REPEATED)
_NOT_FROM_FILE = (*_OTHER_SAMPLE, Wrong.IDENTICAL)
"""What is wrong with samples whose content is not what is left of a file."""


def _sample_cause(
    outcome: TrialFacts,
    wrong: Wrong | None,
    fault_free: TrialFacts,
    replaced: Mapping[type[Fault], Cause],
) -> Cause:
    """The likely cause of samples that are wrong in the way *wrong*.

    *fault_free*: an epoch without faults. *replaced*: the causes of samples with what a fault put
    in the place of content.
    """
    if not outcome.fired:
        return _dataset_cause(outcome, wrong, fault_free)
    fault = outcome.fired_faults[0]
    accepted = (cause for faults, cause in _WITHOUT_ERROR if isinstance(fault, faults))
    if wrong not in _NOT_FROM_FILE and (cause := next(accepted, None)):
        return cause
    if wrong is Wrong.MISSING:
        return _SKIPPED
    if outcome.kind == "iterable" and _count_rows(outcome) > _count_rows(fault_free):
        return _STARTED_AGAIN
    contained = (cause for kind, cause in replaced.items() if isinstance(fault, kind))
    if wrong not in _NOT_FROM_FILE and (cause := next(contained, None)):
        return cause
    cause = _NEIGHBOR if wrong in _OTHER_SAMPLE else _PLACEHOLDER
    is_of_reads = isinstance(fault, ReadError)
    return cause._replace(advice=cause.advice + _OR_READER) if is_of_reads else cause


def _count_rows(outcome: TrialFacts) -> int:
    """How many samples were delivered in its longest epoch."""
    return max((epoch.sample_count for epoch in outcome.epochs), default=0)


def _dataset_cause(outcome: TrialFacts, wrong: Wrong | None, fault_free: TrialFacts) -> Cause:
    if stopped_early(outcome):
        return draws.CONTINUES
    if _count_workers(outcome) > _count_workers(fault_free):
        return _UNEVEN
    if wrong is Wrong.SAME_IN_EACH_WORKER or (
        outcome.kind == "iterable" and wrong is Wrong.REPEATED
    ):
        return _OWN_PART_AGAIN if _repeats_own_part(outcome) else _SAME_SHARDS
    is_other = wrong in (Wrong.DIFFERS, Wrong.SUBSTITUTED) and outcome.kind == "map"
    if is_other and _are_workers_kept(outcome):
        return _CHANGES_KEPT
    if not is_not_forked(outcome):
        return _DIFFERENT_SAMPLES
    return _UNORDERED if wrong in _OTHER_SAMPLE else _DIFFERENT_IF_NOT_FORKED


def _are_workers_kept(outcome: TrialFacts) -> bool:
    """Whether the workers of the first epoch, which was right, make a later one as well."""
    return len(outcome.epochs) > 1 and bool(outcome.request.loader.get("persistent_workers"))


def _repeats_own_part(outcome: TrialFacts) -> bool:
    """Whether a worker repeats samples, but does not return those of all workers."""
    samples_by_worker: defaultdict[int | None, list[str]] = defaultdict(list)
    for batch in outcome.epochs[0].delivered:
        samples_by_worker[batch.worker] += batch.digests
    samples = {digest for part in samples_by_worker.values() for digest in part}
    return any(
        set(part) < samples and len(set(part)) < len(part) for part in samples_by_worker.values()
    )


def stopped_early(outcome: TrialFacts) -> bool:
    """Whether the loop left an epoch early, and started another one."""
    return any(not (epoch.complete or epoch.exception) for epoch in outcome.epochs[:-1])


def _count_workers(outcome: TrialFacts) -> int:
    return len({each.worker for each in outcome.workers})
