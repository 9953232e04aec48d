"""Whether the text of an exception says which fault caused it. Pure."""

# Some facts about an error that names the file. That is enough to find the problem, unless the
# error names another cause: "not found" for a failing disk sends its reader looking for a file that
# exists. Only causes that mislead people count as another cause.
#
# Some facts about subclasses of OSError. Each stands for one kind of errno, so its name is a claim:
# code that catches FileNotFoundError will not retry. A handler that raises it for every error makes
# a false claim, and code does not see the handled error that Python prints. If the error was raised
# from the other one on purpose, both count. A system error about another file, such as a missing
# fallback, is true.

from __future__ import annotations

import builtins
import errno
import os
import re
import signal
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.faults import Fault, HttpError
from pytest_dataloader_faults.faults.base import ANSWER, LISTING, Effect
from pytest_dataloader_faults.faults.files import PHRASES, NetworkFault
from pytest_dataloader_faults.faults.globs import has_address
from pytest_dataloader_faults.outcomes.chains import chained_lines, head_of_last, related_lines


class Occurrence(NamedTuple):
    """A fault that fired, the file that it hit, and the call."""

    fault: Fault
    path: str | None
    call: str

    @property
    def is_of_folder(self) -> bool:
        """Whether the call lists the folder of the file."""
        return self.call == LISTING


_NOT_FOUND = (
    r"FileNotFoundError|No such file( or directory)?"
    r"|(\b(file|folder|path|image|video|audio|dataset)s?|\bdirector(y|ies)|\.\w+['\"]?)"
    r" (do(es)?(n't| not) exist|(is |are |was |were |can ?|could )?not (be )?found)"
)
_OF_ABSENCE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
_OF_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}
_CLAIMS = (
    (_NOT_FOUND, _OF_ABSENCE),
    (r"PermissionError|permission denied|not permitted|access denied", _OF_PERMISSION),
    (r"too many open files", {errno.EMFILE, errno.ENFILE}),
)
"""Words for causes that mislead people, and the errnos that they correctly describe."""
_TRUE_OF_MORE = {FileNotFoundError: _OF_ABSENCE, PermissionError: _OF_PERMISSION}
"""Errnos that a class correctly describes although Python uses another class for them."""
_OF_STATUS = {
    **dict.fromkeys((401, 403, 407), errno.EACCES),
    **dict.fromkeys((404, 410), errno.ENOENT),
    **dict.fromkeys((408, 504), errno.ETIMEDOUT),
}
"""By HTTP status: the errno by which clients translate it into an OSError."""
_HAPPENED: dict[type[Fault], str] = {
    faults.ShortRead: "a read of {} returned fewer bytes than requested",
    faults.ShortWrite: "a write of {} accepted fewer bytes than it was passed",
    faults.TruncatedFile: "the content of {} is damaged (it is truncated)",
    faults.CorruptedFile: "the content of {} is damaged (some bytes differ)",
    faults.SlowRead: "a read of {} took long",
    faults.HungRead: "a read of {} did not return",
    faults.ConnectionClosed: "the connection to {} was closed early",
    faults.ListingOrder: "{} was listed in another order",
    faults.StrayEntry: "{} was added to its folder",
    faults.WorkerKilled: "a worker was killed",
    faults.WorkerExited: "a worker exited",
    faults.WorkerHung: "a worker hung",
}
"""What the dataset experiences, for faults without an errno; {} is the file."""


def _is_about_writing(hit: Occurrence) -> bool:
    fault = hit.fault
    is_kill = isinstance(fault, faults.WorkerKilled) and bool(fault.writing)
    return is_kill or isinstance(fault, (faults.WriteError, faults.ShortWrite))


def _is_about_connection(hit: Occurrence) -> bool:
    return hit.call == ANSWER or isinstance(hit.fault, NetworkFault)


_DEATH = (
    r"(?-i:is killed by signal|exited unexpectedly|exit code"
    r"|Connection(Reset|Refused|Aborted)Error|BrokenPipeError|EOFError|FileNotFoundError)"
)
_TIMED_OUT = r"timed?[- ]?out"
_NOT_WRITTEN = (
    r"requested and \d+ written"  # That is all that ndarray.tofile() says.
    r"|(disk|device|drive|quota).{0,20}\b(full|exceeded)"
    r"|(fail|error|unable|could not|can(not|'t)|while).{0,30}\b(writ(e|ing|ten)|sav(e|ing))\b"
    r"|writ(e|ing) (failed|error)|short write|not (fully|completely) written|no space"
)
_NO_MEMORY = (
    r"\bMemoryError\b|bad_alloc|out of memory|(insufficient|not enough|no) memory"
    r"|(fail|unable|can'?t|cannot|could not|couldn't).{0,40}\balloc|alloc.{0,40}\bfail"
)
_NO_THREAD = (
    r"(can(not|'t)|could not|unable|fail\w*).{0,40}\b(start|creat|spawn|fork|launch)\w*"
    r"|\b(thread|process|fork)\w* (creation )?fail|(thread|process)\w* limit"
    # Python's, for a ThreadPool of which not all threads start.
    r"|'DummyProcess' object has no attribute 'terminate'"
)
_INCOMPLETE = (
    r"\b(missing|incomplete|fewer|too few|differ)\b"
    r"|expected \d+ \w|\d+ \w+,? .{0,12}\b(expected|but|instead of) "
)
"""Words for a folder that lacks files: a dataset that counts them does not know which."""
_CONNECTION_FAILED = (
    r"\bconnect(ion|ed)?\b.{0,60}(abort|refus|reset|clos|broke|fail|lost|error|unreachable)"
    r"|(clos|lost|reset|fail|cannot|could not|unable|max retries).{0,80}\bconnect(ion)?\b"
    r"|Incomplete ?Read|Disconnected|Connection\w*Error|not completed|URLError|unreachable"
)
_NO_DATA_YET = "(?-i:BlockingIOError|temporarily unavailable|EAGAIN|EWOULDBLOCK)"
"""recv(2) fails with EAGAIN when SO_RCVTIMEO expires. Or a client has closed the connection."""
_CLASS_OF_LIBRARY = r"(?m-i:^(?:\w+\.)*(?!Module)\w+NotFoundError\b)"
"""A library's class of errors for what it does not find, such as Zarr's ArrayNotFoundError."""
_WORDS: tuple[tuple[Callable[[Occurrence], bool], str], ...] = (
    (lambda hit: bool(true_errnos(hit.fault) & _OF_ABSENCE), _CLASS_OF_LIBRARY),
    (lambda hit: Effect.DEATH in hit.fault.effects, _DEATH),
    (lambda hit: Effect.DELAY in hit.fault.effects, _TIMED_OUT),
    (_is_about_writing, _NOT_WRITTEN),
    (lambda hit: isinstance(hit.fault, faults.LockError), r"\block(s|ed|ing)?\b|acquir"),
    (lambda hit: isinstance(hit.fault, faults.MemoryExhaustion), _NO_MEMORY),
    (lambda hit: isinstance(hit.fault, faults.ThreadExhaustion), _NO_THREAD),
    (lambda hit: hit.is_of_folder and hit.fault.hides_file, _INCOMPLETE),
    (
        lambda hit: _is_about_connection(hit) and not isinstance(hit.fault, HttpError),
        _CONNECTION_FAILED,
    ),
    (lambda hit: _is_about_connection(hit) and Effect.DELAY in hit.fault.effects, _NO_DATA_YET),
    # An unreadable mapping ends the worker with SIGBUS. The dataset has no influence on torch's
    # error about a death, so torch's words are enough.
    (lambda hit: hit.call == "mmap", rf"(?-i:SIGBUS|Bus error)|{_DEATH}"),
)
"""Words that name what a fault did in a call, but not its errno, and when they do."""
_SAY_NOTHING = re.compile(
    rf"{_NOT_FOUND}|^IndexError: .*out of (bounds|range).*", re.IGNORECASE | re.MULTILINE
)
"""Messages that say nothing about bad content, although they contain some of its words."""
_BAD_CONTENT = re.compile(
    r"truncat|broken|cannot identify|Unidentified"  # Pillow.
    r"|EOF|end of (file|data|input|stream|archive)"  # tarfile.
    r"|stat\(\)ing file|able to read|footer"  # Arrow.
    r"|magic|no data|could only read|fully written|contains pickled|reshape"  # NumPy.
    r"|(smaller|larger|greater) than|not a multiple|number of columns changed"
    r"|expected \d+|bytes? (expected|missing|remain)|not supported(?! between)"  # A dataset.
    r"|damaged|mismatch|\bshort(er)?\b|out of (bounds|range)"
    r"|\bbad (byte|symbol|local|global|object|heap|rank|version|[\d/]+)\b"  # HDF5.
    r"|signature|\bnot found\b|filter returned failure"
    r"|corrupt"  # LMDB.
    r"|premature"  # libjpeg.
    r"|should be at least \d+KB"  # array_record.
    r"|not (understood|recogni[sz]ed)"  # SciPy.
    r"|malformed"  # SQLite.
    r"|failed to read the (record|start|end)"  # tfrecord.
    r"|header|deserializ|too (small|few)"  # safetensors.
    r"|cannot work out"  # nibabel.
    r"|unsupported (?!operand)"  # torchvision.
    r"|unexpected (?!keyword)|not a \w+ file"  # gzip.
    r"|ended before"  # bz2.
    r"|incomplete"  # zlib.
    r"|not a (zip|valid)|BadZip|CRC|no item named"  # zipfile.
    r"|ran out|unpickl"  # pickle.
    r"|unpack|buffer (size|length|is)|not enough"  # struct, and Python.
    r"|empty"  # mmap.
    r"|decod|parse"  # json.
    r"|invalid"  # FFmpeg.
    r"|expected format"  # Megatron.
    r"|checksum",  # Zstandard.
    re.IGNORECASE,
)
_OF_MACHINE = re.compile(
    rf"{_TIMED_OUT}|TimeoutError|deadline exceeded|MemoryError|cannot allocate memory"
    r"|no space left|too many open files|resource temporarily unavailable",
    re.IGNORECASE,
)
"""Words for what a busy or full machine does to a sound dataset."""


def describe_fault(fault: Fault) -> str:
    """What the dataset experiences by *fault*, which has no errno; {} is the file."""
    if isinstance(fault, HttpError) and fault.ignores_range:
        return "{} sent a whole file in place of a part"
    if isinstance(fault, HttpError):
        return f"{{}} answered with HTTP status {fault.reason}"
    return _HAPPENED[type(fault)]


def true_errnos(fault: Fault) -> set[int]:
    """The errnos whose classes and words are true of *fault*."""
    if isinstance(fault, HttpError):
        return {_OF_STATUS.get(fault.status, 0)} - {0}
    if isinstance(fault, faults.StrayEntry):  # A path through it, or to a partner that it lacks.
        return {errno.ENOTDIR, errno.ENOENT}
    return {fault.errno} - {0}


def blames_machine(text: str) -> bool:
    """Whether *text* is about a timeout, or about a resource that the machine ran out of."""
    return bool(_OF_MACHINE.search(text))


def explains_fault(text: str, occurrences: Iterable[Occurrence]) -> bool:
    """Whether *text* describes the kind of error of one of the *occurrences*, or names the file.

    A text may be long, and a fault may have fired hundreds of times. So the text is split once, and
    searched once for each file and once for each kind of call.
    """
    different = dict.fromkeys(occurrences)
    lines = chained_lines(text) if false_class(text, different) else related_lines(text)
    if any(_explains_kind(lines, hit) for hit in {each._replace(path=None) for each in different}):
        return True
    paths = dict.fromkeys(each.path for each in different)
    is_named = any(mentions_path(lines, path) for path in paths) or any(
        os.path.dirname(each.path) in lines for each in different if each.path and each.is_of_folder
    )
    return is_named and not find_other_cause(text, different)


def find_other_cause(text: str, occurrences: Iterable[Occurrence]) -> str:
    """The words of *text* for a cause that none of the *occurrences* has; empty if none."""
    occurrences = list(occurrences)
    lines = chained_lines(text)
    happened = set[int]().union(*(true_errnos(each.fault) for each in occurrences))
    claims = (words for words, right in _CLAIMS if not right & happened)
    matches = (re.search(words, lines, re.IGNORECASE) for words in claims)
    return next((each[0] for each in matches if each), "") or false_class(text, occurrences)


def false_class(text: str, occurrences: Iterable[Occurrence]) -> str:
    """The class of the last exception of *text*, if its name claims a false cause."""
    occurrences = list(occurrences)
    head = head_of_last(text)
    name = re.match(r"(?:\w+\.)*(\w+)", head)
    kind = getattr(builtins, name[1], None) if name else None
    if not (isinstance(kind, type) and issubclass(kind, OSError)) or kind is OSError:
        return ""
    system = re.match(r"[\w.]+: \[Errno (\d+)\] ", head)
    lines = chained_lines(text)
    is_of_another = not any(mentions_path(lines, each.path) for each in occurrences)
    if system and is_of_another and _is_class_of(kind, int(system[1])):
        return ""
    happened = {each._replace(path=None) for each in occurrences}
    return "" if any(_is_true(kind, hit) for hit in happened) else kind.__name__


def _is_class_of(kind: type[OSError], number: int) -> bool:
    return number in _TRUE_OF_MORE.get(kind, ()) or isinstance(OSError(number, ""), kind)


def _is_true(kind: type[OSError], hit: Occurrence) -> bool:
    """Whether the name of the class *kind* correctly describes what the fault did."""
    if Effect.DEATH in hit.fault.effects:  # torch then raises any of them.
        return True
    if Effect.DELAY in hit.fault.effects and kind in (TimeoutError, BlockingIOError):
        return True
    if _is_about_connection(hit) and issubclass(kind, (ConnectionError, TimeoutError)):
        return True  # A client may retry until its timeout expires.
    return any(_is_class_of(kind, number) for number in true_errnos(hit.fault))


def _explains_kind(lines: str, hit: Occurrence) -> bool:
    """Whether *lines* contain the words for what the fault did."""
    fault = hit.fault
    words = [each for each, right in _CLAIMS if true_errnos(fault) & right]
    words += [each for is_meant, each in _WORDS if is_meant(hit)]
    if isinstance(fault, HttpError):
        words += [
            rf"\b{fault.status}\b",
            *map(re.escape, filter(None, [PHRASES.get(fault.status)])),
        ]
    has_words = any(re.search(each, lines, re.IGNORECASE) for each in words)
    return has_words or _mentions_errno(lines, fault.errno) or _mentions_content(lines, fault)


def _mentions_content(lines: str, fault: Fault) -> bool:
    is_page = isinstance(fault, HttpError) and fault.claims_success
    if not (is_page or Effect.BAD_DATA in fault.effects):
        return False
    # tarfile and zipfile raise a KeyError if an archive has no such member.
    stripped = (
        line if line.startswith("KeyError: ") else _SAY_NOTHING.sub("", line)
        for line in lines.split("\n")
    )
    return any(_BAD_CONTENT.search(line) for line in stripped)


def mentions_path(text: str, path: str | None) -> bool:
    """Whether *text* contains *path* or its last part, unchanged or as Python shows it."""
    if not path:
        return False
    name = os.path.basename(path)
    is_shown = any(each in text for each in (path, name, repr(name)[1:-1]))
    return is_shown or has_address(text, path)


def _mentions_errno(lines: str, number: int) -> bool:
    if not number:
        return False
    lines, message = lines.lower(), os.strerror(number).lower()
    short = message.replace("input/output", "i/o")  # The spelling of SQLite and others.
    number_named = re.search(rf"errno\s*[=:]?\s*{number}\b", lines)
    return message in lines or short in lines or number_named is not None


FROM_OUTSIDE = frozenset({-signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM})
"""Exit codes of processes that another process ended, by signals that no crash sends."""
_OTHERS = ", sent by the dataset itself or by another process"
_OOM_KILLER = (
    ". The kernel's OOM killer sends SIGKILL when the machine or its control group runs out of"
    " memory (see dmesg)"
)


def likely_sender(*exitcodes: int) -> str:
    """Who may have sent the signal that ended a process, as the end of a sentence; or empty."""
    if -signal.SIGKILL in exitcodes:
        return _OTHERS + _OOM_KILLER
    return _OTHERS if FROM_OUTSIDE.intersection(exitcodes) else ""
