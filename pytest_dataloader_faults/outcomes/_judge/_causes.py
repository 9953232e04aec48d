"""The likely cause of a failure, in a few words, and the advice that mends it. Pure.

Many checks fail for one cause: a dataset that gives zeros for what it cannot read fails eight of
them. So a cause is named by what the dataset does, and not by the fault that showed it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.faults._writes import is_of_writing
from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._fault_facts import shared_offset_files
from pytest_dataloader_faults.outcomes._verdicts import Judgement, Verdict


class Cause(NamedTuple):
    """What a dataset does wrong, in a few words, and one sentence that leads to the fix.

    *overrides*: that sentence holds in place of what the check advises.
    """

    phrase: str
    advice: str = ""
    overrides: bool = False


_SAME_SHARDS = Cause(
    "each worker gives all samples (not split by get_worker_info())",
    "Each worker iterates over the whole stream. Let it take only its own part in __iter__, by"
    " info = torch.utils.data.get_worker_info(): shards[info.id :: info.num_workers]",
)
_IN_PLACE = "gives a sample in place of one that cannot be read"
_NEIGHBOUR = Cause(
    _IN_PLACE,
    "Another sample came in place of one that could not be read, and nobody is told. Let the error"
    " reach the loader, or try the same file a few times and then raise. If it is meant, say"
    " Contract(may_substitute=True)",
)
_DUMMY = Cause(
    _IN_PLACE,
    "Zeros, or another sample that was made up, came in place of one that could not be read. Raise"
    " the error instead of catching it. If it is meant, say Contract(may_substitute=True)",
)
_LOST = Cause(
    "leaves out samples without an error",
    "Raise the error instead of leaving out the sample. If it is meant, say"
    " Contract(may_skip=True)",
)
_SHORT_FILE = Cause(
    "accepts a truncated file",
    "Compare how many bytes or values came with how many a sample needs, and raise where there are"
    " fewer",
)
_SHORT_READ = Cause(
    "accepts a short read",
    "One read may return fewer bytes than it was asked for: read on until all are there, as a"
    " buffered open() does",
)
_DAMAGE = Cause("accepts damaged bytes", "Compare a checksum, and raise where it differs")
UNPICKLABLE = Cause(
    "cannot be pickled",
    "Workers that are started by spawn or forkserver receive the dataset, its transforms and the"
    " loader's functions by pickle. That is the default on macOS and Windows, and on Linux from"
    " Python 3.14 on. Leave handles out of what is pickled (__getstate__) and open them in the"
    " worker; use classes and functions of a module, not local ones and not lambdas; put many"
    " small tensors into one",
)
_UNPICKLED = UNPICKLABLE._replace(
    advice=f"{UNPICKLABLE.advice}. Or, if your own loader forks its workers, have this one do so:"
    " loader={'multiprocessing_context': 'fork'}"
)
_PICKLE = re.compile(r"[Pp]ickl")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NOT_IN_MAIN = re.compile(r"AttributeError: .*(module|attribute).*'__mp_main__'")
_BELOW_GUARD = Cause(
    "is defined where workers cannot import it",
    "A worker that is not forked imports the script without what is below"
    " if __name__ == '__main__': define the dataset and what it needs above that",
    overrides=True,
)
_NO_GUARD = "has imported the main module"
"""From the message of the trial that a worker refuses to run."""
_UNGUARDED = Cause(
    "runs a trial as its main module is imported",
    "Put what the script does below: if __name__ == '__main__':",
    overrides=True,
)
_OTHERS = Cause("workers give other samples than the main process")
_OTHERS_IF_NOT_FORKED = _OTHERS._replace(
    advice="A worker that is not forked imports the modules of the dataset anew. It does not see"
    " what a test has changed in them, as monkeypatch does. Hand such values to the dataset, or, if"
    " your own loader forks its workers, pass loader={'multiprocessing_context': 'fork'}",
)
_PROMISED = Cause("fails, although the contract promises that it survives")
_TORN = Cause(
    "leaves a file that is not whole",
    "A later reading took a file for whole that a failed write had left behind. Write to another"
    " name in the same folder, and give the file its name by os.replace() when all of it is there."
    " A writer may drop the error of a write, as np.save does of the data: compare the size first",
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
_BY_VERDICT = {
    Verdict.HUNG: "waits for ever",
    Verdict.CRASHED: "ends the process that iterates the loader",
    Verdict.LEAKED: "leaves something behind",
    Verdict.FAILED_UNCLEARLY: "raises an error that does not tell its cause",
    Verdict.POISONED: "stays broken after the fault is gone",
    Verdict.BROKEN: "fails without a fault",
    Verdict.NOT_EXERCISED: "no fault happened",
}
_LMDB_ERROR = re.compile(r"lmdb\.|MDB_[A-Z_]+|already open in this process")
_HANDLE = "uses a file that was opened before the fork"
_HOW_TO_OPEN = {
    ".h5": "HDF5 does not survive a fork: open h5py.File in the worker, for its first sample",
    ".mdb": (
        "LMDB does not survive a fork, and py-lmdb refuses to open the same path twice in one"
        " process: open the environment in the worker, for its first sample, and never in the main"
        " process before that"
    ),
    "": "Workers then share its file offset: open it in the worker, for its first sample",
}
_SUFFIXES = {".h5": ".h5", ".hdf5": ".h5", ".hdf": ".h5", ".mdb": ".mdb", ".lmdb": ".mdb"}


def likely_cause(outcome: TrialFacts, judgement: Judgement, control: TrialFacts) -> Cause | None:
    """What is likely to be wrong, if *judgement* is a failure; *control*: an epoch without faults.

    A cause that is known from the files comes before one that is known from the samples.
    """
    if judgement.passed:
        return None
    path = next(_open_before_fork(outcome, control), None)
    if path is not None and judgement.verdict is not Verdict.NOT_EXERCISED:
        kind = _suffix(path)
        opened = f"{os.path.basename(path)} was opened before the workers started."
        return Cause(_HANDLE, f"{opened} {_HOW_TO_OPEN[kind]}", overrides=kind == ".mdb")
    if cause := _of_writing(outcome, judgement.verdict, control):
        return cause
    if judgement.verdict is Verdict.CORRUPTED:
        return _of_wrong_samples(outcome, judgement.sentence)
    return cause_of_start(outcome) or _of_verdict(outcome, judgement.verdict)


def _of_verdict(outcome: TrialFacts, verdict: Verdict) -> Cause:
    if verdict is Verdict.BROKEN and outcome.fired:
        return _PROMISED
    if verdict is Verdict.HUNG and any(each.unlimited_waits for each in outcome.workers):
        return _NO_LIMIT
    return Cause(_BY_VERDICT[verdict])


def _of_writing(outcome: TrialFacts, verdict: Verdict, control: TrialFacts) -> Cause | None:
    """What is wrong where a write failed, or where a worker that writes files met another fault."""
    failed = any(is_of_writing(each.fault) for each in outcome.faults if each.fired)
    if verdict is Verdict.POISONED and (failed or _writes_files(control)):
        return _TORN
    if failed and verdict is Verdict.CORRUPTED:
        return _TORN
    text = outcome.exception.text if outcome.exception else ""
    is_hidden = failed and verdict is Verdict.FAILED_UNCLEARLY and _OF_STREAM.search(text)
    return _HIDDEN_BY_STREAM if is_hidden else None


def _writes_files(control: TrialFacts) -> bool:
    return any(each.writes for worker in control.workers for each in worker.files.values())


def cause_of_start(outcome: TrialFacts) -> Cause | None:
    """Why the dataset did not come to its workers, if they are not forked."""
    if outcome.exception is None or outcome.fired or not _is_started_anew(outcome):
        return None
    text = f"{outcome.exception.text}\n{outcome.stderr}"
    if _NO_GUARD in text:
        return _UNGUARDED
    if _NOT_IN_MAIN.search(text):
        return _BELOW_GUARD
    if missing := _NO_MODULE.search(text):
        advice = (
            f"A worker that is not forked cannot import {missing[1]}, where something of the"
            " dataset is defined. Put that in a module that Python finds, or set pythonpath in"
            " pytest's configuration: --import-mode=importlib does not make test files such modules"
        )
        return Cause("is defined where workers cannot import it", advice, overrides=True)
    return _UNPICKLED if _PICKLE.search(outcome.exception.text) else None


def _is_started_anew(outcome: TrialFacts) -> bool:
    """Whether workers are not forked, and so import modules anew and get the dataset by pickle."""
    return outcome.start_method not in ("", "fork")


def _open_before_fork(outcome: TrialFacts, control: TrialFacts) -> Iterator[str]:
    """The files that workers use through handles from before the fork, where that is to blame."""
    if not outcome.fired:
        yield from shared_offset_files((*control.workers, *outcome.workers))
        raised = outcome.exception
        if raised is not None and _LMDB_ERROR.search(raised.text):
            yield "data.mdb"
        yield from [path for path in _inherited(outcome, control) if _suffix(path)]
    firings = (one for each in outcome.faults for one in each.firings)
    yield from (one.path for one in firings if one.path and one.call == "dup2")


def _inherited(outcome: TrialFacts, control: TrialFacts) -> list[str]:
    """The files that workers read and did not open."""
    files = [item for each in (*control.workers, *outcome.workers) for item in each.files.items()]
    return [path for path, counts in files if counts.reads and not counts.opens]


def _suffix(path: str) -> str:
    return _SUFFIXES.get(os.path.splitext(path)[1], "")


def _of_wrong_samples(outcome: TrialFacts, sentence: str) -> Cause:
    if not outcome.fired:
        is_repeated = outcome.kind == "iterable" and "more often than" in sentence
        if is_repeated:
            return _SAME_SHARDS
        return _OTHERS_IF_NOT_FORKED if _is_started_anew(outcome) else _OTHERS
    if "it has the content of" in sentence or "more often than" in sentence:
        return _NEIGHBOUR
    if "it has the same content" in sentence:
        return _DUMMY
    if "missing" in sentence:
        return _LOST
    fired = [each.fault for each in outcome.faults if each.fired]
    kinds = {
        faults.TruncatedFile: _SHORT_FILE,
        faults.ShortRead: _SHORT_READ,
        faults.CorruptedFile: _DAMAGE,
    }
    return next((cause for kind, cause in kinds.items() if isinstance(fired[0], kind)), _DUMMY)
