"""What to do about a likely cause: by the library that is recognized, or by the cause. Pure.

A trial notes facts: settings of libraries, files, calls and signals. Each ``Hint`` says by which of
them a library or a format is recognized, for which causes that matters, and what to do then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from pytest_dataloader_faults.faults import OpenError, TruncatedFile
from pytest_dataloader_faults.faults.base import Effect
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.records import TrialFacts

IN_PLACE = "gives a sample in place of one that cannot be read"
LEAVES_OUT = "leaves out samples without an error"
TRUNCATED = "accepts a truncated file"
SHORT = "accepts a short read"
DAMAGED = "accepts damaged bytes"
DIES = "ends the process that iterates the loader"
UNCLEAR = "raises an error that hides its cause"
_PILLOW = "PIL.ImageFile.LOAD_TRUNCATED_IMAGES"
_IMAGES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".ppm")
_TABLES = (".csv", ".tsv")
_TAR = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")


class Hint(NamedTuple):
    """How a library or a format is recognized, and the advice for it.

    Attributes:
        is_recognized: Whether the facts of a trial show it.
        causes: The likely causes for which that matters, by their phrases.
        advice: What happened, and what to do.
        fix: What to do, in one sentence.
    """

    is_recognized: Callable[[TrialFacts], bool]
    causes: tuple[str, ...]
    advice: str
    fix: str


def _reads(*suffixes: str) -> Callable[[TrialFacts], bool]:
    """Whether the content of a file with one of the *suffixes* was bad."""

    def is_recognized(outcome: TrialFacts) -> bool:
        bad = (each for each in outcome.faults if Effect.BAD_DATA in each.fault.effects)
        paths = (one.path or "" for each in bad for one in each.firings)
        return any(path.lower().endswith(suffixes) for path in paths)

    return is_recognized


def _has_setting(name: str, *suffixes: str) -> Callable[[TrialFacts], bool]:
    """Whether the setting *name* of a library was on where such a file was bad."""
    is_of_file = _reads(*suffixes)
    return lambda outcome: (
        any(name in each.settings for each in outcome.processes) and is_of_file(outcome)
    )


def _got_sigbus(outcome: TrialFacts) -> bool:
    ends = (outcome.exitcode, *(each.exitcode for each in outcome.deaths))
    return -signal.SIGBUS in ends


def _got_sigbus_in(suffix: str) -> Callable[[TrialFacts], bool]:
    """Whether a process got SIGBUS where a file with the *suffix* was mapped."""

    def is_recognized(outcome: TrialFacts) -> bool:
        paths = (one.path or "" for each in outcome.faults for one in each.firings)
        return _got_sigbus(outcome) and any(os.path.splitext(each)[1] == suffix for each in paths)

    return is_recognized


def _maps_truncated_file(outcome: TrialFacts) -> bool:
    cut = (each for each in outcome.faults if isinstance(each.fault, TruncatedFile))
    maps = any(one.call == "mmap" for each in cut for one in each.firings)
    return maps or (_got_sigbus(outcome) and any(map(_is_cut, outcome.schedule)))


def _is_cut(fault: object) -> bool:
    return isinstance(fault, TruncatedFile)


def _lists_files(outcome: TrialFacts) -> bool:
    missing = (each.fault for each in outcome.faults if each.fired)
    return outcome.from_start and any(isinstance(f, OpenError) and f.hides_file for f in missing)


_ACCEPTS = (TRUNCATED, SHORT, DAMAGED, IN_PLACE, LEAVES_OUT)
HINTS = (
    Hint(
        _has_setting(_PILLOW, *_IMAGES),
        _ACCEPTS,
        f"Pillow accepts truncated images because LOAD_TRUNCATED_IMAGES is set: remove {_PILLOW} ="
        " True, and let its OSError reach the loader",
        f"remove {_PILLOW} = True",
    ),
    Hint(
        _reads(*_TAR),
        (TRUNCATED, LEAVES_OUT),
        "An archive that ends between two members looks complete to tarfile. A complete one ends"
        " with an end-of-archive block: check that its last 1,024 bytes are zeros, or compare the"
        " number of members with a count that is kept elsewhere, and raise an error",
        "check that the tar archive ends with 1,024 zero bytes, or count its members",
    ),
    Hint(
        _reads(*_TABLES),
        (TRUNCATED, LEAVES_OUT),
        "A table that ends early is a shorter table. Compare its number of rows with the number of"
        " features, or with a count that is kept elsewhere, and raise an error if they differ",
        "compare the number of rows with the number of features, or with a count kept elsewhere",
    ),
    Hint(
        _got_sigbus_in(".arrow"),
        (DIES,),
        "Hugging Face datasets maps its Arrow files. Pass keep_in_memory=True to load_from_disk():"
        " the files are then read, and a read that fails raises an OSError. If mapping is"
        " intentional, list the check in expected_failures",
        "pass keep_in_memory=True to load_from_disk()",
    ),
    Hint(
        _maps_truncated_file,
        (TRUNCATED, LEAVES_OUT, DIES),
        "The length of a mapping is no check: np.memmap without shape takes what is there. Before"
        " mapping, compare os.path.getsize(path) with the size of the shape, math.prod(shape) *"
        " dtype.itemsize, and raise an error if they differ",
        "compare os.path.getsize(path) with math.prod(shape) * dtype.itemsize before mapping",
    ),
    Hint(
        _lists_files,
        (LEAVES_OUT,),
        "The dataset lists its files, and a listing does not contain a file that is missing."
        " Compare the number of files with a count that is kept elsewhere, and raise an error if"
        " they differ. If it is meant, say Contract(may_skip=True)",
        "compare the number of files with a count that is kept elsewhere",
    ),
)

_OPEN_LATE = "open the file in the worker, for its first sample"
FIXES = {
    IN_PLACE: "raise the error instead of catching it, or declare Contract(may_substitute=True)",
    LEAVES_OUT: "raise the error instead of leaving out the sample, or declare"
    " Contract(may_skip=True)",
    TRUNCATED: "compare the size or a count of records with what you expect, and raise an error",
    SHORT: "read on until all bytes are there",
    DAMAGED: "verify a checksum, and raise an error if it does not match",
    UNCLEAR: "raise the error from the original one (raise ... from error), or name the file",
    DIES: "find the line in the stack that the process printed",
    "waits forever": "give each wait a timeout, and raise an error when it is over",
    "leaves something behind": "close files, threads and processes where the epoch ends",
    "stays broken after the fault is gone": "keep nothing of a read that failed",
    "fails without a fault": "run the loop without the plugin, and fix the error that it raises",
    "no fault happened": "use the same files in each call of make_dataset",
    "fails, although the contract promises that it survives": "handle the error, or drop"
    " survives=True",
    "ends a worker without a fault": "remove os._exit, sys.exit and signals from the dataset",
    "leaves a file that is not whole": "write to another name, and rename it by os.replace()",
    "keeps what it made of bad files": "check the source before writing a cache of it, and rename"
    " the cache by os.replace()",
    "copies damaged files in make_dataset": "pass copy=FOLDER to the check",
    "cannot be made twice in the same folder": "accept what is in the folder, or pass copy=FOLDER"
    " to the check",
    "saves by torch.save to a path, which does not tell why a write failed": "pass torch.save a"
    " file that open() returned",
    "waits for a server without a time limit": "give the client a timeout, as in"
    " requests.get(url, timeout=30)",
    "waits for a thread that was started before the fork": "start the thread in the worker, for its"
    " first sample",
    "hangs or dies at times without any fault": "open what the library reads in the worker, or"
    " start workers by spawn",
    "is slow under this fault": "pass a longer deadline=",
    "is slow under this fault, or reads the same again and again": "limit the number of retries",
    "sleeps between retries for longer than its deadline": "raise the error after a few attempts",
    "tries forever, or computes for longer than its deadline": "limit the number of retries",
    "uses a file that was opened before the fork": _OPEN_LATE,
    "each worker gives all samples (not split by get_worker_info())": "let each worker take"
    " shards[info.id :: info.num_workers], with info = get_worker_info()",
    "workers give other samples than the main process": "make samples depend on the index alone",
    "has another order of samples in each process": "sort the set where indices follow its order",
    "loses or repeats samples with another number of workers": "split by"
    " shards[info.id :: info.num_workers]",
    "has fewer samples in the second epoch": "create iterators and generators in __iter__",
    "has the same random samples in each epoch": "seed each worker from torch.initial_seed()",
    "goes on where an epoch was left": "start again in each call of __iter__",
    "ends the epoch by a StopIteration": "give next() a default, or raise another error",
    "starts the stream again after an error": "continue behind the file that failed",
    "gives ranks different numbers of batches": "give each rank as many batches as the others",
    "has ranks in different epochs at a time": "give each rank as many batches as the others",
    "gives several ranks the same samples": "split the samples by rank and by worker",
    "gives some samples to no rank": "split the samples by rank and by worker",
    "counts the samples of all ranks in its length": "return the length of the rank's own part",
    "shuffles each epoch alike": "shuffle by a seed and the number that set_epoch() gets",
    "has a state that cannot be saved": "return plain data from state_dict()",
    "cannot go on from its own state": "use nothing in load_state_dict() that only iterating makes",
    "gives out a state that goes on changing": "return copy.deepcopy() of the state",
    "has a state that grows with each batch": "keep a position, and not what came",
    "begins the epoch anew when it is to go on": "let __iter__ start at the position that"
    " load_state_dict() has set",
    "begins another epoch where the last batch was had": "deliver nothing when resumed after the"
    " last batch",
    "saves a state that is ahead of the loop": "count a batch where the loop gets it",
    "saves a state that is behind the loop": "save the position of the last sample delivered",
    "does not restore its random order": "save the seed or the generator's state with the position",
    "has no whole epoch after its end was restored": "let a loaded position hold for one epoch",
    "cannot be pickled": "leave handles out of __getstate__, and use no lambdas or local classes",
    "cannot be unpickled": "make pickle.loads(pickle.dumps(dataset)) work in a new process",
    "is defined where workers cannot import it": "define the dataset in a module",
    "runs a trial as its main module is imported": "put what the script does below"
    " if __name__ == '__main__':",
    "gives samples that cannot be pickled": "return tensors, arrays or plain data",
    "sends an error or a sample that cannot be pickled": "raise an error of a class in a module",
}
"""What to do about each likely cause, by its phrase, in one imperative sentence."""


def advised(outcome: TrialFacts, cause: Cause) -> Cause:
    """*cause* with its fix; with the advice for a library, where one is recognized."""
    for hint in HINTS:
        if cause.phrase in hint.causes and hint.is_recognized(outcome):
            return cause._replace(advice=hint.advice, fix=hint.fix, overrides=True)
    return cause._replace(fix=FIXES.get(cause.phrase, ""))
