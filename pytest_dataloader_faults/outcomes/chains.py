"""The text of an exception: its chain of causes, and where it was raised. Pure."""

# Some facts about errors that cross from a worker to the loader. torch rebuilds the exception from
# its text, so *errno* and *filename* are lost, and only the text can be judged (torch/_utils.py,
# ``ExceptionWrapper``). That text contains the worker's complete traceback: the lines of frames are
# indented, and the lines of the exceptions are not. Only the latter count; otherwise a source line
# that happens to say "truncated" would make any error clear. A cause chained with ``raise ...
# from`` stays in the text, but ``from None`` removes it.
#
# Some facts about the error that was being handled. Python prints it as well, whatever the handler
# did: one that raises an error with a new message reports it on purpose, and one that has a bug
# does not. The latter looks for a substitute, and reaches an index that does not exist, or calls
# itself endlessly. Its IndexError says nothing about the file, and was raised at that moment by
# accident. So the handled error counts, unless the raised one is of a type that bugs have. A
# handler may raise a KeyError, a TypeError or an AttributeError on purpose. Then the last frame is
# at a ``raise``.
#
# Some facts about the origin of an error. Code of this package runs within the user's loader, and
# the user's code within this package, so the error of one may pass through the other. The innermost
# frame of a traceback belongs to the code that raised the error. But C code has no frames: an error
# of a list, a file or an extension module has the frame of its caller, which may be in this
# package. So a module that calls the user's code has a mark: an error whose innermost frame is
# there is the user's. A module of Cython's has frames, by the path of its source when it was built
# ("h5py/h5f.pyx"); where it is now is in its globals. torch rebuilds the error of a worker without
# its frames, and another process of the dataset does so as well, so the origin of the first is
# noted in the worker.
#
# Some facts about long chains. A dataset that retries within its exception handlers creates a chain
# of hundreds of exceptions. The traceback of the last one has the frames of all its calls, and is
# as long as all others together. Cutting it at a number of characters would remove the origin of
# the last one, and the verdict would depend on the length. So frames are omitted first.

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

from pytest_dataloader_faults.outcomes.text import without_binary

MOST = 1 << 17
"""About how many characters of a text are kept; more for a chain of hundreds of exceptions."""
_LEAST = 256
"""Characters of each message, and of the frames of each traceback, that are always kept."""
MOST_QUOTED = 200
"""Characters of a message that a sentence quotes."""
_ESCAPED = "\\nOriginal Traceback (most recent call last):\\n"
"""Python shows the message of a KeyError as a literal. torch undoes that only for KeyError."""
_SKIPPED = (
    *("Traceback (most recent", "Original Traceback", "The above exception", "During hand"),
    "_queue.Empty",  # torch raises its own error from it if a worker has exited.
)
_RAISED_FROM = "The above exception was the direct cause of the following exception:\n\n"
_WHILE_HANDLING = "During handling of the above exception, another exception occurred:\n\n"
_HOW = re.compile(rf"^({_RAISED_FROM}|{_WHILE_HANDLING})", re.MULTILINE)
_FRAMES = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t].*\n)*)(\w+)\b")
_FRAME = '  File "'
_PLACE = re.compile(r'^ *File "(.*)", line \d+, in (.+)$')
_SOURCE = re.compile(r"    +[^\s~^]")
_RAISE = re.compile(r"^\s+raise\b", re.MULTILINE)
_BUGS = ("IndexError", "NameError", "RecursionError", "UnboundLocalError", "ZeroDivisionError")
_BUGS_UNLESS_MEANT = ("AttributeError", "KeyError", "TypeError")
_PACKAGE = f"{os.path.dirname(os.path.dirname(__file__))}/"
_MARK = "CALLS_USER_CODE"
"""The name by which a module of this package says that it calls the user's code, or raises errors
in place of torch or the kernel: True, or the names of the functions that do."""
_WORKER_INIT_FN = "__call__"
"""This package's ``worker_init_fn``, which calls the user's."""
_FETCH = "/torch/utils/data/_utils/fetch.py"
"""Its callers belong to a loader, which may be that of another library."""
_OF_LOADER = ("/torch/utils/data/", "/torch/_utils.py", _PACKAGE)
"""Parts of the paths of modules that only pass an error on."""
_ORIGIN = "_dataloader_faults_origin"
"""An attribute of an error that torch has rebuilt, and of what a worker has sent."""


@dataclass(frozen=True)
class Raised:
    """An exception that reached the loop.

    Attributes:
        type: The name of its class.
        message: The result of ``str``.
        text: The traceback with its chain of causes, as Python prints it.
        unprintable: The type of the error that ``str`` raised; "" if it raised none.
        file: The file of the innermost Python frame, without those of torch's loader and of this
            package; "" if there is no other.
        library: The name of the distribution that *file* is of, or "Python" for the standard
            library; "" if it is the user's code.

    Very long texts omit frames, and the middle of long messages.
    """

    type: str
    message: str
    text: str
    unprintable: str = ""
    file: str = ""
    library: str = ""


def origin_of(error: BaseException) -> str:
    """The file of the innermost frame of *error*: see ``Raised.file``."""
    if _ORIGIN in vars(error):
        return str(vars(error)[_ORIGIN])
    if type(error.__cause__).__name__.endswith("RemoteTraceback"):  # Of a pool of processes.
        return ""
    files = [_file_of(frame) for frame, _ in traceback.walk_tb(error.__traceback__)]
    fetches = [place for place, file in enumerate(files, start=1) if file.endswith(_FETCH)]
    inner = reversed(files[fetches[-1] if fetches else 0 :])
    return next((file for file in inner if not any(part in file for part in _OF_LOADER)), "")


def _file_of(frame: FrameType) -> str:
    file = frame.f_globals.get("__file__")
    return file if isinstance(file, str) else frame.f_code.co_filename


def note_origin(sent: object, error: BaseException) -> None:
    """Note in *sent*, by which a worker sends *error* to its loader, where it was raised."""
    vars(sent)[_ORIGIN] = origin_of(error)


@contextlib.contextmanager
def origin_noted_in(sent: object) -> Iterator[None]:
    """Note in an error that is raised here, if *sent* by a worker, what the worker has noted."""
    try:
        yield
    except BaseException as error:
        if (origin := getattr(sent, _ORIGIN, None)) is not None:
            vars(error)[_ORIGIN] = origin
        raise


class _Link(NamedTuple):
    """An exception of a chain.

    Attributes:
        how: The sentence that connects it to the previous exception; "" if it is the first.
        text: Its traceback and its message.
    """

    how: str
    text: str

    @property
    def is_accident(self) -> bool:
        """Whether a handler that has a bug raised it."""
        match = _FRAMES.match(self.text) if self.how == _WHILE_HANDLING else None
        if match is None:
            return False
        last_frame = match[1].rpartition(_FRAME)[2]
        is_meant = match[2] in _BUGS_UNLESS_MEANT and _RAISE.search(last_frame)
        return match[2] in (*_BUGS, *_BUGS_UNLESS_MEANT) and not is_meant

    @property
    def lines(self) -> list[str]:
        """The lines of its message."""
        # Only \n ends a line of a traceback; what else ends lines may be in a file's name.
        lines = (line for line in self.text.split("\n") if line and not line[0].isspace())
        return [line for line in lines if not line.startswith(_SKIPPED)]

    @property
    def blocks(self) -> list[str]:
        """Its frames, the text before them, and the message after them."""
        groups = itertools.groupby(re.findall(r".*\n|.+", self.text), lambda line: line[0] in " \t")
        return ["".join(group) for _, group in groups]


def _links(text: str) -> list[_Link]:
    start, *rest = _HOW.split(_unescaped(text))
    return [_Link("", start), *map(_Link, rest[::2], rest[1::2])]


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").rstrip("'\"\n") if _ESCAPED in text else text


def _lines_since(text: str, is_start: Callable[[_Link], bool]) -> str:
    """The lines of the messages of *text*, since the last exception that *is_start*."""
    links = _links(text)
    start = max((place for place, link in enumerate(links) if is_start(link)), default=0)
    return "\n".join(line for link in links[start:] for line in link.lines)


def exception_lines(text: str) -> str:
    """The lines of *text* that belong to exceptions rather than to the frames of a traceback."""
    return _lines_since(text, lambda link: not link.how)


def related_lines(text: str) -> str:
    """The lines of the last exception, and of those that it was raised from or reports."""
    return _lines_since(text, lambda link: link.is_accident)


def chained_lines(text: str) -> str:
    """The lines of the last exception, and of those that it was raised from on purpose.

    Any other error that was being handled may be irrelevant, such as a cache miss.
    """
    return _lines_since(text, lambda link: link.how == _WHILE_HANDLING)


def has_single_exception(text: str) -> bool:
    """Whether *text* contains only one exception."""
    return len(_links(text)) == 1


def head_of_last(text: str) -> str:
    """The class of the last exception of *text*, and the first line of its message."""
    after_frames = _unescaped(text).rpartition(_FRAME)[2].split("\n")
    return next((line for line in after_frames[1:] if line and not line[0].isspace()), "")


def ends_at_raise(text: str) -> bool | None:
    """Whether the last frame of *text* shows a ``raise`` statement; None if no frame has a line."""
    sources = [line.strip() for line in text.splitlines() if _SOURCE.match(line)]
    return sources[-1].startswith("raise") if sources else None


def last_exception_line(message: str) -> str:
    """The last line of *message* outside frames, shortened with an ellipsis if it is very long."""
    line = without_binary((exception_lines(message).splitlines() or ["no message"])[-1])
    return line if len(line) <= MOST_QUOTED else f"{line[: MOST_QUOTED - 3]}..."


def error_line(raised: Raised) -> str:
    """The type of *raised* and the last line of its message, which may begin with the type."""
    line = last_exception_line(raised.message)
    return line if line.startswith(raised.type) else f"{raised.type}: {line}"


def is_of_this_package(text: str) -> bool:
    """Whether code of this package raised an error in *text*, rather than the user's code."""
    frames = (block for link in _links(text) for block in link.blocks if block.startswith(" "))
    places = ([*filter(None, map(_PLACE.match, block.split("\n")))] for block in frames)
    return any(_is_ours(*each[-1].groups()) for each in places if each)


def _is_ours(file: str, function: str) -> bool:
    if not file.startswith(_PACKAGE) or function == _WORKER_INIT_FN:
        return False
    loaded = (each for each in tuple(sys.modules.values()) if vars(each).get("__file__") == file)
    mark = next((vars(each).get(_MARK, ()) for each in loaded), ())
    return mark is not True and function not in mark


def shorten_chain(text: str) -> str:
    """*text* of an exception, without the middle of its frames if it is very long.

    If that is not enough, long messages lose their middle as well.
    """
    if len(text) <= MOST:
        return text
    links = _links(text)
    room = max(_LEAST, MOST // sum(len(link.blocks) for link in links))
    return "".join(
        link.how + "".join(_without_middle(block, room) for block in link.blocks) for link in links
    )


def _without_middle(block: str, room: int) -> str:
    """At most *room* characters of *block*. Its last frame stays complete."""
    if len(block) <= room:
        return block
    half, quarter = room // 2, room // 4
    # Cut at the end of a line, unless the lines are too long.
    head = block[: block.rfind("\n", quarter, half) + 1 or half]
    start = len(block) - half
    start = block.find("\n", start, start + quarter) + 1 or start
    if (last_frame := block.rfind(_FRAME)) >= len(head):
        start = min(start, last_frame)
    # Indented like a frame of a traceback, so that it is not taken for an error message.
    omission = f"  ... {start - len(head)} characters omitted ...\n"
    return f"{head}{omission}{block[start:]}"
