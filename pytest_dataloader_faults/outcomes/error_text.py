"""Does the text of an exception say which fault caused it? Pure.

Some facts about an error that names the file. That is enough to find it, unless the error tells
another cause than the one that it had: "not found" of a disk that fails sends its reader to look
for a file that is there. Only causes that send people elsewhere count as another cause.

Some facts about classes of OSError. Each but OSError itself is for one kind of errno, so its name
is a claim: code that catches FileNotFoundError will not try again. A handler that raises one for
every error makes a false claim, and what Python prints of the error that was handled is not seen by
code. Where the error was raised from the other one on purpose, both are told. An error of the
system about another file, as of a fallback that is not there, is true.
"""

from __future__ import annotations

import builtins
import errno
import os
import re
import signal
from collections.abc import Iterable
from typing import NamedTuple

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.base import Effect, Place
from pytest_dataloader_faults.faults.kinds import NetworkFault
from pytest_dataloader_faults.globs import NETWORK, is_of_network
from pytest_dataloader_faults.outcomes.chains import head_of_last, related_lines, told_lines


class Occurrence(NamedTuple):
    """A fault that happened, the file it happened to, and in which call."""

    fault: Fault
    path: str | None
    call: str


_CONNECTION = re.compile(
    r"\bconnect(ion|ed)?\b.{0,60}(abort|refus|reset|clos|broke|fail|lost|error|unreachable)"
    r"|(clos|lost|reset|fail|cannot|could not|unable|max retries).{0,80}\bconnect(ion)?\b"
    r"|Incomplete ?Read|Disconnected|Connection\w*Error|not completed|URLError|unreachable",
    re.IGNORECASE,
)
_NO_DATA_YET = re.compile(r"BlockingIOError|temporarily unavailable|EAGAIN|EWOULDBLOCK")
"""recv(2) gives EAGAIN where SO_RCVTIMEO has passed."""
_ANSWER = "recv"
_PIN_THREAD = re.compile(r"pin[- ]memory thread", re.IGNORECASE)
_SIGBUS = re.compile(r"SIGBUS|Bus error")
_TIMED_OUT = re.compile(r"timed?[- ]?out", re.IGNORECASE)

_DEATH = re.compile(
    r"is killed by signal|exited unexpectedly|exit code|Connection(Reset|Refused|Aborted)Error"
    r"|BrokenPipeError|EOFError|FileNotFoundError"
)
_NOT_FOUND = re.compile(
    r"FileNotFoundError|No such file( or directory)?"
    r"|(\b(file|folder|path|image|video|audio|dataset)s?|\bdirector(y|ies)|\.\w+['\"]?)"
    r" (do(es)?(n't| not) exist|(is |are |was |were |can ?|could )?not (be )?found)",
    re.IGNORECASE,
)
_CLAIMS = (
    (_NOT_FOUND, {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}),
    (
        re.compile(r"PermissionError|permission denied|not permitted|access denied", re.IGNORECASE),
        {errno.EACCES, errno.EPERM, errno.EROFS},
    ),
    (re.compile(r"too many open files", re.IGNORECASE), {errno.EMFILE, errno.ENFILE}),
)
"""Words for causes that send people elsewhere, and the errnos that they are right for and tell."""
_TRUE_OF_MORE = {
    FileNotFoundError: _CLAIMS[0][1],
    PermissionError: _CLAIMS[1][1],
}
"""Errnos of which a class is true although Python has another class for them."""
_OF_SYSTEM = re.compile(r"[\w.]+: \[Errno (\d+)\] ")
_SAY_NOTHING = re.compile(
    rf"{_NOT_FOUND.pattern}|^IndexError: .*out of (bounds|range).*", re.IGNORECASE | re.MULTILINE
)
"""Of bad content, although some of its words are among those that do."""
WORDS_OF_BAD_CONTENT = {
    r"truncat": "Pillow: image file is truncated (165 bytes not processed)",
    r"broken": "Pillow: broken data stream when reading image file",
    r"cannot identify|Unidentified": "Pillow: cannot identify image file '0042.jpg'",
    r"premature": "libjpeg: Premature end of JPEG file",
    r"magic": "NumPy: the magic string is not correct; expected b'NUMPY', got b''",
    r"no data": "NumPy: No data left in file",
    r"could only read|fully written": "NumPy: (file seems not fully written?)",
    r"contains pickled": "NumPy: This file contains pickled (object) data",
    r"reshape": "NumPy: cannot reshape array of size 0 into shape (64,64)",
    r"(smaller|larger|greater) than": "NumPy: mmap length is greater than file size",
    r"not a multiple": "NumPy: Size of available data is not a multiple of the data-type size",
    r"should be at least \d+KB": "array_record: ArrayRecord file should be at least 64KB big",
    r"stat\(\)ing file": "Arrow: error stat()ing file",
    r"number of columns changed": "NumPy: the number of columns changed from 3 to 1 at row 151",
    r"not (understood|recogni[sz]ed)": "SciPy: File format b'' not understood",
    r"\bbad (byte|symbol|local|global|object|heap|rank|version|[\d/]+)\b": "HDF5: bad byte number",
    r"signature|\bnot found\b": "HDF5: Unable to open file (file signature not found)",
    r"filter returned failure": "HDF5: Can't read data (filter returned failure during read)",
    r"malformed": "SQLite: database disk image is malformed",
    r"corrupt": "LMDB: MDB_CORRUPTED: Located page was wrong type",
    r"able to read": "Arrow: Expected to be able to read 65608 bytes, got 32668",
    r"footer": "Arrow: Parquet magic bytes not found in footer",
    r"failed to read the (record|start|end)": "tfrecord: Failed to read the record.",
    r"header|deserializ|too (small|few)": "safetensors: deserializing header: header too small",
    r"cannot work out": "nibabel: Cannot work out file type of the image",
    r"unsupported (?!operand)": "torchvision: Unsupported image file. Only jpeg, png and gif are",
    r"EOF|end of (file|data|input|stream|archive)": "tarfile: unexpected end of data",
    r"unexpected (?!keyword)": "gzip: unexpected end of stream",
    r"not a \w+ file": "gzip: Not a gzipped file (b'')",
    r"ended before": "bz2: Compressed data ended before the end-of-stream marker was reached",
    r"incomplete": "zlib: Error -5 while decompressing data: incomplete or truncated stream",
    r"not a (zip|valid)|BadZip": "zipfile: File is not a zip file",
    r"CRC": "zipfile: Bad CRC-32 for file '42.rec'",
    r"no item named": "zipfile: There is no item named '42.rec' in the archive",
    r"ran out|unpickl": "pickle: Ran out of input",
    r"unpack|buffer (size|length|is)": "struct: unpack requires a buffer of 16384 bytes",
    r"not enough": "Python: not enough values to unpack (expected 2, got 1)",
    r"empty": "mmap: cannot mmap an empty file",
    r"decod|parse": "json: json.decoder.JSONDecodeError: Expecting value: line 1 column 1",
    r"invalid": "FFmpeg: Invalid data found when processing input",
    r"expected format": "Megatron: Index file doesn't match expected format",
    r"checksum": "Zstandard: Restored data doesn't match checksum",
    r"expected \d+|bytes? (expected|missing|remain)": "a dataset: 12 bytes, expected 64",
    r"damaged|mismatch|\bshort(er)?\b|out of (bounds|range)": "a dataset: record 3 is too short",
    r"not supported(?! between)": "a dataset: version 0 of the format is not supported",
}
"""Words for content that is bad, and of whom they are known: a reader, and what it says."""
_BAD_CONTENT = re.compile("|".join(WORDS_OF_BAD_CONTENT), re.IGNORECASE)
_NOT_WRITTEN = re.compile(
    r"requested and \d+ written"
    r"|(disk|device|drive|quota).{0,20}\b(full|exceeded)"
    r"|(fail|error|unable|could not|can(not|'t)|while).{0,30}\b(writ(e|ing|ten)|sav(e|ing))\b"
    r"|writ(e|ing) (failed|error)|short write|not (fully|completely) written|no space",
    re.IGNORECASE,
)
"""Of a write that failed: ndarray.tofile() says no more than the first."""


def explains_fault(text: str, occurrences: Iterable[Occurrence]) -> bool:
    """Whether *text* tells the kind of error of one of the *occurrences*, or names the file.

    A text may be long, and a fault may have happened hundreds of times. So the text is taken apart
    once, and searched once for each file and once for each kind of call.
    """
    different = dict.fromkeys(occurrences)
    lines = told_lines(text) if false_class(text, different) else related_lines(text)
    calls = dict.fromkeys((each.fault, each.call) for each in different)
    if any(_explains_kind(lines, fault, call) for fault, call in calls):
        return True
    paths = dict.fromkeys(each.path for each in different)
    is_named = any(mentions_path(lines, path) for path in paths)
    return is_named and not other_cause(text, different)


def other_cause(text: str, occurrences: Iterable[Occurrence]) -> str:
    """The words of *text* for a cause that none of the *occurrences* has; empty if none."""
    occurrences = list(occurrences)
    lines, happened = told_lines(text), {each.fault.errno for each in occurrences}
    found = (words.search(lines) for words, right in _CLAIMS if not right & happened)
    return next((each[0] for each in found if each), "") or false_class(text, occurrences)


def false_class(text: str, occurrences: Iterable[Occurrence]) -> str:
    """The class of the last exception of *text*, if its name claims a cause that was not there."""
    occurrences = list(occurrences)
    head = head_of_last(text)
    name = re.match(r"(?:\w+\.)*(\w+)", head)
    kind = getattr(builtins, name[1], None) if name else None
    if not (isinstance(kind, type) and issubclass(kind, OSError)) or kind is OSError:
        return ""
    system = _OF_SYSTEM.match(head)
    told = told_lines(text)
    is_of_another = not any(mentions_path(told, each.path) for each in occurrences)
    if system and is_of_another and _is_class_of(kind, int(system[1])):
        return ""
    return "" if any(_is_true(kind, *each) for each in occurrences) else kind.__name__


def _is_class_of(kind: type[OSError], number: int) -> bool:
    return number in _TRUE_OF_MORE.get(kind, ()) or isinstance(OSError(number, ""), kind)


def _is_true(kind: type[OSError], fault: Fault, path: str | None, call: str) -> bool:
    """Whether the name of the class *kind* is true of what *fault* did."""
    if Effect.DEATH in fault.effects:  # torch then raises any of them.
        return True
    if Effect.DELAY in fault.effects and kind in (TimeoutError, BlockingIOError):
        return True
    is_network = isinstance(fault, NetworkFault) or is_of_network(path or "") or call == _ANSWER
    if is_network and issubclass(kind, (ConnectionError, TimeoutError)):
        return True  # A client may try again until its time is over.
    return bool(fault.errno) and _is_class_of(kind, fault.errno)


def _explains_kind(lines: str, fault: Fault, call: str) -> bool:
    """Whether *lines* have the words for what *fault* does in *call*."""
    has_words = any(words.search(lines) for words in _words_for(fault, call))
    return has_words or _mentions_errno(lines, fault.errno) or _tells_of_content(lines, fault)


def _tells_of_content(lines: str, fault: Fault) -> bool:
    is_of_another_file = isinstance(fault, faults.ClosedDescriptor) and fault.reuse
    if Effect.BAD_DATA not in fault.effects and not is_of_another_file:
        return False
    # By a KeyError, tarfile and zipfile say that an archive has no such member.
    told = (
        line if line.startswith("KeyError: ") else _SAY_NOTHING.sub("", line)
        for line in lines.split("\n")
    )
    return any(_BAD_CONTENT.search(line) for line in told)


def _words_for(fault: Fault, call: str) -> Iterable[re.Pattern[str]]:
    yield from (words for words, right in _CLAIMS if fault.errno in right)
    if Effect.DEATH in fault.effects:
        yield _DEATH
    if Effect.DELAY in fault.effects:
        yield _TIMED_OUT
    if call == _ANSWER and Effect.DELAY in fault.effects:
        yield _NO_DATA_YET
    # Who waits for long may close the connection.
    if call == _ANSWER or isinstance(fault, NetworkFault):
        yield _CONNECTION
    # The pin-memory thread prints the error that ended it, and torch only says that it has ended.
    if isinstance(fault, faults.PinMemoryThreadDeath) or call == "recvmsg":
        yield _PIN_THREAD
    if Place.WRITE in fault.places:
        yield _NOT_WRITTEN
    # A mapping that cannot be read ends the worker by SIGBUS. The dataset has no influence on
    # torch's error about a death, so torch's words are enough.
    if call == "mmap":
        yield from (_SIGBUS, _DEATH)


def ends_in_torch_error(fault: Fault) -> bool:
    """Whether *fault* reaches the loop as an error of torch's own, which names no file."""
    return bool(fault.effects & (Effect.DELAY | Effect.DEATH))


def mentions_path(text: str, path: str | None) -> bool:
    """Whether *text* names *path*, or its last part, as it is or as Python shows it."""
    if not path:
        return False
    name = os.path.basename(path)
    is_shown = any(each in text for each in (path, name, repr(name)[1:-1]))
    return is_shown or (is_of_network(path) and _mentions_peer(text, path))


def _mentions_peer(text: str, path: str) -> bool:
    """Whether *text* has the address and the port, as in ``host='192.0.2.1', port=443``."""
    host, _, port = path.removeprefix(NETWORK).rpartition(":")
    words = rf"(?<![\w.:]){re.escape(host.strip('[]'))}\W{{1,4}}(port\W{{1,2}})?{port}\b"
    return re.search(words, text) is not None


def _mentions_errno(lines: str, number: int) -> bool:
    if not number:
        return False
    lines, message = lines.lower(), os.strerror(number).lower()
    short = message.replace("input/output", "i/o")  # As SQLite and others call it.
    number_named = re.search(rf"errno\s*[=:]?\s*{number}\b", lines)
    return message in lines or short in lines or number_named is not None


_OTHERS = ", sent by the dataset itself or by another process"
_SIGKILL = (
    ", sent by the dataset itself or by another process. The kernel's OOM killer sends it when the"
    " machine or its control group is out of memory: see dmesg"
)


FROM_OUTSIDE = frozenset({-signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM})
"""How a process ends that another one asked to end, by a signal that no crash sends."""


def likely_sender(*exitcodes: int) -> str:
    """Who may have sent the signal that ended a process, as the rest of a sentence; or empty."""
    if -signal.SIGKILL in exitcodes:
        return _SIGKILL
    return _OTHERS if FROM_OUTSIDE.intersection(exitcodes) else ""
