"""The likely cause of a failure, in a few words, and the advice that fixes it. Pure.

It follows from facts: what is wrong with the samples, the fault that fired, files and stacks.

Many checks fail for one cause: a dataset that returns zeros for unreadable data fails eight of
them. So a cause is named after what the dataset does, not after the fault that revealed it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from pytest_dataloader_faults.faults import (
    CorruptedFile,
    Fault,
    HttpError,
    ReadError,
    ShortRead,
    ThreadExhaustion,
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
from pytest_dataloader_faults.outcomes.judge import hangs, rules, sharing
from pytest_dataloader_faults.outcomes.judge.errors import (
    find_explaining_deaths,
    last_printed_error,
    lengthens_data,
)
from pytest_dataloader_faults.outcomes.judge.sharing import sending_cause, start_cause
from pytest_dataloader_faults.outcomes.libraries import HOW_TO_SHARE, add_advice
from pytest_dataloader_faults.outcomes.records import Outcome
from pytest_dataloader_faults.outcomes.reference import by_worker

_ENDS_WORKER = Cause(
    "terminates a worker without a fault",
    "No injected fault ended this worker: the dataset did, or a library that it uses. Look for"
    " os._exit, sys.exit, os.exec*, a signal sent to the worker, or code that closes file"
    " descriptors it does not own. The output of the workers may say why. A library may not allow a"
    " fork after it was used: use it first in the worker, or start workers with forkserver",
    fix="remove os._exit, sys.exit and signals from the dataset",
    is_general=True,
)
_LOCKED_BY_WORKER = Cause(
    "locks a file that its other workers need",
    "One of the dataset's processes holds a lock of the file, and another one cannot get it.",
    fix="open the file for reading only",
)
_WRITES_DATA = Cause(
    "opens its data for writing",
    "The dataset opened a truncated file for writing, and wrote to it beyond its end. h5py, LMDB"
    " and np.memmap do that without an error: they treat an empty file as a new one, or extend a"
    " short one with zeros. Open data read-only: h5py.File(path, 'r'), lmdb.open(path,"
    " readonly=True), np.memmap(path, mode='r')",
    fix="open data read-only (mode='r')",
)
INTERMITTENT = Cause(
    "hangs or crashes intermittently without a fault",
    "The fault of this check may be unrelated. Libraries with their own threads or locks often do"
    " not survive a fork: open what they read in the worker, or use another start method, such as"
    " loader={'multiprocessing_context': 'spawn'}",
    fix="open the library's files in the worker, or start workers with spawn",
)
FAILS_INTERMITTENTLY = Cause(
    "fails intermittently without a fault",
    "A pass without a fault failed in one trial, and passed in another, so its result depends on"
    " which process or thread is first. Look for what workers share: a file that one reads while"
    " another still writes or removes it, a connection, or a folder that several create. Write such"
    " a file to a temporary name, and rename it with os.replace()",
    fix="write shared files to a temporary name, and rename them with os.replace()",
)
_STAYS_IN_WORKER = Cause(
    Verdict.POISONED.usual_cause.phrase,
    "The worker keeps something from the failed read: a flag, a lock or an unfilled buffer (HDF5"
    " keeps one per open dataset). After an error, close the file and reopen it for the next"
    " sample",
    fix="discard everything from the failed read",
    is_general=True,
)


CauseRule = Callable[[Outcome, Verdict, Outcome], Cause | None]
"""What a package of checks knows: a cause, by a trial, its verdict, and an epoch without faults."""


def likely_cause(
    outcome: Outcome,
    finding: Finding,
    fault_free: Outcome,
    rules: Iterable[CauseRule] = (),
    *,
    after_one: bool = False,
) -> Cause | None:
    """The likely cause, if *finding* is a failure; *fault_free*: an epoch without faults.

    *after_one*: whether the main process read a sample before its workers started.
    """
    if finding.passed:
        return None
    causes = _possible_causes(outcome, finding, fault_free, rules, after_one=after_one)
    return add_advice(outcome, next(filter(None, causes)))


def _possible_causes(
    outcome: Outcome,
    finding: Finding,
    fault_free: Outcome,
    rules: Iterable[CauseRule],
    *,
    after_one: bool,
) -> Iterator[Cause | None]:
    """The causes that apply, the most certain first: what files show before what samples show."""
    verdict = finding.verdict
    if finding.cause is INTERMITTENT:
        yield finding.cause
    if verdict is not Verdict.NOT_EXERCISED:
        yield sharing.file_cause(outcome, verdict, fault_free)
    if outcome.has_fired(ThreadExhaustion):
        yield _exhaustion_cause(outcome, finding)
    if finding.cause is not FAILS_INTERMITTENTLY:
        yield finding.cause
    yield from (rule(outcome, verdict, fault_free) for rule in rules)
    yield sharing.connection_cause(outcome, verdict)
    yield sharing.temporary_name_cause(outcome)
    yield sharing.early_read_cause(outcome, verdict)
    yield finding.cause
    if verdict in (Verdict.CORRUPTED, Verdict.FAILED_UNCLEARLY) and lengthens_data(outcome):
        yield _WRITES_DATA
    raised_earlier = any(epoch.exception for epoch in outcome.epochs[:-1])
    if verdict in (Verdict.CORRUPTED, Verdict.POISONED) and raised_earlier:
        yield _STAYS_IN_WORKER
    if verdict is Verdict.CORRUPTED:
        yield _sample_cause(outcome, finding.wrong, fault_free)
    yield start_cause(outcome)
    if verdict is Verdict.FAILS_WITHOUT_FAULT:
        yield _fault_free_cause(outcome)
    if verdict is Verdict.HUNG or (verdict is Verdict.LEAKED and outcome.timed_out):
        yield sending_cause(outcome) or hangs.likely_cause(outcome, after_one=after_one)
    yield verdict.usual_cause


def _fault_free_cause(outcome: Outcome) -> Cause | None:
    if find_explaining_deaths(outcome) and not last_printed_error(outcome):
        return _ENDS_WORKER._replace(is_general=outcome.loader.is_forked)
    text = outcome.exception.text if outcome.exception else ""
    for error, how_to_share in HOW_TO_SHARE.items():
        if re.search(error, text):
            return _LOCKED_BY_WORKER._replace(advice=f"{_LOCKED_BY_WORKER.advice} {how_to_share}")
    return None


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
    is_general=True,
)
_OTHER_ORDERS = Cause(
    "divides an order that differs between workers",
    "Each worker shuffles the samples in its own way and takes its part of that order, so the parts"
    " overlap, and leave out others. Shuffle with a seed that all workers share, or divide first",
    fix="shuffle with a seed that all workers share, or divide the samples first",
    is_general=True,
)
_OWN_PART_AGAIN = Cause(
    "repeats samples of a worker's own part",
    "A worker repeats samples of its own part of the stream, for example because its loop counts to"
    " the length of the whole stream. End __iter__ at the end of the worker's own part",
    fix="end __iter__ after the last sample of the worker's own part",
    is_general=True,
)
_NEIGHBOR = Cause(
    SUBSTITUTES,
    "A different sample was returned for one that could not be read, without an error. Let the"
    " error reach the loader, or retry the same file a few times and then raise. If the"
    " substitution is intentional, declare Contract(may_substitute=True)",
    fix="raise the error instead of catching it, or declare Contract(may_substitute=True)",
    is_general=True,
)
_PLACEHOLDER = _NEIGHBOR._replace(
    advice="A placeholder, such as zeros, was returned for a sample that could not be read. Raise"
    " the error instead of catching it. If the substitution is intentional, declare"
    " Contract(may_substitute=True)"
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
    is_general=True,
)
_SKIPPED = Cause(
    SKIPS,
    "Raise the error instead of skipping the sample. If skipping is intentional, declare"
    " Contract(may_skip=True)",
    fix="raise the error instead of skipping the sample, or declare Contract(may_skip=True)",
    is_general=True,
)
_SHORT_FILE = Cause(
    TRUNCATED,
    "Compare the number of bytes or values that you read with the number that a sample needs, and"
    " raise an error if there are fewer. If the reader already raises one, do not catch it",
    fix="compare the size or the record count with what you expect, and raise an error",
    is_general=True,
)
_SHORT_READ = Cause(
    SHORT,
    "A read may return fewer bytes than requested: keep reading until you have all of them, as a"
    " buffered open() does. If the reader already raises an error, do not catch it",
    fix="keep reading until you have all bytes",
    is_general=True,
)
_DAMAGE = Cause(
    DAMAGED,
    "Verify a checksum, and raise an error if it does not match",
    fix="verify a checksum, and raise an error if it does not match",
    is_general=True,
)
_DIFFERENT_SAMPLES = Cause(
    "returns different samples in workers than in the main process",
    fix="make samples depend on the index alone",
)
_SHARED_BY_THREADS = Cause(
    "mixes up samples in the threads of a worker",
    "The samples of a batch are made in threads, and depend on what the threads share. If each of"
    " them seeks and reads in one file, one may read where another has just moved: use os.pread(),"
    " open the file in each thread, or hold a lock from seek() to read()",
    fix="use os.pread(), or open the file in each thread",
    is_general=True,
)
_CHANGES_KEPT = Cause(
    "changes a sample that it keeps",
    "A sample is right when a worker reads it for the first time, and another one in the next"
    " epoch: the dataset keeps it, and changes it in place. Change a copy",
    fix="change a copy of a sample that the dataset keeps",
    is_general=True,
)
_IMPORTS = (
    "Workers that are not forked import the dataset's modules again, so they do not see what a test"
    " changed in them (with monkeypatch, for example). Pass such values to the dataset. Or, if your"
    " own loader forks its workers, pass loader={'multiprocessing_context': 'fork'}"
)
_ORDER_OF_SET = (
    "The order of a set of strings, and hash() of a string, differ between interpreters"
    " (PYTHONHASHSEED), such as ranks and workers that are not forked. If indices, labels or splits"
    " depend on them, sort the set, and use hashlib instead of hash()"
)
_DIFFERENT_IF_NOT_FORKED = _DIFFERENT_SAMPLES._replace(advice=f"{_IMPORTS}. {_ORDER_OF_SET}")
_UNORDERED = Cause(
    "depends on the order of a set or on hash()",
    _ORDER_OF_SET,
    fix="sort the set, and use hashlib instead of hash()",
)
_UNEVEN = Cause(
    "loses or repeats samples when the number of workers changes",
    "Split the stream with get_worker_info() so that the division leaves nothing over:"
    " shards[info.id :: info.num_workers], not len(shards) // info.num_workers per worker. If your"
    " number of workers never changes, exclude 'workers-agree': 'two-epochs' still compares the"
    " samples for that number",
    fix="split the stream with shards[info.id :: info.num_workers]",
    is_general=True,
)
ERROR_PAGE = Cause(
    "uses the error page of a server as data",
    "The page that a server sent with an error status became part of a sample. Check the status"
    " before you use the body: call response.raise_for_status(), or with urllib3 raise an error"
    " unless response.status is 200",
    fix="call response.raise_for_status() before you use the body",
    is_general=True,
)
PAGE_AS_DATA = Cause(
    "uses the page of a login or of a quota as data",
    "The server sent a page with status 200, which became part of a sample. Compare the type of the"
    " content, its length or a checksum with what you expect, and raise an error",
    fix="check the Content-Type, the length or a checksum of a response",
)
_WHOLE_AS_PART = Cause(
    "uses a whole file as the part that it requested",
    "The server ignored the Range header, as it may, and sent the whole file with status 200."
    " Compare the status with 206, and raise an error, or cut the part out of the response",
    fix="check that the status of a range request is 206",
)
_BY_FAULT: dict[type[Fault], Cause] = {
    TruncatedFile: _SHORT_FILE,
    ShortRead: _SHORT_READ,
    CorruptedFile: _DAMAGE,
    HttpError: ERROR_PAGE,
}
"""What a dataset does whose samples contain what a fault left of a file, or put in its place."""
_OTHER_SAMPLE = (Wrong.SUBSTITUTED, Wrong.REORDERED, Wrong.REPEATED)


def _sample_cause(outcome: Outcome, wrong: Wrong | None, fault_free: Outcome) -> Cause:
    """The likely cause of samples that are wrong in the way *wrong*."""
    if not outcome.fired:
        return _dataset_cause(outcome, wrong, fault_free)
    fault = outcome.fired_faults[0]
    may_be_of_file = wrong not in (*_OTHER_SAMPLE, Wrong.IDENTICAL)
    kind = next((each for each in _BY_FAULT if isinstance(fault, each)), None)
    accepted = _BY_FAULT[kind] if kind and may_be_of_file else None
    if isinstance(fault, HttpError) and accepted and fault.claims_success:
        accepted = _WHOLE_AS_PART if fault.ignores_range else PAGE_AS_DATA
    if accepted in (_SHORT_FILE, _SHORT_READ):  # Then samples may be missing as well.
        return accepted
    if wrong is Wrong.MISSING:
        return _SKIPPED
    if outcome.kind == "iterable" and _count_samples(outcome) > _count_samples(fault_free):
        return _STARTED_AGAIN
    if accepted:
        return accepted
    cause = _NEIGHBOR if wrong in _OTHER_SAMPLE else _PLACEHOLDER
    is_of_reads = isinstance(fault, ReadError)
    return cause._replace(advice=cause.advice + _OR_READER) if is_of_reads else cause


def _count_samples(outcome: Outcome) -> int:
    """How many samples were delivered in its longest epoch."""
    return max((epoch.sample_count for epoch in outcome.epochs), default=0)


def _dataset_cause(outcome: Outcome, wrong: Wrong | None, fault_free: Outcome) -> Cause:
    if any(not (epoch.complete or epoch.exception) for epoch in outcome.epochs[:-1]):
        return rules.CONTINUES  # The loop left an epoch early.
    is_first = len(outcome.epochs) == 1
    is_short_stream = outcome.kind == "iterable" and wrong is Wrong.MISSING and is_first
    if is_short_stream or _count_workers(outcome) > _count_workers(fault_free):
        return _UNEVEN
    if wrong is Wrong.SAME_IN_EACH_WORKER or (
        outcome.kind == "iterable" and wrong is Wrong.REPEATED
    ):
        return _cause_of_repetition(outcome)
    is_other = wrong in (Wrong.DIFFERS, Wrong.SUBSTITUTED) and outcome.kind == "map"
    # The same workers made the first epoch, which was right.
    is_kept = len(outcome.epochs) > 1 and outcome.request.loader.get("persistent_workers")
    has_threads = any("thread" in each.counts_of("starts") for each in outcome.workers)
    if is_other and (is_kept or has_threads):
        return _CHANGES_KEPT if is_kept else _SHARED_BY_THREADS
    if outcome.loader.is_forked:
        return _DIFFERENT_SAMPLES
    # In epoch 2, workers make the dataset, and import the same modules as in the first one.
    is_made_there = len(outcome.epochs) > 1
    return _UNORDERED if is_made_there or wrong in _OTHER_SAMPLE else _DIFFERENT_IF_NOT_FORKED


def _cause_of_repetition(outcome: Outcome) -> Cause:
    """Why a stream repeats samples: by which of them each worker has, and how often."""
    parts = [
        [digest for batch in batches for digest in batch.digests]
        for batches in by_worker(outcome.epochs[0].delivered).values()
    ]
    samples = set().union(*parts)
    if any(set(part) < samples and len(set(part)) < len(part) for part in parts):
        return _OWN_PART_AGAIN
    is_part = bool(parts) and all(set(part) < samples for part in parts)
    return _OTHER_ORDERS if is_part else _SAME_SHARDS


def _count_workers(outcome: Outcome) -> int:
    return len({each.worker for each in outcome.workers})


# Some facts about libraries. libgomp prints an error and exits. OpenBLAS, which NumPy and SciPy
# use, prints one, sends SIGINT to its own process, and then waits for the missing thread in a loop.
# Python sees the signal only after that; if it does, torch's worker exits with status 0, without an
# error. Arrow raises an error if the call itself needs a thread, but waits for a file that a thread
# of its own should read. C++ code that does not catch std::system_error aborts.


_PRINTED = re.compile(r"libgomp: Thread creation failed|OpenBLAS \w+: pthread_create failed")
_IN_ARROW = "/pyarrow/"
OF_LIBRARY = Cause(
    "uses a library that hangs or exits without its threads",
    "A library could not start its threads, and raised no error: OpenBLAS, which NumPy uses, and"
    " Arrow then wait forever, and OpenMP ends the worker. Workers run in parallel already, so"
    " limit libraries to one thread in each: set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1"
    " before the program starts, call cv2.setNumThreads(0) in worker_init_fn, and pass"
    " use_threads=False and pre_buffer=False to pyarrow.parquet.read_table()",
    fix="limit libraries to one thread per worker, for example with OPENBLAS_NUM_THREADS=1",
)
WAITS = Cause(
    "waits for a thread or process that did not start",
    "A thread or a process could not be started, and the code waits for its result. Let the error"
    " of start() or submit() reach the loader, assign a pool or a queue only after its threads have"
    " started, and pass a timeout to result(), join() and get()",
    fix="let the error of start() reach the loader, before anything waits for the thread",
)
ENDS_WORKER = Cause(
    "crashes the worker when a thread or process cannot start",
    "A signal killed the worker when a thread or a process could not be started, so the loader's"
    " error does not say why. C++ code aborts if nothing catches std::system_error: limit the"
    " library to one thread per worker. In Python, raise an exception",
    fix="limit libraries to one thread per worker, and raise an exception in Python",
)


def _exhaustion_cause(outcome: Outcome, finding: Finding) -> Cause | None:
    """What the dataset does wrong if a thread or a process is refused."""
    waits = finding.verdict in (Verdict.HUNG, Verdict.LEAKED) and outcome.timed_out
    is_unclear = finding.verdict is Verdict.FAILED_UNCLEARLY
    ended = is_unclear and bool(find_explaining_deaths(outcome))
    if (waits or ended) and (_PRINTED.search(outcome.stderr) or _IN_ARROW in outcome.end.stacks):
        return OF_LIBRARY
    if waits:
        return WAITS
    return ENDS_WORKER if ended and finding.cause is None else None
