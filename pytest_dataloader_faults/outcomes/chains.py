"""The text of an exception, with those that came before it: a chain, which may be long. Pure.

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

Some facts about whose an error is. Code of this package runs within the user's loader, and the
user's within this package, so an error of either may come out of the other. The innermost frame of
a traceback belongs to the code that raised the error. But C has no frames: what a list, a file or
an extension module raises has the frame of its caller, which may be of this package.

Some facts about long chains. A dataset that tries again from within its handlers makes a chain of
hundreds of exceptions. The traceback of the last one has the frames of all its calls, and is as
long as all others together. A cut by characters would take away how that last one came about, and
the verdict would follow from the length. So frames are left out first.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from pytest_dataloader_faults.outcomes.records import Raised
from pytest_dataloader_faults.outcomes.text import without_binary

MOST = 1 << 17
"""About how many characters are kept of a text; of a chain of hundreds of exceptions, more."""
MOST_LINKS = 1000
"""Exceptions that are kept of a chain: as many as Python's own limit of recursion allows."""
_LEAST = 256
"""Characters that are kept of each message and of the frames of each traceback."""
MOST_QUOTED = 200
"""Characters of a message that a sentence quotes."""
_ESCAPED = "\\nOriginal Traceback (most recent call last):\\n"
"""Python shows the text of a KeyError as a literal. torch undoes that for KeyError alone."""
_SKIPPED = (
    *("Traceback (most recent", "Original Traceback", "The above exception", "During hand"),
    "_queue.Empty",  # torch raises its own error from it where a worker has exited.
)
_RAISED_FROM = "The above exception was the direct cause of the following exception:\n\n"
_WHILE_HANDLING = "During handling of the above exception, another exception occurred:\n\n"
_HOW = re.compile(rf"^({_RAISED_FROM}|{_WHILE_HANDLING})", re.MULTILINE)
_IN_HANDLER = re.compile(
    rf"^{_WHILE_HANDLING}Traceback \(most recent call last\):\n((?:[ \t].*\n)*)(\w+)\b",
    re.MULTILINE,
)
_FRAME = '  File "'
_PLACE = re.compile(r'^ *File "(.*)", line \d+, in (.+)$')
_PACKAGE = f"{os.path.dirname(os.path.dirname(__file__))}/"
_CALLING_USERS_CODE = (
    *("_engine/fake/", "_engine/file_copies.py", "_engine/python/", "fake_files/"),
    *("_engine/loader/own_faults.py", "_engine/worker/fetch_hooks.py"),
    *("_trial/accelerator.py", "_trial/factory.py", "_trial/loader_state.py", "_trial/loaders.py"),
    *("_trial/process/sigchld.py", "_trial/process_group.py", "_trial/samplers.py"),
    *("_trial/samples/draws.py", "_trial/samples/fingerprint.py", "_trial/samples/reference.py"),
)
"""Code of ours that calls the user's or raises errors in place of torch's or the kernel's."""
_FUNCTIONS_CALLING = {
    *(("_trial/driver.py", name) for name in ("start", "_start_iterator", "take", "_take_in_step")),
    ("_trial/run.py", "_touch"),
}
_WORKER_INIT_FN = "__call__"
"""Ours call the user's own."""
_BUGS = {
    *("IndexError", "NameError", "RecursionError", "UnboundLocalError", "ZeroDivisionError"),
}
_BUGS_UNLESS_MEANT = {"AttributeError", "KeyError", "TypeError"}
_SOURCE = re.compile(r"    +[^\s~^]")
_RAISE = re.compile(r"^\s+raise\b", re.MULTILINE)


def is_raised_on_purpose(text: str) -> bool:
    """Whether the last frame of *text* is at a ``raise``, or shows no line of its source."""
    sources = [line.strip() for line in text.splitlines() if _SOURCE.match(line)]
    return not sources or _HOW.search(text) is not None or sources[-1].startswith("raise")


def exception_lines(text: str) -> str:
    """The lines of *text* that belong to exceptions rather than to the frames of a traceback."""
    # Only \n ends a line of a traceback; what else ends lines may be in a file's name.
    lines = (line for line in _unescaped(text).split("\n") if line and not line[0].isspace())
    return "\n".join(line for line in lines if not line.startswith(_SKIPPED))


def related_lines(text: str) -> str:
    """Those of the last exception, and of the ones that it was raised from or meant to report."""
    text = _unescaped(text)
    starts = [found.start(2) for found in _accidents(text)]
    return exception_lines(text[starts[-1] :] if starts else text)


def told_lines(text: str) -> str:
    """Those of the last exception, and of the ones that it was raised from on purpose.

    What was being handled besides may be no matter at all, as the miss of a cache.
    """
    return exception_lines(_unescaped(text).rpartition(_WHILE_HANDLING)[2])


def is_alone(text: str) -> bool:
    """Whether *text* has no exception but one."""
    return not _HOW.search(_unescaped(text))


def head_of_last(text: str) -> str:
    """The class of the last exception of *text*, and the first line of its message."""
    after_frames = _unescaped(text).rpartition(_FRAME)[2].split("\n")
    return next((line for line in after_frames[1:] if line and not line[0].isspace()), "")


def last_exception_line(message: str) -> str:
    """The last line of *message* that is not of a frame, with an ellipsis where it is very long."""
    line = without_binary((exception_lines(message).splitlines() or ["no message"])[-1])
    return line if len(line) <= MOST_QUOTED else f"{line[: MOST_QUOTED - 3]}..."


def innermost_frames(text: str) -> Iterator[tuple[str, str]]:
    """The file and the function that raised each exception in *text*."""
    is_frame = lambda line: line.startswith(" ")  # noqa: E731  # a key
    for of_frames, lines in itertools.groupby(_unescaped(text).split("\n"), is_frame):
        places = [found.groups() for line in lines if (found := _PLACE.match(line))]
        if of_frames and places:
            file, function = places[-1]
            yield file, function


def is_of_this_package(text: str) -> bool:
    """Whether code of this package raised an error in *text*, and not the user's through it."""
    return any(_is_own(*each) for each in innermost_frames(text))


def _is_own(file: str, function: str) -> bool:
    if not file.startswith(_PACKAGE) or function == _WORKER_INIT_FN:
        return False
    inner = file.removeprefix(_PACKAGE)
    return not inner.startswith(_CALLING_USERS_CODE) and (inner, function) not in _FUNCTIONS_CALLING


def error_line(raised: Raised) -> str:
    """The type of *raised* and the last line of its message, which may begin with the type."""
    line = last_exception_line(raised.message)
    return line if line.startswith(raised.type) else f"{raised.type}: {line}"


def shortened(text: str) -> str:
    """*text*, of an exception, without the middle of its frames if it is very long.

    Where that is not enough, long messages lose their middle, too. Of a chain of thousands, the
    first exceptions are kept, the last ones, and the last one that came by accident.
    """
    if len(text) <= MOST:
        return text
    parts = [part for link in _links(_unescaped(text)) for part in _parts(link)]
    room = max(_LEAST, _room_for_each(map(len, parts)))
    return "".join(_without_middle(part, room) for part in parts)


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").rstrip("'\"\n") if _ESCAPED in text else text


def _accidents(text: str) -> Iterator[re.Match[str]]:
    """Where an exception came out of a handler by accident."""
    return (found for found in _IN_HANDLER.finditer(text) if _is_bug(*found.groups()))


def _is_bug(frames: str, kind: str) -> bool:
    last_frame = frames.rpartition(_FRAME)[2]
    return kind in _BUGS or (kind in _BUGS_UNLESS_MEANT and not _RAISE.search(last_frame))


def _links(text: str) -> Sequence[str]:
    """The exceptions of *text*, each with the sentence about how it came."""
    first, *rest = _HOW.split(text)
    links = [first, *map("".join, zip(rest[::2], rest[1::2], strict=True))]
    if len(links) <= MOST_LINKS:
        return links
    half = MOST_LINKS // 2
    middle = links[half:-half]
    accidents = [link for link in middle if any(_accidents(link))]
    left_out = f"  ... {len(middle)} exceptions are left out here ...\n"
    return [*links[:half], left_out, *accidents[-1:], *links[-half:]]


def _parts(link: str) -> Iterator[str]:
    """The frames of *link*, what stands before them, and the message after them."""
    lines = re.findall(r".*\n|.+", link)  # Only \n ends a line of a traceback.
    for _, group in itertools.groupby(lines, lambda line: line[0] in " \t"):
        yield "".join(group)


def _room_for_each(lengths: Iterable[int]) -> int:
    """How long a part may be, so that all together are not too long; short ones leave theirs."""
    left, ordered = MOST, sorted(lengths)
    for place, length in enumerate(ordered):
        room = left // (len(ordered) - place)
        if length > room:
            return room
        left -= length
    return MOST


def _without_middle(part: str, room: int) -> str:
    """*part*, with no more than *room* characters of it. Its last frame stays whole."""
    if len(part) <= room:
        return part
    half, quarter = room // 2, room // 4
    # At the end of a line, unless the lines are too long.
    head = part[: part.rfind("\n", quarter, half) + 1 or half]
    start = len(part) - half
    start = part.find("\n", start, start + quarter) + 1 or start
    if (last_frame := part.rfind(_FRAME)) >= len(head):
        start = min(start, last_frame)
    if start == len(head):
        return part
    left_out = start - len(head)
    # Indented like a frame of a traceback, so that it does not read as the message of an error.
    return f"{head}  ... {left_out} characters are left out here ...\n{part[start:]}"
