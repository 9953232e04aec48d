"""The likely cause of a failure, in a few words, and the advice that mends it. Pure.

It follows from facts: the kind of what is wrong, the fault that happened, the files and the stacks.

Many checks fail for one cause: a dataset that gives zeros for what it cannot read fails eight of
them. So a cause is named by what the dataset does, and not by the fault that showed it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from pytest_dataloader_faults.faults import (
    CorruptedFile,
    Fault,
    ReadError,
    ShortRead,
    TruncatedFile,
)
from pytest_dataloader_faults.faults.base import FiringKind, Place
from pytest_dataloader_faults.outcomes.contract import Cause, Judgement, Verdict, Wrong
from pytest_dataloader_faults.outcomes.fault_facts import shared_offset_files
from pytest_dataloader_faults.outcomes.judge import advice, ranks, resume
from pytest_dataloader_faults.outcomes.judge.advice import advised
from pytest_dataloader_faults.outcomes.judge.errors import ends_that_explain, last_error_printed
from pytest_dataloader_faults.outcomes.judge.repeats import Trial
from pytest_dataloader_faults.outcomes.judge.starts import (
    cause_of_start,
    is_started_anew,
    of_answers,
)
from pytest_dataloader_faults.outcomes.records import TrialFacts
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import Activity

_PROMISED = Cause("fails, although the contract promises that it survives")
_ENDS_WORKER = Cause(
    "ends a worker without a fault",
    "No fault ended that worker: the dataset did, or a library that it uses. Look for os._exit,"
    " sys.exit, os.exec*, a signal that is sent, or a close of descriptors that are not its own. If"
    " it is a crash, num_workers=0 under python -X faulthandler shows the line",
)
_TORN = Cause(
    "leaves a file that is not whole",
    "A later reading took a file for whole that a failed write had left behind. Write to another"
    " name in the same folder, and give the file its name by os.replace() when all of it is there."
    " A writer may drop the error of a write, as np.save does of the data: compare the size first",
    overrides=True,
)
_KEPT = Cause(
    "keeps what it made of bad files",
    "A later run believed an index or a cache that was made of bad files. Look whether the source"
    " is whole before anything is written of it, write to another name in the same folder, and"
    " rename it by os.replace(). Keep size and mtime of the source with it, and compare them in"
    " each run",
    overrides=True,
)
_OF_STREAM = re.compile(r"iostream error|unexpected pos \d+ vs \d+")
_HIDDEN_BY_STREAM = Cause(
    "saves by torch.save to a path, which does not tell why a write failed",
    "torch.save writes to a path by a C++ stream, which drops the errno. Hand it a file that open()"
    " made: its errors come through",
    overrides=True,
)
_NO_LIMIT = Cause(
    "waits for a server without a time limit",
    "Give the client a time limit, as by requests.get(url, timeout=30), urlopen(url, timeout=30) or"
    " socket.setdefaulttimeout(30). A server that is gone without a word is no rare thing",
)
_THREADS = Cause(
    "waits for a thread that was started before the fork",
    "A worker waits for a thread of the main process. A fork copies no thread but the one that"
    " calls it: start the pool, or open the decoder, in the worker, for its first sample. If the"
    " main process has one, make another where os.getpid() differs",
    overrides=True,
)
ALONE = Cause(
    "hangs or dies at times without any fault",
    "The fault of this check may have no part in it. A library that has threads or locks of its own"
    " often does not survive a fork: open what it reads in the worker, or start workers in another"
    " way, as by loader={'multiprocessing_context': 'spawn'}",
    overrides=True,
)
_LONGER = (
    "If it is to take so long, give it more: deadline=300, in seconds, as an argument or in the"
    " marker, or --dataloader-faults-deadline=300"
)
_BY_ACTIVITY = {
    Activity.DELIVERS: Cause("is slow under this fault", f"It had not hung. {_LONGER}", True),
    Activity.READS: Cause(
        "is slow under this fault, or reads the same again and again",
        f"Look for a retry without a limit at the line of its stack. {_LONGER}",
        overrides=True,
    ),
    Activity.SLEEPS: Cause(
        "sleeps between retries for longer than its deadline",
        f"Raise the error after a few attempts, as where it sleeps no longer. {_LONGER}",
        overrides=True,
    ),
    Activity.COMPUTES: Cause(
        "tries forever, or computes for longer than its deadline",
        "Look for a retry without a limit at the line of its stack: try a few times, and then raise"
        f" the error. {_LONGER}",
        overrides=True,
    ),
}
"""Where nothing moves, the verdict says the cause."""
_BY_VERDICT = {
    Verdict.HUNG: "waits forever",
    Verdict.CRASHED: advice.DIES,
    Verdict.LEAKED: "leaves something behind",
    Verdict.FAILED_UNCLEARLY: advice.UNCLEAR,
    Verdict.POISONED: "stays broken after the fault is gone",
    Verdict.BROKEN: "fails without a fault",
    Verdict.NOT_EXERCISED: "no fault happened",
}
_LASTING = (Verdict.CORRUPTED, Verdict.POISONED)
_STAYS_IN_WORKER = Cause(
    _BY_VERDICT[Verdict.POISONED],
    "Something of the failed read stays in the worker: a note, a lock, or a buffer that was not"
    " filled, as HDF5 has one for each dataset that is open. After an error, close the file, and"
    " open it again for the next sample",
)
_LMDB_ERROR = re.compile(r"lmdb\.|MDB_[A-Z_]+|already open in this process")
_HANDLE = "uses a file that was opened before the fork"
_HOW_TO_OPEN = {
    ".h5": "HDF5 does not survive a fork: open h5py.File in the worker, for its first sample",
    ".mdb": (
        "LMDB does not survive a fork, and py-lmdb refuses to open the same path twice in one"
        " process: open the environment in the worker, for its first sample. Where the main process"
        " has opened it before, close it in the worker first: if self.env is not None and self.pid"
        " != os.getpid(): self.env.close()"
    ),
    "": "Workers then share its file offset: open it in the worker, for its first sample",
}
_SUFFIXES = {".h5": ".h5", ".hdf5": ".h5", ".hdf": ".h5", ".mdb": ".mdb", ".lmdb": ".mdb"}


class Clues(NamedTuple):
    """What is known beyond the facts of one trial.

    Attributes:
        is_caught: Whether the dataset does the same after an error, which it must have caught.
        waits_for_thread: Whether it hung in a lock or in a queue of threads.
        was_used_before: Whether the loader's process read a sample before its workers started.
        copies_sources: Whether make_dataset copies what it reads into the folder of the trial.
    """

    is_caught: bool = False
    waits_for_thread: bool = False
    copies_sources: bool = False
    was_used_before: bool = False


_NO_CLUES = Clues()


def likely_cause(
    outcome: TrialFacts, judgement: Judgement, fault_free: TrialFacts, clues: Clues = _NO_CLUES
) -> Cause | None:
    """What is likely to be wrong, if *judgement* fails; *fault_free*: an epoch without faults.

    A cause that is known from the files comes before one that is known from the samples.
    """
    if judgement.passed:
        return None
    return advised(outcome, _cause_of(outcome, judgement, fault_free, clues))


def _cause_of(
    outcome: TrialFacts, judgement: Judgement, fault_free: TrialFacts, clues: Clues
) -> Cause:
    path = next(_open_before_fork(outcome, judgement.verdict, fault_free), None)
    if path is not None and judgement.verdict is not Verdict.NOT_EXERCISED:
        kind = _suffix(path)
        opened = f"{os.path.basename(path)} was opened before the workers started."
        return Cause(_HANDLE, f"{opened} {_HOW_TO_OPEN[kind]}", overrides=kind == ".mdb")
    of_epoch = _OF_EPOCH.get(judgement.kind)
    if cause := of_epoch or _of_writing(outcome, judgement.verdict, fault_free, clues):
        return cause
    if judgement.verdict in _LASTING and _raised_in_an_earlier_epoch(outcome):
        return _STAYS_IN_WORKER
    if judgement.verdict is Verdict.CORRUPTED:
        return _of_wrong_samples(outcome, judgement.kind, fault_free, is_caught=clues.is_caught)
    return cause_of_start(outcome) or _of_verdict(outcome, judgement.verdict, clues)


def _raised_in_an_earlier_epoch(outcome: TrialFacts) -> bool:
    return any(one.exception for one in outcome.passes[:-1])


def _of_verdict(outcome: TrialFacts, verdict: Verdict, clues: Clues) -> Cause:
    if verdict is Verdict.BROKEN:
        return _of_broken(outcome)
    if verdict is Verdict.HUNG and (cause := of_answers(outcome)):
        return cause
    if verdict is Verdict.HUNG and any(each.unlimited_waits for each in outcome.workers):
        return _NO_LIMIT
    is_alone = not outcome.fired and not is_started_anew(outcome)
    if verdict is Verdict.HUNG and is_alone and (clues.waits_for_thread or clues.was_used_before):
        return _THREADS
    found = outcome.at_deadline
    if verdict is Verdict.HUNG and found and found.activity in _BY_ACTIVITY:
        return _BY_ACTIVITY[found.activity]
    return Cause(_BY_VERDICT[verdict])


def _of_broken(outcome: TrialFacts) -> Cause:
    if outcome.fired:
        return _PROMISED
    if ends_that_explain(outcome) and not last_error_printed(outcome):
        return _ENDS_WORKER._replace(overrides=is_started_anew(outcome))
    return Cause(_BY_VERDICT[Verdict.BROKEN])


def _of_writing(
    outcome: TrialFacts, verdict: Verdict, fault_free: TrialFacts, clues: Clues
) -> Cause | None:
    """What is wrong where a write failed, or where a worker that writes files met another fault."""
    if verdict is Verdict.POISONED and outcome.from_start:
        return _COPIED if clues.copies_sources else _KEPT
    failed = any(Place.WRITE in each.fault.places for each in outcome.faults if each.fired)
    hangs = outcome.timed_out  # As while it waits for what an error has left undone in memory.
    if verdict is Verdict.POISONED and (failed or (_writes_files(fault_free) and not hangs)):
        return _TORN
    if failed and verdict is Verdict.CORRUPTED:
        return _TORN
    text = outcome.exception.text if outcome.exception else ""
    is_hidden = failed and verdict is Verdict.FAILED_UNCLEARLY and _OF_STREAM.search(text)
    return _HIDDEN_BY_STREAM if is_hidden else None


def _writes_files(fault_free: TrialFacts) -> bool:
    return any(each.writes for worker in fault_free.workers for each in worker.files.values())


def _open_before_fork(
    outcome: TrialFacts, verdict: Verdict, fault_free: TrialFacts
) -> Iterator[str]:
    """The files that workers use through handles from before the fork, where that is to blame.

    What is in a file that was open before is no matter of the handle, unless workers read the file
    at one offset: pread(2) and a mapping have none.
    """
    shared = shared_offset_files((*fault_free.workers, *outcome.workers))
    if verdict is Verdict.POISONED:  # The offset is where the fault left it, in each process.
        yield from _inherited(outcome, fault_free, by_calls=True)
    if not outcome.fired:
        yield from shared
        raised = outcome.exception
        if raised is not None and _LMDB_ERROR.search(raised.text):
            yield "data.mdb"
        yield from [path for path in _inherited(outcome, fault_free) if _suffix(path)]
    firings = (one for each in outcome.faults for one in each.firings)
    replaced = (one.path for one in firings if one.kind is FiringKind.REPLACED)
    yield from (path for path in replaced if path in shared)


def _inherited(outcome: TrialFacts, fault_free: TrialFacts, *, by_calls: bool = False) -> list[str]:
    """The files that workers read and did not open; *by_calls*: and did not map."""
    files = [
        item for each in (*fault_free.workers, *outcome.workers) for item in each.files.items()
    ]
    return [
        path
        for path, counts in files
        if counts.reads and not counts.opens and (counts.bytes or not by_calls)
    ]


def _suffix(path: str) -> str:
    return _SUFFIXES.get(os.path.splitext(path)[1], "")


# Some facts about what was caught. A file that is cut off and a read that is short raise no error
# of their own: a reader may notice, and a dataset may catch what the reader raises. Or no code
# looks, and what was in memory before comes as the rest of the sample, which may be the content of
# another one. The samples are the same in both cases. But a dataset that catches the one error
# hardly ever lets the other through. So the same files are tried once more, such that they cannot
# be opened: if the same comes, an error was caught, and if not, a file was taken for whole.


_SAME_SHARDS = Cause(
    "each worker gives all samples (not split by get_worker_info())",
    "Each worker iterates over the whole stream. Let it take only its own part in __iter__, by"
    " info = torch.utils.data.get_worker_info(): shards[info.id :: info.num_workers]",
)
_NEIGHBOUR = Cause(
    advice.IN_PLACE,
    "Another sample came in place of one that could not be read, without an error. Let the error"
    " reach the loader, or try the same file a few times and then raise. If it is meant, say"
    " Contract(may_substitute=True)",
)
_DUMMY = Cause(
    advice.IN_PLACE,
    "Zeros, or another value that was made up, came in place of what could not be read. Raise"
    " the error instead of catching it. If it is meant, say Contract(may_substitute=True)",
)
_OR_READER = (
    ". If nothing catches it, the reader does: np.fromfile and scipy.io.wavfile.read drop the error"
    " of a read, so read by open()"
)
_STARTED_AGAIN = Cause(
    "starts the stream again after an error",
    "More samples were delivered than in the reference: after the error, the stream was started"
    " again from its first sample. Continue behind the file that failed, or let the error reach the"
    " loader",
)
_LOST = Cause(
    advice.LEAVES_OUT,
    "Raise the error instead of leaving out the sample. If it is meant, say"
    " Contract(may_skip=True)",
)
_SHORT_FILE = Cause(
    advice.TRUNCATED,
    "Compare how many bytes or values came with how many a sample needs, and raise where there are"
    " fewer. If the reader raises for that, do not catch its error",
)
_SHORT_READ = Cause(
    advice.SHORT,
    "One read may return fewer bytes than it was asked for: read on until all are there, as a"
    " buffered open() does. If the reader raises for that, do not catch its error",
)
_DAMAGE = Cause(advice.DAMAGED, "Compare a checksum, and raise where it differs")
_OTHERS = Cause("workers give other samples than the main process")
_IMPORTS = (
    "A worker that is not forked imports the modules of the dataset again. It does not see what a"
    " test has changed in them, as monkeypatch does. Hand such values to the dataset, or, if your"
    " own loader forks its workers, pass loader={'multiprocessing_context': 'fork'}"
)
_ORDER_OF_SET = (
    "The order of a set of str differs in each interpreter (PYTHONHASHSEED), and a worker that is"
    " not forked is another one. Where indices follow that order, sort it"
)
_OTHERS_IF_NOT_FORKED = _OTHERS._replace(advice=f"{_IMPORTS}. {_ORDER_OF_SET}", overrides=True)
_UNORDERED = Cause("has another order of samples in each process", _ORDER_OF_SET, overrides=True)
_UNEVEN = Cause(
    "loses or repeats samples with another number of workers",
    "Split the stream by what get_worker_info() says, so that nothing is left over of a division:"
    " shards[info.id :: info.num_workers], and not len(shards) // info.num_workers for each. If the"
    " loop always has the same number of workers, exclude 'workers-agree': 'two-epochs' compares"
    " the samples of that number, too",
)
_USED_UP = Cause("has fewer samples in the second epoch")
_SAME_AGAIN = Cause("has the same random samples in each epoch")
_GOES_ON = Cause("goes on where an epoch was left")
_SAMPLER_GOES_ON = _GOES_ON._replace(
    advice="The sampler has kept its place from the epoch before, which did not come to its end."
    " Begin anew in each call of its __iter__: write it as a generator function, and keep no"
    " iterator and no position on self",
    overrides=True,
)
_STOPS = Cause(
    "ends the epoch by a StopIteration",
    "A StopIteration that leaves __getitem__ or collate_fn ends the loop over the loader as the end"
    " of the data does, without an error. It comes of next(...) on an iterator that has nothing"
    " left: give next() a default, or catch the StopIteration and raise another error. If the"
    " loader has an __iter__ of its own, it must let errors through",
    overrides=True,
)
_USE_COPY = (
    "pass copy=FOLDER to the check: each trial then copies FOLDER before the fault is injected, and"
    " passes the copy to make_dataset"
)
_COPIED = Cause(
    "copies damaged files in make_dataset",
    "The fault was there when make_dataset copied the files, so the copy is what was damaged."
    f" Instead of copying there, {_USE_COPY}",
    overrides=True,
)
_NOT_TWICE = Cause(
    "cannot be made twice in the same folder",
    "The recovery calls make_dataset again with the folder of the trial, so make_dataset must"
    f" accept what is there. If it copies the data into the folder, {_USE_COPY}",
    overrides=True,
)
_OF_EPOCH: dict[Wrong | None, Cause] = {
    Wrong.NOT_TWICE: _NOT_TWICE,
    Wrong.RESUMED: _SAMPLER_GOES_ON,
    Wrong.USED_UP: _USED_UP,
    Wrong.CUT_SHORT: _STOPS,
    **ranks.CAUSES,
    **resume.CAUSES,
}
_WITHOUT_ERROR: tuple[tuple[type[Fault], Cause], ...] = (
    (TruncatedFile, _SHORT_FILE),
    (ShortRead, _SHORT_READ),
)
"""Faults after which no call fails, and what a dataset does that does not notice."""
_OF_ANOTHER = (Wrong.SUBSTITUTED, Wrong.REORDERED, Wrong.REPEATED)


def _of_wrong_samples(
    outcome: TrialFacts, kind: Wrong | None, fault_free: TrialFacts, *, is_caught: bool
) -> Cause:
    """What is likely to be wrong where samples are wrong in the way *kind*.

    *fault_free*: an epoch without faults. *is_caught*: whether the dataset does the same after an
    error, which it must have caught.
    """
    if not outcome.fired:
        return _of_dataset_alone(outcome, kind, fault_free)
    fault = next(each.fault for each in outcome.faults if each.fired)
    accepted = (cause for faults, cause in _WITHOUT_ERROR if isinstance(fault, faults))
    if not is_caught and (cause := next(accepted, None)):
        return cause
    if kind is Wrong.MISSING:
        return _LOST
    if outcome.kind == "iterable" and _count_rows(outcome) > _count_rows(fault_free):
        return _STARTED_AGAIN
    if isinstance(fault, CorruptedFile) and kind not in (*_OF_ANOTHER, Wrong.ALIKE):
        return _DAMAGE
    cause = _NEIGHBOUR if kind in _OF_ANOTHER else _DUMMY
    is_of_reads = isinstance(fault, ReadError)
    return cause._replace(advice=cause.advice + _OR_READER) if is_of_reads else cause


def _count_rows(outcome: TrialFacts) -> int:
    """How many samples came in its longest epoch."""
    return max((sum(len(b.rows or ()) for b in one.delivered) for one in outcome.passes), default=0)


def _of_dataset_alone(outcome: TrialFacts, kind: Wrong | None, fault_free: TrialFacts) -> Cause:
    if kind is Wrong.SAME_AGAIN:
        return _SAME_AGAIN
    if was_left_early(outcome):
        return _GOES_ON
    if _count_workers(outcome) > _count_workers(fault_free):
        return _UNEVEN
    if kind is Wrong.SAME_IN_EACH_WORKER or (outcome.kind == "iterable" and kind is Wrong.REPEATED):
        return _SAME_SHARDS
    if not is_started_anew(outcome):
        return _OTHERS
    return _UNORDERED if kind in _OF_ANOTHER else _OTHERS_IF_NOT_FORKED


def was_left_early(outcome: TrialFacts) -> bool:
    """Whether the loop left an epoch, and made another one after it."""
    return any(not (one.complete or one.exception) for one in outcome.passes[:-1])


def _count_workers(outcome: TrialFacts) -> int:
    return len({each.worker for each in outcome.workers})


def is_without_error(outcome: TrialFacts, judgement: Judgement) -> bool:
    """Whether samples are wrong after a fault that lets no call fail."""
    fired = [each.fault for each in outcome.faults if each.fired]
    kinds = tuple(kind for kind, _ in _WITHOUT_ERROR)
    return judgement.kind is not None and bool(fired) and isinstance(fired[0], kinds)


def is_alike(one: Trial, other: Trial, reference: Reference) -> bool:
    """Whether the dataset does the same in two trials: it loses samples, or gives the same ones.

    Which other sample of the dataset comes in place of one may be by chance.
    """
    kind = one.judgement.kind
    if (
        kind in (*_OF_ANOTHER, Wrong.ALIKE, Wrong.MISSING, Wrong.CUT_SHORT)
        and kind is other.judgement.kind
    ):
        return True
    known = {digest for _, digest in reference.samples}
    first, second = ({*_digests(each.outcome)} - known for each in (one, other))
    return not first.isdisjoint(second)


def _digests(outcome: TrialFacts) -> list[str]:
    return [digest for each in outcome.delivered for digest in each.rows or (each.digest,)]
