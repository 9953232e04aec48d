"""Does the text of an error tell what went wrong? Pure.

Some facts about errors that cross from a worker to the loader. torch rebuilds the exception from
its text, so *errno* and *filename* are lost and only the text can be judged (torch/_utils.py,
``ExceptionWrapper``). That text holds the worker's whole traceback: lines of a traceback's frames
are indented, lines of the exceptions themselves are not. Only the latter count, or a source line
that happens to say "truncated" would make any error a clear one. A cause chained with ``raise ...
from`` stays in the text, one cut off with ``from None`` does not.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from typing import TypeAlias

from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    Fault,
    HungRead,
    PinMemoryThreadDeath,
    SlowRead,
    WorkerExited,
    WorkerHung,
    WorkerKilled,
)
from pytest_dataloader_faults.outcomes._text import shortened

Met: TypeAlias = tuple[Fault, str | None, str]
"""A fault, the file that it befell, and the call that it befell it in."""

_ESCAPED = "\\nOriginal Traceback (most recent call last):\\n"
"""The text of a KeyError is shown as a literal; torch undoes that for itself alone."""
_DELAYS = (SlowRead, HungRead, WorkerHung, WorkerKilled)
"""What a loader's ``timeout`` may end; a worker may be stopped by its signal rather than killed."""
_PIN_THREAD = re.compile(r"pin[- ]memory thread", re.IGNORECASE)
_TIMED_OUT = re.compile(r"timed?[- ]?out", re.IGNORECASE)

_SKIPPED = (
    *("Traceback (most recent", "Original Traceback", "The above exception", "During hand"),
    "_queue.Empty",  # torch's own error is raised from it where a worker has exited.
)
_DEATH = re.compile(
    r"is killed by signal|exited unexpectedly|exit code|Connection(Reset|Refused|Aborted)Error"
    r"|BrokenPipeError|EOFError|FileNotFoundError"
)
_BAD_CONTENT = re.compile(
    r"truncat|corrupt|malformed|damaged|broken|incomplete|invalid|unexpected (?!keyword)|mismatch"
    r"|cannot identify|not enough|\bshort(er)?\b|too (small|few)|(smaller|larger|greater) than"
    r"|premature|ended before|no data|empty|ran out|end of (file|data|input|stream|archive)|EOF"
    r"|CRC|checksum|magic|signature|header|footer|decod|deserializ|unpickl|parse|unpack"
    r"|buffer (size|length|is)|reshape|not a (zip|valid)|could only read|able to read"
    r"|fully written|bytes? (expected|missing|remain)|expected \d+|out of (bounds|range)"
    r"|BadZip|Unidentified|\bnot found\b|no item named|not a \w+ file|contains pickled"
    r"|\bbad (byte|symbol|local|global|object|heap|rank|version|[\d/]+)\b",
    re.IGNORECASE,
)


def messages(text: str) -> str:
    """The lines of *text* that belong to exceptions rather than to the frames of a traceback."""
    text = shortened(text)
    if _ESCAPED in text:
        text = text.replace("\\n", "\n").rstrip("'\"\n")
    # Only \n ends a line of a traceback; what else ends lines may be in a file's name.
    lines = (line for line in text.split("\n") if line and not line[0].isspace())
    return "\n".join(line for line in lines if not line.startswith(_SKIPPED))


def tells_any(text: str, met: Iterable[Met]) -> bool:
    """Whether *text* tells of one of the faults that were *met*.

    A text may be long, and a fault met hundreds of times: the one is taken apart once, and asked
    once about each file, and once about each kind of call.
    """
    said = messages(text)
    different = dict.fromkeys(met)
    paths = dict.fromkeys(path for _, path, _ in different)
    calls = dict.fromkeys((fault, call) for fault, _, call in different)
    return any(names(said, path) for path in paths) or any(
        _tells_kind(said, fault, call) for fault, call in calls
    )


def _tells_kind(said: str, fault: Fault, call: str) -> bool:
    """Whether what was *said* tells of what *fault* does in *call*."""
    if isinstance(fault, (WorkerKilled, WorkerExited)) and _DEATH.search(said):
        return True
    if isinstance(fault, _DELAYS) and _TIMED_OUT.search(said):
        return True
    in_thread = isinstance(fault, PinMemoryThreadDeath) or call == "recvmsg"
    if in_thread and _PIN_THREAD.search(said):  # It prints what ended it, and torch tells no more.
        return True
    bad_content = fault.content or (isinstance(fault, ClosedDescriptor) and fault.reuse)
    if bad_content and _BAD_CONTENT.search(said):
        return True
    return _tells_errno(said, fault.errno) or _tells_signal(said, call)


def is_told_by_torch(fault: Fault) -> bool:
    """Whether the error that comes of *fault* is torch's own, which names no file."""
    return isinstance(fault, (*_DELAYS, WorkerExited))


def names(text: str, path: str | None) -> bool:
    """Whether *text* names *path*, or its last part, as it is or as Python shows it."""
    if not path:
        return False
    name = os.path.basename(path)
    return any(each in text for each in (path, name, repr(name)[1:-1]))


def _tells_errno(said: str, number: int) -> bool:
    if not number:
        return False
    message = os.strerror(number).lower()
    short = message.replace("input/output", "i/o")  # As SQLite and others call it.
    return (
        message in said.lower()
        or short in said.lower()
        or bool(re.search(rf"errno\s*[=:]?\s*{number}\b", said, re.IGNORECASE))
    )


def _tells_signal(said: str, call: str) -> bool:
    """A mapping that cannot be read ends the worker by SIGBUS.

    What torch makes of a death is not the dataset's doing, so its own words for one are enough.
    """
    if call != "mmap":
        return False
    return signal.SIGBUS.name in said or "Bus error" in said or _DEATH.search(said) is not None


_KILLED = (
    ", which the dataset sent itself, or somebody outside: the kernel does when the machine, or its"
    " control group, is out of memory (see dmesg)"
)


def how_told(died: str) -> str:
    """*died*, as of ``TrialFacts.died``, with who may have done it where there is no telling."""
    return died + _KILLED if "SIGKILL" in died else died
