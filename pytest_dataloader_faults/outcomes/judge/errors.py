"""Whether the error or the death that ended a pass shows its cause. Pure."""

# Some facts about the error that a death becomes. A dead worker breaks whatever the loader does
# with it first. So the same death reaches the loop as a RuntimeError, or as a ConnectionResetError,
# an EOFError or a FileNotFoundError from the socket that was to deliver a tensor. Microseconds
# decide which one, so the judge ignores the error: the verdict follows from the death.
#
# Some facts about SIGBUS. A process gets it when it touches a page of a mapping that cannot be
# delivered (mmap(2)): a read of the disk failed, or the file ends before that page. The kernel has
# no other way to report the first, so SIGBUS is all that a dataset can do. The dataset can avoid
# the second, because fstat(2) reports the size when the file is mapped. torch blames shared memory
# for every SIGBUS, which misleads its reader.
#
# Some facts about errors that never reach the loader. A thread of the worker that feeds its queue
# pickles each result (multiprocessing/queues.py, ``_feed``). If a sample, or the exception to be
# sent instead, cannot be pickled, the thread prints the error and drops the batch: the worker lives
# on, and the loader waits forever. A spawned worker unpickles the dataset before torch's code in it
# starts, so the loader only learns that the worker "exited unexpectedly".
#
# Some facts about errors of libraries. Their texts are not the user's to change. But a library also
# raises an error if it gets something wrong from the user's code, such as None instead of an image:
# such an error is one of Python's for mistakes in a program, and one of OpenCV about an empty
# image.

from __future__ import annotations

import builtins
import os
import re
import signal

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults.base import Effect, FiringKind
from pytest_dataloader_faults.faults.globs import is_address, is_excluded
from pytest_dataloader_faults.outcomes import chains, error_text
from pytest_dataloader_faults.outcomes.chains import Raised
from pytest_dataloader_faults.outcomes.contract import Cause, Contract, Finding, Verdict
from pytest_dataloader_faults.outcomes.error_text import Occurrence, describe_fault
from pytest_dataloader_faults.outcomes.fault_facts import occurrences
from pytest_dataloader_faults.outcomes.judge.compare import may_be_damaged
from pytest_dataloader_faults.outcomes.records import Crash, Outcome, WorkerDeath
from pytest_dataloader_faults.outcomes.stages import RECOVERY, START

_CHAIN = ". Chain it to the original exception (raise ... from error)"
_RAISE_FROM = f"{_CHAIN}, or include the {{}} in its message"
_DROPPED_BY_READER = (
    ". The reader ignored the read error, as np.fromfile and scipy.io.wavfile.read do. Read the"
    " bytes with open(), which raises it"
)
_FALSE_CLASS = (
    ". Let the original exception through, or chain one whose class does not suggest another cause:"
    " raise OSError(...) from error"
)
_CONTINUED = (
    ". The error was caught, and the code continued without the value that it failed to read: do"
    " not catch the error, or raise it again"
)
_OF_STARTED_PROCESS = (
    ". The error occurred in a process that the worker started, and its exit status was ignored:"
    " call subprocess.run(..., check=True), which raises an error"
)
_OF_COMMAND = (
    ". The error occurred in a process that the worker started. Include what that process printed"
    " in the message: error.stderr, with capture_output=True"
)
_PROGRAM_ENDED = re.compile(
    r"\b(?i:status|(?:exit|return) ?code|signal|rc|exit|exited(?: with)?)\W{0,3}[1-9]\d*"
    r"|\bSIG[A-Z]{2,}\b"
)
"""How an error says with which status a program ended, or by which signal."""
_NO_START = (
    f"{_CHAIN}. If there is no original exception, a status is ignored: os.system() returns -1 if"
    " it cannot start a process. Call subprocess.run(..., check=True), which raises the error"
)
_RECURSES = Cause(
    Verdict.FAILED_UNCLEARLY.usual_cause.phrase,
    "The dataset calls itself for each substitute, until Python's recursion limit is reached. Try a"
    " limited number of other samples in a loop, and then raise the error that was caught",
    fix="try a limited number of substitutes in a loop, and then raise the original error",
    is_general=True,
)
_NO_ORIGINAL = (
    f"{_RAISE_FROM}. If there is no original exception, the reader ignores read errors, as"
    " np.fromfile and scipy.io.wavfile.read do: read the bytes with open()"
)
_WROTE_BEYOND_END = ". The dataset opened the file for writing, and wrote to it beyond its end"
_SAY_WHAT = ". Say in its message what is wrong, or include the {}"
_CANNOT_BE_REBUILT = (
    ": the exception's class cannot be rebuilt from its message. torch rebuilds the exception of a"
    " worker from its text, and its __str__ then raises {}, so path and reason are lost. Catch it"
    " in the dataset, and raise an exception of another class: raise OSError(str(error)) from error"
)
_OF_SQLITE = (
    ". SQLite names neither the file nor the errno. Catch sqlite3.Error, and raise an error that"
    " names the file: raise OSError(path) from error"
)
_SQLITE_ERROR = re.compile(r"^sqlite3\.\w+: ", re.MULTILINE)
_EXIT_STATUS = re.compile(r"\bCalledProcessError: ")
_COLLATED_NONE = re.compile(r"default_collate: .*found <class 'NoneType'>")
_DROP_NONE = (
    ": the dataset returned None, which default_collate cannot put into a batch. Raise the error"
    " instead, or skip the sample: declare Contract(may_skip=True), and drop None in a collate_fn"
)
_ENDS_WORKER = Cause(
    "ends a worker instead of raising an error",
    "The dataset, or a library that it uses, ended the worker with os._exit or sys.exit when it met"
    " the fault, so torch only knows that a worker is gone. Raise the error: torch sends it to the"
    " loop, with its traceback",
    fix="raise the error instead of calling os._exit or sys.exit",
)
_TRUNCATED = (
    ": it accessed a memory-mapped file beyond the point where it was truncated, and torch's"
    " message wrongly blames shared memory"
)
_MAPS_UNCHECKED = Cause(
    Verdict.FAILED_UNCLEARLY.usual_cause.phrase,
    "Before your code or a library such as LMDB maps a file, compare os.path.getsize(path) with the"
    " size that you expect, and raise an error if they differ",
    fix="compare os.path.getsize(path) with what you expect before the file is mapped",
)
_DROPPED = re.compile(
    r'^Traceback \(most recent call last\):\n  File ".*multiprocessing.queues\.py", line \d+, in'
    r" _feed\n(?:[ \t].*\n|\n|Traceback .*\n)*((?!Traceback )\S.*)",
    re.MULTILINE,
)
"""Two workers may print at once, so that the lines of one traceback stand within another."""
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): .*", re.MULTILINE)
_OF_DEAD_PEER = re.compile(r"Connection(Reset|Refused|Aborted)Error|BrokenPipeError|EOFError")
"""What a process prints when another one that it was connected to has died."""
_DIED = re.compile(r"exited unexpectedly|is killed by signal")
_START = re.compile(r"clone3?|v?fork")
"""The calls that start a thread or a process."""
_MISTAKES = (
    *(TypeError, AttributeError, NameError, IndexError, AssertionError),
    *(ArithmeticError, RecursionError),
)
_IN_VAIN = ("Empty", "TimeoutError")
"""The user's own thread waited for what another one lost: ``queue.Empty`` is such an error."""
_EMPTY_IMAGE = re.compile(r"^cv2\.error: .*\bempty\(\)", re.MULTILINE)
"""After ``cv2.imread``, which returns None if it cannot read a file."""
_UNREAD_IMAGE = Cause(
    Verdict.FAILED_UNCLEARLY.usual_cause.phrase,
    "cv2.imread returns None for a file that it cannot read, and the code went on with that. Check"
    " what it returns, and raise OSError(path)",
    fix="check whether cv2.imread returned None, and raise OSError(path) if it did",
)
_READER = re.compile(
    r"^\s+.*\b((?:np|numpy)\.(?:load|loadtxt|genfromtxt|memmap)|(?:torch|pickle|json)\.load)\(",
    re.MULTILINE,
)
"""A function in the source of a frame that reads a file, and whose errors do not name it."""
_OF_READER = ". {}() does not name the file: catch its error, and raise OSError(path) from error"
_SAMPLE = r"(?i:sample|index|idx|item|record|row|example|entry|element|#)\W{0,3}"
_LEAST_STEM = 3
"""A shorter stem is in a message by chance, such as the 1 of 1.jpg."""
_FROM_WORKER = "in DataLoader worker process"
"""In the message of each exception that torch raises for a worker."""
_NO_DESCRIPTOR = "received 0 items of ancdata"
"""What multiprocessing prints if no descriptor is free for one that it receives."""
_NOT_BY_FAULT = ", which no fault sent; another process or the kernel's OOM killer did (see dmesg)"


def find_unclear_error(outcome: Outcome, contract: Contract) -> Finding | None:
    """The exception of *outcome*, if it does not name its cause as it must."""
    raised = outcome.exception
    if raised is None or not outcome.fired or may_be_damaged(outcome, contract):
        return None
    if death := next((each for each in outcome.deaths if not _is_clear(outcome, each)), None):
        return _describe_death(outcome, death)
    hits = occurrences(outcome.faults)
    if not (outcome.deaths or _explains_cause(outcome, raised, hits)):
        return _describe_error(outcome, raised, hits)
    if contract.names_file and not _names_file(raised, hits):
        sentence = f"{raised.type} does not name the file, as the contract promises (names_file)"
        return Finding(Verdict.FAILED_UNCLEARLY, sentence)
    return None


def _describe_error(outcome: Outcome, raised: Raised, hits: list[Occurrence]) -> Finding:
    sentence = f"{_class_name(raised)} does not say that {_describe_occurrences(hits)}"
    if claim := error_text.find_other_cause(raised.text, hits):
        sentence += f", but blames {claim!r}, which is not the cause"
    elif chains.related_lines(raised.text) != chains.exception_lines(raised.text):
        sentence += ", and was raised by accident while that error was being handled"
    if _is_of_unread_image(raised):
        return Finding(Verdict.FAILED_UNCLEARLY, sentence, _UNREAD_IMAGE)
    if raised.type == RecursionError.__name__:
        return Finding(Verdict.FAILED_UNCLEARLY, sentence, _RECURSES)
    printed = dropped_batch_cause(outcome) or last_printed_error(outcome)
    printed = printed or (_WROTE_BEYOND_END if lengthens_data(outcome) else "")
    sentence += printed or _advice(outcome, raised, hits)
    return Finding(Verdict.FAILED_UNCLEARLY, sentence, library=_library_of(raised))


def _explains_cause(outcome: Outcome, raised: Raised, hits: list[Occurrence]) -> bool:
    """Whether a user can see the cause of the error.

    Python does not print the causes of an exit. The message about a factory that does not return a
    dataset is the trial's, not the dataset's.
    """
    text = raised.message if raised.type in ("SystemExit", "KeyboardInterrupt") else raised.text
    text = "" if raised.type == UnusableDatasetError.__name__ else text
    if error_text.explains_fault(text, hits):
        return True
    return not error_text.find_other_cause(raised.text, hits) and (
        _reports_program(outcome, text) or _names_sample(outcome, raised)
    )


def _class_name(raised: Raised) -> str:
    """The name of its class; with its module if that is lower-case, as for ``cv2.error``."""
    head = re.search(rf"^((?:\w+\.)+{raised.type})\b", raised.text, re.MULTILINE)
    return head[1] if head and raised.type.islower() else raised.type


def _is_of_unread_image(raised: Raised) -> bool:
    """Whether the code went on with the None that ``cv2.imread`` returns for an unreadable file."""
    is_none = "'NoneType'" in raised.message and "cv2." in raised.text
    return is_none or _EMPTY_IMAGE.search(raised.text) is not None


def _names_sample(outcome: Outcome, raised: Raised) -> bool:
    """Whether the user raised an error that names the file's stem, its folder or the sample.

    That explains a bad file, but not a lack of memory, of threads or of descriptors.
    """
    if raised.library or not chains.ends_at_raise(raised.text):
        return False
    lines = chains.chained_lines(raised.text).split("\n")
    text = "\n".join(line for line in lines if _FROM_WORKER not in line)
    of_files = (each for each in outcome.faults if faults.has_files(each.fault))
    firings = [firing for each in of_files for firing in each.firings if firing.path]
    paths = {firing.path for firing in firings if firing.path}
    stems = {os.path.splitext(os.path.basename(path))[0] for path in paths}
    folders = {"/".join(os.path.dirname(path).split("/")[-2:]) for path in paths}
    samples = {firing.sample for firing in firings if firing.sample is not None}
    names = [*(stem for stem in stems if len(stem) >= _LEAST_STEM), *folders]
    words = [*map(re.escape, names), *(f"{_SAMPLE}{number}" for number in samples)]
    return any(re.search(rf"(?<!\w){each}(?!\w)", text) for each in words)


def _library_of(raised: Raised) -> str:
    """The library that is to blame for what *raised* says; "" if it is not."""
    kind = getattr(builtins, raised.type, None)
    is_mistake = isinstance(kind, type) and issubclass(kind, _MISTAKES)
    is_of_user = is_mistake or raised.type in _IN_VAIN or _EMPTY_IMAGE.search(raised.text)
    return "" if is_of_user else raised.library


def _crashed_library(outcome: Outcome) -> str:
    """The library that crashed each worker that died, after a fault in it; "" if none did.

    Only if memory or threads lacked: then code in C can often do nothing else.
    """
    hit = {firing.pid for firing in outcome.firings}
    libraries = [each.library for each in outcome.of(Crash)]
    is_of_library = len(libraries) >= len(outcome.deaths) and all(libraries)
    is_of_fault = all(each.exitcode < 0 and each.pid in hit for each in outcome.deaths)
    is_lacking = outcome.has_fired(faults.MemoryExhaustion, faults.ThreadExhaustion)
    is_to_blame = is_of_library and is_of_fault and is_lacking
    return ", ".join(dict.fromkeys(libraries)) if is_to_blame else ""


def died_of_unreadable_page(outcome: Outcome) -> bool:
    """Whether the constructor's process got SIGBUS, since the disk could not deliver a page."""
    is_of_disk = all(isinstance(each, faults.ReadError) for each in outcome.fired_faults)
    maps = any(firing.call == "mmap" for firing in outcome.firings)
    is_in_constructor = outcome.phase == START and outcome.end.exitcode == -signal.SIGBUS
    return is_in_constructor and is_of_disk and maps


def _reports_program(outcome: Outcome, text: str) -> bool:
    """Whether *text* names a program that met the fault, or says how one ended.

    Nobody but that program knows more. A process that runs Python can raise an exception.
    """
    programs = {each.program for each in outcome.firings if each.program}
    others = [re.escape(each) for each in programs if not each.startswith("python")]
    lines = chains.exception_lines(text)
    is_named = any(re.search(rf"\b{each}\b", lines) for each in others)
    return is_named or (bool(others) and _PROGRAM_ENDED.search(lines) is not None)


def find_explaining_deaths(outcome: Outcome) -> tuple[WorkerDeath, ...]:
    """The deaths that caused the exception; none if a worker has sent it."""
    raised = outcome.exception
    is_sent = raised is not None and _FROM_WORKER in raised.message
    return () if is_sent else outcome.deaths


def _describe_occurrences(hits: list[Occurrence]) -> str:
    """What happened, as the dataset saw it: the errnos, or the state of a file or a worker."""
    hidden = [each for each in hits if each.is_of_folder and each.fault.hides_file]
    numbers = sorted({each.fault.errno for each in hits if each not in hidden} - {0})
    errnos = ", ".join(f"[Errno {number}] {os.strerror(number)}" for number in numbers)
    # No call has failed for a hidden file, nor by a fault without an errno.
    happened = [("{} is missing", each.path) for each in hidden]
    happened += [(describe_fault(each.fault), each.path) for each in hits if not each.fault.errno]
    paths: dict[str, set[str]] = {sentence: set() for sentence, _ in happened}
    for sentence, path in happened:
        paths[sentence] |= {path} if path else set()
    files = (os.path.basename(*each) if len(each) == 1 else "a file" for each in paths.values())
    sentences = map(str.format, paths, files)
    return " or ".join([*([f"its cause is {errnos}"] if errnos else []), *sentences])


def _advice(outcome: Outcome, raised: Raised, hits: list[Occurrence]) -> str:
    """What to do about an error that does not say what happened."""
    text, is_single = raised.text, chains.has_single_exception(raised.text)
    pids = {each.pid for each in outcome.processes}
    is_elsewhere = bool(pids) and not any(each.pid in pids for each in outcome.firings)
    is_of_server = any(each.path and is_address(each.path) for each in hits)
    is_of_read = any(isinstance(each.fault, faults.ReadError) for each in hits)
    is_local = is_single and not is_of_server
    reader = (_READER.findall(text) or [""])[-1]
    by_reader = _OF_STARTED_PROCESS if is_elsewhere else _DROPPED_BY_READER
    rows = (
        (_COLLATED_NONE.search(text), _DROP_NONE),
        (raised.unprintable, _CANNOT_BE_REBUILT.format(raised.unprintable)),
        (error_text.false_class(text, hits), _FALSE_CLASS),
        (is_elsewhere and _EXIT_STATUS.search(text), _OF_COMMAND),
        (_SQLITE_ERROR.search(text), _OF_SQLITE),
        (raised.type in ("UnboundLocalError", "NameError"), _CONTINUED),
        (reader and is_single and raised.library, _OF_READER.format(reader)),
        (is_of_read and is_local and chains.ends_at_raise(text) is False, by_reader),
        (is_of_read and is_local, _NO_ORIGINAL),
        (is_local and any(_START.fullmatch(each.call) for each in hits), _NO_START),
        (
            any(each.fault.errno and not each.is_of_folder for each in hits),
            _RAISE_FROM if any(each.path for each in hits) else _CHAIN,
        ),
        (True, _SAY_WHAT),
    )
    has_file = any(each.path or not each.fault.errno for each in hits)
    missing = "file's path" if has_file else "original error"
    advice = next(advice for applies, advice in rows if applies)
    return advice.format("server's address" if is_of_server else missing)


def _names_file(raised: Raised, hits: list[Occurrence]) -> bool:
    """Whether *raised* names one of the files; true if there is no file to name."""
    lines = chains.exception_lines(raised.text)
    # torch's own error about a delay or a death does not name a file.
    nameable = (each for each in hits if not each.fault.effects & (Effect.DELAY | Effect.DEATH))
    paths = [each.path for each in nameable if each.path]
    return not paths or any(error_text.mentions_path(lines, path) for path in paths)


def _is_clear(outcome: Outcome, death: WorkerDeath) -> bool:
    firings = outcome.firings
    if any(firing.pid == death.pid and firing.kind is FiringKind.DEATH for firing in firings):
        return True
    # torch cannot pass on an index or a sample that is a tensor then.
    if _NO_DESCRIPTOR in outcome.stderr and outcome.has_fired(faults.DescriptorExhaustion):
        return death.exitcode == 1
    mapped_by = {firing.worker for firing in firings if firing.call == "mmap"}
    is_mapped = bool({None, death.worker} & mapped_by)
    may_be_clear = is_mapped or outcome.has_fired(faults.SharedMemoryExhaustion)
    return death.exitcode == -signal.SIGBUS and may_be_clear


def _describe_death(outcome: Outcome, death: WorkerDeath) -> Finding:
    cause = _ENDS_WORKER if death.exitcode >= 0 else None
    if death.exitcode == -signal.SIGBUS and outcome.has_fired(faults.TruncatedFile):
        why, cause = _TRUNCATED, _MAPS_UNCHECKED
    elif death.exitcode == -signal.SIGKILL:
        why = _NOT_BY_FAULT
    else:
        happened = _describe_occurrences(occurrences(outcome.faults))
        why = f", and the loader's exception does not say that {happened}"
    sentence = f"{death}{why}{last_printed_error(outcome)}"
    library = _crashed_library(outcome)
    return Finding(Verdict.FAILED_UNCLEARLY, sentence, cause, library=library)


def lengthens_data(outcome: Outcome) -> bool:
    """Whether the dataset opened a truncated file for writing, and wrote to it beyond its end."""
    return any(each.lengthened_files for each in outcome.processes)


def dropped_batch_cause(outcome: Outcome) -> str:
    """Why a batch was dropped, as the end of a sentence; empty if none was."""
    if errors := _DROPPED.findall(outcome.stderr):
        error = errors[-1][: chains.MOST_QUOTED]
        return (
            f": a worker could not pickle its result ({error}), so torch's queue thread printed"
            " that error and dropped the batch"
        )
    return ""


def torch_dropped_a_batch(outcome: Outcome) -> bool:
    """Whether torch itself hangs, because each fault took only what torch needs for a batch."""
    hung = outcome.timed_out and outcome.phase != RECOVERY
    fired = outcome.fired_faults
    scarce = all(Effect.SCARCITY in each.effects for each in fired)
    paths = [firing.path for firing in outcome.firings]
    hit_data = any(path and not is_excluded(path) for path in paths)
    return bool(hung and fired and scarce) and not hit_data


def last_printed_error(outcome: Outcome) -> str:
    """The last error that a dead worker printed, as the end of a sentence; empty if none."""
    raised = outcome.exception
    errors = _ERROR.findall(outcome.stderr)
    printed = [each for each in errors if not _OF_DEAD_PEER.match(each)]
    if raised is None or not printed or not (outcome.deaths or _DIED.search(raised.text)):
        return ""
    return f"; a worker printed: {printed[-1][: chains.MOST_QUOTED]}"
