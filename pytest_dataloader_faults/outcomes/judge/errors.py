"""Does the error or the death that ended a pass show its cause? Pure.

Some facts about the error that a death becomes. A dead worker breaks whatever the loader does with
it first. So the same death reaches the loop as RuntimeError, or as ConnectionResetError, EOFError
or FileNotFoundError from the socket through which a tensor was to come. Which of them is a matter
of microseconds, so the judge ignores the error: the verdict follows from the death.

Some facts about SIGBUS. A process gets it where it touches a page of a mapping that cannot be
delivered (mmap(2)): a read of the disk failed, or the file ends before that page. For the first
there is no other way to report an error, so SIGBUS is all that a dataset can do. The second could
have been seen: fstat(2) told the size when the file was mapped. torch blames shared memory for
each SIGBUS, which misleads its reader.

Some facts about errors that no exception carries to the loader. What a worker has to send is
pickled in a thread that feeds its queue (multiprocessing/queues.py, ``_feed``). An error there, of
a sample that cannot be pickled or of the exception that should be sent in its place, is printed and
the batch dropped: the worker lives on, and the loader waits forever. And a worker that is spawned
unpickles the dataset before torch's code in it begins, so that the loader learns of an error there
only that the worker "exited unexpectedly".
"""

from __future__ import annotations

import os
import re
import signal

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults.base import Effect, FiringKind
from pytest_dataloader_faults.globs import is_excluded, is_of_network
from pytest_dataloader_faults.outcomes import chains, error_text
from pytest_dataloader_faults.outcomes.contract import Contract, Finding, Verdict
from pytest_dataloader_faults.outcomes.fault_facts import occurrences
from pytest_dataloader_faults.outcomes.judge.samples import may_be_damaged
from pytest_dataloader_faults.outcomes.records import Raised, TrialFacts, WorkerDeath
from pytest_dataloader_faults.outcomes.stages import RECOVERY

_RAISE_FROM = (
    ". Raise it from the original exception (raise ... from error), or put the {} in its message"
)
_DROPPED_BY_READER = (
    ". The reader hid the error of the read from the dataset, as np.fromfile and"
    " scipy.io.wavfile.read do. Read by open(), which raises it"
)
_FALSE_CLASS = (
    ". Let the original exception through, or raise one whose class claims no other cause from it:"
    " raise OSError(...) from error"
)
_WENT_ON = (
    ". The error was caught, and the code went on without the value that it had not read: do not"
    " catch it, or raise it again"
)
_NO_ORIGINAL = (
    f"{_RAISE_FROM}. If there is no original exception, the reader drops it, as np.fromfile and"
    " scipy.io.wavfile.read do: read by open()"
)
_SAY_SO = ". Say what is wrong in its message, or put the {} there"
_CANNOT_BE_REBUILT = (
    ": the exception's class cannot be rebuilt from its message. torch rebuilds the exception of"
    " a worker from its text, and then its __str__ raises {}, so path and reason are lost. Catch it"
    " in the dataset, and raise one of another class: raise OSError(str(error)) from error"
)
_COLLATED_NONE = re.compile(r"default_collate: .*found <class 'NoneType'>")
_DROP_NONE = (
    ": the dataset gave None, which default_collate cannot put into a batch. Raise the error"
    " instead. Or skip the sample: Contract(may_skip=True), and a collate_fn that drops None"
)
_CUT_OFF = (
    ": it accessed a memory-mapped file beyond the end to which the file was truncated, and torch's"
    " message wrongly blames shared memory. Check the size of a file before mapping it"
)
_DROPPED = re.compile(
    r'^Traceback \(most recent call last\):\n  File ".*multiprocessing.queues\.py", line \d+, in'
    r" _feed\n(?:[ \t].*\n|\n)*(\S.*)",
    re.MULTILINE,
)
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): .*", re.MULTILINE)
_OF_DEAD_PEER = re.compile(r"Connection(Reset|Refused|Aborted)Error|BrokenPipeError|EOFError")
"""What one process prints when another one, to which it was connected, has died."""
_DIED = re.compile(r"exited unexpectedly|is killed by signal")
_UNSET = ("UnboundLocalError", "NameError")
"""What comes of a variable that would have had the value."""
_SILENT = ("SystemExit", "KeyboardInterrupt")
_SENT = "in DataLoader worker process"
"""In the message of each exception that torch brings from a worker."""
_NOT_BY_FAULT = ", which no fault sent: another process did, or the kernel's OOM killer (see dmesg)"


def unclear(outcome: TrialFacts, contract: Contract) -> Finding | None:
    """The exception of *outcome*, if it does not name its cause as it has to."""
    raised = outcome.exception
    if raised is None or not outcome.fired or may_be_damaged(outcome, contract):
        return None
    if death := next((each for each in outcome.deaths if not _is_clear(outcome, each)), None):
        sentence = f"{death}{_cause(outcome, death)}{last_error_printed(outcome)}"
        return Finding(Verdict.FAILED_UNCLEARLY, sentence)
    happened = occurrences(outcome.faults)
    text = _text_for_reader(raised)
    if not (outcome.deaths or error_text.explains_fault(text, happened)):
        printed = dropped_batch_cause(outcome) or last_error_printed(outcome)
        sentence = f"{raised.type} does not say that {_in_words(happened)}"
        told = _what_it_tells(raised.text, happened)
        return Finding(
            Verdict.FAILED_UNCLEARLY, sentence + told + (printed or _advice(raised, happened))
        )
    if contract.names_file and not _names_file(raised, happened):
        sentence = f"{raised.type} does not name the file, as the contract promises (names_file)"
        return Finding(Verdict.FAILED_UNCLEARLY, sentence)
    return None


def _text_for_reader(raised: Raised) -> str:
    """What the error tells. Python prints nothing of what came before an exit.

    What a trial says of a factory that gives no dataset is not the dataset's own.
    """
    if raised.type in _SILENT:
        return raised.message
    return "" if raised.type == UnusableDatasetError.__name__ else raised.text


def ends_that_explain(outcome: TrialFacts) -> tuple[WorkerDeath, ...]:
    """The deaths that the exception came of; none if a worker has sent it."""
    raised = outcome.exception
    is_sent = raised is not None and _SENT in raised.message
    return () if is_sent else outcome.deaths


def _in_words(happened: list[error_text.Occurrence]) -> str:
    """What *happened*, as the dataset met it: the errnos, or what became of a file or a worker."""
    numbers = sorted({each.fault.errno for each in happened} - {0})
    errnos = ", ".join(f"[Errno {number}] {os.strerror(number)}" for number in numbers)
    told = [f"its cause is {errnos}"] if errnos else []
    others = dict.fromkeys(type(each.fault) for each in happened if not each.fault.errno)
    return " or ".join([*told, *(_of_kind(kind, happened) for kind in others)])


def _of_kind(kind: type[faults.Fault], happened: list[error_text.Occurrence]) -> str:
    paths = {each.path for each in happened if isinstance(each.fault, kind) and each.path}
    return kind.in_words.format(os.path.basename(paths.pop()) if len(paths) == 1 else "a file")


def _advice(raised: Raised, happened: list[error_text.Occurrence]) -> str:
    if _COLLATED_NONE.search(raised.text):
        return _DROP_NONE
    if raised.unprintable:
        return _CANNOT_BE_REBUILT.format(raised.unprintable)
    if error_text.false_class(raised.text, happened):
        return _FALSE_CLASS
    if raised.type in _UNSET:
        return _WENT_ON
    is_of_server = any(each.path and is_of_network(each.path) for each in happened)
    is_of_read = any(isinstance(each.fault, faults.ReadError) for each in happened)
    if is_of_read and not is_of_server and not chains.is_raised_on_purpose(raised.text):
        return _DROPPED_BY_READER
    advice = _RAISE_FROM if any(each.fault.errno for each in happened) else _SAY_SO
    is_of_reads = any(isinstance(each.fault, faults.ReadError) for each in happened)
    if is_of_reads and not is_of_server and chains.is_alone(raised.text):
        advice = _NO_ORIGINAL
    return advice.format("server's address" if is_of_server else "file's path")


def _what_it_tells(text: str, happened: list[error_text.Occurrence]) -> str:
    """What misleads the reader of *text*, as a part of a sentence; empty if nothing does."""
    if claim := error_text.other_cause(text, happened):
        return f", but {claim!r}, which is another cause"
    if chains.related_lines(text) != chains.exception_lines(text):
        return ", and was raised by accident in the handler of that error"
    return ""


def _names_file(raised: Raised, happened: list[error_text.Occurrence]) -> bool:
    """Whether *raised* names one of the files; also where there is none that it could name."""
    lines = chains.exception_lines(raised.text)
    named = [each for each in happened if not error_text.ends_in_torch_error(each.fault)]
    paths = [each.path for each in named if each.path]
    return not paths or any(error_text.mentions_path(lines, path) for path in paths)


def _is_clear(outcome: TrialFacts, death: WorkerDeath) -> bool:
    firings = [one for each in outcome.faults for one in each.firings]
    if any(one.pid == death.pid and one.kind is FiringKind.DEATH for one in firings):
        return True
    mapped_by = {one.worker for one in firings if one.call == "mmap"}
    is_mapped = bool({None, death.worker} & mapped_by)
    may_be_clear = is_mapped or _has_fired(outcome, faults.SharedMemoryExhaustion)
    return death.exitcode == -signal.SIGBUS and may_be_clear


def _cause(outcome: TrialFacts, death: WorkerDeath) -> str:
    if death.exitcode == -signal.SIGBUS and _has_fired(outcome, faults.TruncatedFile):
        return _CUT_OFF
    if death.exitcode == -signal.SIGKILL:
        return _NOT_BY_FAULT
    what = _in_words(occurrences(outcome.faults))
    return f", and the loader's exception does not say that {what}"


def _has_fired(outcome: TrialFacts, kind: type[faults.Fault]) -> bool:
    return any(isinstance(each.fault, kind) for each in outcome.faults if each.fired)


def dropped_batch_cause(outcome: TrialFacts) -> str:
    """Why a batch was dropped, as the rest of a sentence; empty if none was."""
    if found := _DROPPED.findall(outcome.stderr):
        error = found[-1][: chains.MOST_QUOTED]
        return (
            f": a worker could not pickle what it had to send ({error}), so torch's queue thread"
            " printed that error and dropped the batch"
        )
    return ""


def torch_dropped_a_batch(outcome: TrialFacts) -> bool:
    """Whether torch hangs by itself: every fault took only what torch needs to share a batch."""
    hung = outcome.timed_out and outcome.phase != RECOVERY
    fired = [each for each in outcome.faults if each.fired]
    scarce = all(Effect.SCARCITY in each.fault.effects for each in fired)
    paths = [one.path for each in outcome.faults for one in each.firings]
    hit_data = any(path and not is_excluded(path) for path in paths)
    return bool(hung and fired and scarce) and not hit_data


def last_error_printed(outcome: TrialFacts) -> str:
    """The last error that a dead worker printed, as the rest of a sentence; empty if none."""
    raised = outcome.exception
    errors = _ERROR.findall(outcome.stderr)
    printed = [each for each in errors if not _OF_DEAD_PEER.match(each)]
    if raised is None or not printed or not (outcome.deaths or _DIED.search(raised.text)):
        return ""
    return f"; a worker printed: {printed[-1][: chains.MOST_QUOTED]}"
