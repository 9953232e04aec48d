"""Does the text of an exception say which fault caused it? Pure.

Some facts about errors that cross from a worker to the loader. torch rebuilds the exception from
its text, so *errno* and *filename* are lost and only the text can be judged (torch/_utils.py,
``ExceptionWrapper``). That text holds the worker's whole traceback: lines of a traceback's frames
are indented, lines of the exceptions themselves are not. Only the latter count, or a source line
that happens to say "truncated" would make any error a clear one. A cause chained with ``raise ...
from`` stays in the text, one cut off with ``from None`` does not.

Some facts about the error that was being handled. Python prints it, too, whatever the handler did:
one that raises an error with words of its own means to report it, and one that has a bug does not.
The second looks for a substitute and comes to an index that is not there, or to itself again and
again. Its IndexError says nothing about the file, and that it came just then is an accident. So
what was handled counts, unless the error that came out is of a kind that bugs have. A handler may
mean a KeyError, a TypeError or an AttributeError. Then the last frame is at a ``raise``.

Some facts about an error that names the file. That is enough to find it, unless the error tells
another cause than the one that it had: "not found" of a disk that fails sends its reader to look
for a file that is there. Only causes that send people elsewhere count as another cause.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults._globs import NETWORK, is_of_network
from pytest_dataloader_faults.faults._network import NetworkFault
from pytest_dataloader_faults.faults._writes import is_of_writing
from pytest_dataloader_faults.outcomes._records import Raised


class Occurrence(NamedTuple):
    """A fault that happened, the file it happened to, and in which call."""

    fault: Fault
    path: str | None
    call: str


MOST = 200
"""Characters of a message that a sentence quotes."""
_ESCAPED = "\\nOriginal Traceback (most recent call last):\\n"
"""Python shows the text of a KeyError as a literal. torch undoes that for KeyError alone."""
_DELAYS = (faults.SlowRead, faults.HungRead, faults.WorkerHung, faults.WorkerKilled)
"""A loader's ``timeout`` may end these. The signal of ``WorkerKilled`` may be SIGSTOP."""
_DEATHS = (faults.WorkerKilled, faults.WorkerExited)
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

_SKIPPED = (
    *("Traceback (most recent", "Original Traceback", "The above exception", "During hand"),
    "_queue.Empty",  # torch raises its own error from it where a worker has exited.
)
_DEATH = re.compile(
    r"is killed by signal|exited unexpectedly|exit code|Connection(Reset|Refused|Aborted)Error"
    r"|BrokenPipeError|EOFError|FileNotFoundError"
)
_IN_HANDLER = re.compile(
    r"^During handling of the above exception, another exception occurred:\n\n"
    r"Traceback \(most recent call last\):\n((?:[ \t].*\n)*)(\w+)\b",
    re.MULTILINE,
)
_BUGS = {
    *("IndexError", "NameError", "RecursionError", "UnboundLocalError", "ZeroDivisionError"),
}
_BUGS_UNLESS_MEANT = {"AttributeError", "KeyError", "TypeError"}
_RAISE = re.compile(r"^\s+raise\b", re.MULTILINE)
_NOT_FOUND = re.compile(
    r"FileNotFoundError|No such file( or directory)?"
    r"|(\b(file|folder|directory|path|image|video|audio)|\.\w+['\"]?)"
    r" (does(n't| not) exist|(is |was |could )?not (be )?found)",
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
"""Words for causes that send people elsewhere, and the errnos that they are right for."""
_SAY_NOTHING = re.compile(
    rf"{_NOT_FOUND.pattern}|^IndexError: .*out of (bounds|range).*", re.IGNORECASE | re.MULTILINE
)
"""Of bad content, although some of its words are among those that do."""
_BAD_CONTENT = re.compile(
    r"truncat|corrupt|malformed|damaged|broken|incomplete|invalid|unexpected (?!keyword)|mismatch"
    r"|cannot identify|not enough|\bshort(er)?\b|too (small|few)|(smaller|larger|greater) than"
    r"|premature|ended before|no data|empty|ran out|end of (file|data|input|stream|archive)|EOF"
    r"|CRC|checksum|magic|signature|header|footer|decod|deserializ|unpickl|parse|unpack"
    r"|buffer (size|length|is)|reshape|not a (zip|valid)|could only read|able to read"
    r"|fully written|bytes? (expected|missing|remain)|expected \d+|out of (bounds|range)"
    r"|BadZip|Unidentified|\bnot found\b|no item named|not a \w+ file|contains pickled"
    r"|not (understood|recogni[sz]ed)|not supported(?! between)|unsupported (?!operand)"
    r"|not a multiple|cannot work out"
    r"|\bbad (byte|symbol|local|global|object|heap|rank|version|[\d/]+)\b",
    re.IGNORECASE,
)


_NOT_WRITTEN = re.compile(
    r"requested and \d+ written"
    r"|(disk|device|drive|quota).{0,20}\b(full|exceeded)"
    r"|(fail|error|unable|could not|can(not|'t)|while).{0,30}\b(writ(e|ing|ten)|sav(e|ing))\b"
    r"|writ(e|ing) (failed|error)|short write|not (fully|completely) written|no space",
    re.IGNORECASE,
)
"""Of a write that failed: ndarray.tofile() says no more than the first."""


def exception_lines(text: str) -> str:
    """The lines of *text* that belong to exceptions rather than to the frames of a traceback."""
    # Only \n ends a line of a traceback; what else ends lines may be in a file's name.
    lines = (line for line in _unescaped(text).split("\n") if line and not line[0].isspace())
    return "\n".join(line for line in lines if not line.startswith(_SKIPPED))


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").rstrip("'\"\n") if _ESCAPED in text else text


def related_lines(text: str) -> str:
    """Those of the last exception, and of the ones that it was raised from or meant to report."""
    text = _unescaped(text)
    starts = [link.start(2) for link in _IN_HANDLER.finditer(text) if _is_bug(*link.groups())]
    return exception_lines(text[starts[-1] :] if starts else text)


def _is_bug(frames: str, kind: str) -> bool:
    """Whether an exception of *kind* out of a handler is one that nobody meant to raise."""
    last_frame = frames.rpartition('  File "')[2]
    return kind in _BUGS or (kind in _BUGS_UNLESS_MEANT and not _RAISE.search(last_frame))


def last_exception_line(message: str) -> str:
    """The last line of *message* that is not of a frame, with an ellipsis where it is very long."""
    line = (exception_lines(message).splitlines() or ["no message"])[-1]
    return line if len(line) <= MOST else f"{line[: MOST - 3]}..."


def error_line(raised: Raised) -> str:
    """The type of *raised* and the last line of its message, which may begin with the type."""
    line = last_exception_line(raised.message)
    return line if line.startswith(raised.type) else f"{raised.type}: {line}"


def explains_fault(text: str, occurrences: Iterable[Occurrence]) -> bool:
    """Whether *text* tells the kind of error of one of the *occurrences*, or names the file.

    A text may be long, and a fault may have happened hundreds of times. So the text is taken apart
    once, and searched once for each file and once for each kind of call.
    """
    lines = related_lines(text)
    different = dict.fromkeys(occurrences)
    calls = dict.fromkeys((each.fault, each.call) for each in different)
    if any(_explains_kind(lines, fault, call) for fault, call in calls):
        return True
    paths = dict.fromkeys(each.path for each in different)
    is_named = any(mentions_path(lines, path) for path in paths)
    return is_named and not _claim(lines, {fault.errno for fault, _ in calls})


def other_cause(text: str, occurrences: Iterable[Occurrence]) -> str:
    """The words of *text* for a cause that none of the *occurrences* has; empty if none."""
    return _claim(related_lines(text), {each.fault.errno for each in occurrences})


def _claim(lines: str, happened: set[int]) -> str:
    found = (words.search(lines) for words, right in _CLAIMS if not right & happened)
    return next((each[0] for each in found if each), "")


def _explains_kind(lines: str, fault: Fault, call: str) -> bool:
    """Whether *lines* have the words for what *fault* does in *call*."""
    has_words = any(words.search(lines) for words in _words_for(fault, call))
    return has_words or _mentions_errno(lines, fault.errno) or _tells_of_content(lines, fault)


def _tells_of_content(lines: str, fault: Fault) -> bool:
    if not (fault.content or (isinstance(fault, faults.ClosedDescriptor) and fault.reuse)):
        return False
    # By a KeyError, tarfile and zipfile say that an archive has no such member.
    told = (
        line if line.startswith("KeyError: ") else _SAY_NOTHING.sub("", line)
        for line in lines.split("\n")
    )
    return any(_BAD_CONTENT.search(line) for line in told)


def _words_for(fault: Fault, call: str) -> Iterable[re.Pattern[str]]:
    if isinstance(fault, _DEATHS):
        yield _DEATH
    if isinstance(fault, _DELAYS):
        yield _TIMED_OUT
    if call == _ANSWER and isinstance(fault, _DELAYS):
        yield _NO_DATA_YET
    # Who waits for long may close the connection.
    if call == _ANSWER or isinstance(fault, NetworkFault):
        yield _CONNECTION
    # The pin-memory thread prints the error that ended it, and torch only says that it has ended.
    if isinstance(fault, faults.PinMemoryThreadDeath) or call == "recvmsg":
        yield _PIN_THREAD
    if is_of_writing(fault):
        yield _NOT_WRITTEN
    # A mapping that cannot be read ends the worker by SIGBUS. The dataset has no influence on
    # torch's error about a death, so torch's words are enough.
    if call == "mmap":
        yield from (_SIGBUS, _DEATH)


def ends_in_torch_error(fault: Fault) -> bool:
    """Whether *fault* reaches the loop as an error of torch's own, which names no file."""
    return isinstance(fault, (*_DELAYS, *_DEATHS))


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


_SIGKILL = (
    ", sent by the dataset itself or by another process. The kernel's OOM killer sends it when the"
    " machine or its control group is out of memory: see dmesg"
)


def with_likely_sender(died: str) -> str:
    """*died*, as of ``TrialFacts.died``; of a SIGKILL also who may have sent it."""
    return died + _SIGKILL if "SIGKILL" in died else died
