"""Whether the text of an exception says which fault caused it. Pure.

Some facts about an error that names the file. That is enough to find the problem, unless the error
names another cause: "not found" for a failing disk sends its reader looking for a file that exists.
Only causes that mislead people count as another cause.

Some facts about subclasses of OSError. Each stands for one kind of errno, so its name is a claim:
code that catches FileNotFoundError will not retry. A handler that raises it for every error makes a
false claim, and code does not see the handled error that Python prints. If the error was raised
from the other one on purpose, both count. A system error about another file, such as a missing
fallback, is true.
"""

from __future__ import annotations

import builtins
import errno
import os
import re
import signal
from collections.abc import Iterable
from typing import NamedTuple

from pytest_dataloader_faults.faults import Fault
from pytest_dataloader_faults.faults.addresses import has_address
from pytest_dataloader_faults.faults.base import LISTING, Effect
from pytest_dataloader_faults.outcomes.chains import chained_lines, head_of_last, related_lines
from pytest_dataloader_faults.outcomes.libraries import LIBRARIES


class Occurrence(NamedTuple):
    """A fault that fired, the file that it hit, and the call."""

    fault: Fault
    path: str | None
    call: str

    @property
    def is_of_folder(self) -> bool:
        """Whether the call lists the folder of the file."""
        return self.call == LISTING


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
_CLASS_OF_LIBRARY = re.compile(r"^(?:\w+\.)*(?!Module)\w+NotFoundError\b", re.MULTILINE)
"""A library's class of errors for what it does not find, such as Zarr's ArrayNotFoundError."""
_CLAIMS = (
    (_NOT_FOUND, {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}),
    (
        re.compile(r"PermissionError|permission denied|not permitted|access denied", re.IGNORECASE),
        {errno.EACCES, errno.EPERM, errno.EROFS},
    ),
    (re.compile(r"too many open files", re.IGNORECASE), {errno.EMFILE, errno.ENFILE}),
)
"""Words for causes that mislead people, and the errnos that they correctly describe."""
_TRUE_OF_MORE = {
    FileNotFoundError: _CLAIMS[0][1],
    PermissionError: _CLAIMS[1][1],
}
"""Errnos that a class correctly describes although Python uses another class for them."""
_OF_SYSTEM = re.compile(r"[\w.]+: \[Errno (\d+)\] ")
_SAY_NOTHING = re.compile(
    rf"{_NOT_FOUND.pattern}|^IndexError: .*out of (bounds|range).*", re.IGNORECASE | re.MULTILINE
)
"""Messages that say nothing about bad content, although they contain some of its words."""
_BAD_CONTENT = re.compile(
    "|".join(words for library in LIBRARIES for words in library.words), re.IGNORECASE
)

_OF_MACHINE = re.compile(
    rf"{_TIMED_OUT.pattern}|TimeoutError|deadline exceeded|MemoryError|cannot allocate memory"
    r"|no space left|too many open files|resource temporarily unavailable",
    re.IGNORECASE,
)
"""Words for what a busy or full machine does to a sound dataset."""


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
    calls = dict.fromkeys((each.fault, each.call) for each in different)
    if any(_explains_kind(lines, fault, call) for fault, call in calls):
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
    happened = frozenset[int]().union(*(each.fault.true_errnos for each in occurrences))
    matches = (words.search(lines) for words, right in _CLAIMS if not right & happened)
    return next((each[0] for each in matches if each), "") or false_class(text, occurrences)


def false_class(text: str, occurrences: Iterable[Occurrence]) -> str:
    """The class of the last exception of *text*, if its name claims a false cause."""
    occurrences = list(occurrences)
    head = head_of_last(text)
    name = re.match(r"(?:\w+\.)*(\w+)", head)
    kind = getattr(builtins, name[1], None) if name else None
    if not (isinstance(kind, type) and issubclass(kind, OSError)) or kind is OSError:
        return ""
    system = _OF_SYSTEM.match(head)
    lines = chained_lines(text)
    is_of_another = not any(mentions_path(lines, each.path) for each in occurrences)
    if system and is_of_another and _is_class_of(kind, int(system[1])):
        return ""
    happened = dict.fromkeys((each.fault, each.call) for each in occurrences)
    return "" if any(_is_true(kind, *each) for each in happened) else kind.__name__


def _is_class_of(kind: type[OSError], number: int) -> bool:
    return number in _TRUE_OF_MORE.get(kind, ()) or isinstance(OSError(number, ""), kind)


def _is_true(kind: type[OSError], fault: Fault, call: str) -> bool:
    """Whether the name of the class *kind* correctly describes *fault*."""
    if Effect.DEATH in fault.effects:  # torch then raises any of them.
        return True
    if Effect.DELAY in fault.effects and kind in (TimeoutError, BlockingIOError):
        return True
    if issubclass(kind, fault.true_classes(call)):
        return True
    return any(_is_class_of(kind, number) for number in fault.true_errnos)


def _explains_kind(lines: str, fault: Fault, call: str) -> bool:
    """Whether *lines* contain the words for what *fault* does in *call*."""
    has_words = any(words.search(lines) for words in _words_for(fault, call))
    return has_words or _mentions_errno(lines, fault.errno) or _mentions_content(lines, fault)


def _mentions_content(lines: str, fault: Fault) -> bool:
    if Effect.BAD_DATA not in fault.effects:
        return False
    # tarfile and zipfile raise a KeyError if an archive has no such member.
    stripped = (
        line if line.startswith("KeyError: ") else _SAY_NOTHING.sub("", line)
        for line in lines.split("\n")
    )
    return any(_BAD_CONTENT.search(line) for line in stripped)


def _words_for(fault: Fault, call: str) -> Iterable[re.Pattern[str]]:
    yield from (words for words, right in _CLAIMS if fault.true_errnos & right)
    if fault.true_errnos & _TRUE_OF_MORE[FileNotFoundError]:
        yield _CLASS_OF_LIBRARY
    if Effect.DEATH in fault.effects:
        yield _DEATH
    if Effect.DELAY in fault.effects:
        yield _TIMED_OUT
    yield from (re.compile(each, re.IGNORECASE) for each in fault.message_patterns(call))
    # An unreadable mapping ends the worker with SIGBUS. The dataset has no influence on torch's
    # error about a death, so torch's words are enough.
    if call == "mmap":
        yield from (_SIGBUS, _DEATH)


def ends_in_torch_error(fault: Fault) -> bool:
    """Whether *fault* reaches the loop as torch's own error, which does not name a file."""
    return bool(fault.effects & (Effect.DELAY | Effect.DEATH))


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


_OTHERS = ", sent by the dataset itself or by another process"
_SIGKILL = (
    ", sent by the dataset itself or by another process. The kernel's OOM killer sends SIGKILL when"
    " the machine or its control group runs out of memory (see dmesg)"
)


FROM_OUTSIDE = frozenset({-signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM})
"""Exit codes of processes that another process ended, by signals that no crash sends."""


def likely_sender(*exitcodes: int) -> str:
    """Who may have sent the signal that ended a process, as the end of a sentence; or empty."""
    if -signal.SIGKILL in exitcodes:
        return _SIGKILL
    return _OTHERS if FROM_OUTSIDE.intersection(exitcodes) else ""
