"""Text for people: shortened and escaped, values as Python code, and sorted stacks. Pure."""

from __future__ import annotations

import ast
import itertools
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._arguments import PrintsItself
from pytest_dataloader_faults.faults import Fault

_GLOBS = 2
"""Globs of a fault that are shown, unless there are only a few more."""
_LINE = 92
"""The longest call that stays on one line, indented by four."""
_VALUE = 200
"""Characters of a value that is shown on one line: a schedule may list thousands of paths."""


printable = exceptions._printable
printable_lines = exceptions._printable_lines
shorten = exceptions._shorten
format_value = exceptions._format_value
escape_for_log = exceptions._escape_for_log
"""They are defined in the bottom layer, because every error message uses them."""


def text_of(value: object) -> str:
    """``str`` of *value*, whose ``__str__`` may raise an error."""
    return text_or_error(value)[0]


def text_or_error(value: object) -> tuple[str, str]:
    """``str`` of *value*, and the class of the error that its ``__str__`` raises; "" if none."""
    try:
        return str(value), ""
    except BaseException as error:  # noqa: BLE001  # whatever the user's class raises
        name = type(error).__name__
        return f"its own __str__ raises {name}", name


def join_some(values: Iterable[object], limit: int = 3) -> str:
    """The first *limit* of *values*, followed by dots if there are more."""
    texts = list(map(str, values))
    return ", ".join(texts[:limit]) + (", ..." if len(texts) > limit else "")


def pluralize(number: int, noun: str, form: str = "") -> str:
    """*number* and *noun*, such as "1 batch" or "2 batches"; *form*: the format of the number."""
    ending = "es" if noun.endswith(("s", "x", "tch")) else "s"
    return f"{number:{form}} {noun}{'' if number == 1 else ending}"


def is_or_are(number: int) -> str:
    """The verb that agrees with *number*, "is" or "are"."""
    return "is" if number == 1 else "are"


def was_or_were(number: int) -> str:
    """The verb that agrees with *number*, "was" or "were"."""
    return "was" if number == 1 else "were"


def signal_name(number: int) -> str:
    """The name of a signal, such as "SIGKILL". Most real-time signals have none."""
    names = {each.value: each.name for each in signal.Signals}
    return names.get(number, f"signal {number}")


def describe_exit(code: int) -> str:
    """How a process ended, by its exit status or minus the number of a signal."""
    if code >= 0:
        return f"exit status {code}"
    number, name = f"signal {-code}", signal_name(-code)
    return number if name == number else f"{number} ({name})"


def describe_end(code: int) -> str:
    """How a process ended, as the predicate of a sentence about it."""
    return f"exited with status {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_FEWEST_DIGITS = 9.95
"""A smaller number has one digit after the point."""


def format_size(size: float) -> str:
    """*size* in bytes, with a unit: ``1.9 KiB``."""
    unit = 0
    while size >= 1023.5 and unit < len(_UNITS) - 1:  # noqa: PLR2004  # It would round to 1024.
        size, unit = size / 1024, unit + 1
    has_point = unit > 0 and size < _FEWEST_DIGITS
    return f"{size:.{int(has_point)}f} {_UNITS[unit]}"


def shown_fault(fault: Fault) -> str:
    """*fault* as code; of many globs, the first ones and the number of others."""
    code = repr(fault)
    omitted = len(fault.globs) - _GLOBS
    if omitted < _GLOBS:
        return code
    shortened = f"({', '.join(map(repr, fault.globs[:_GLOBS]))}, ... and {omitted} more)"
    return code.replace(repr(fault.globs), shortened, 1)


_BYTE = r"(?:[^\t\n -~\u00a0-\U0010ffff]|\\x[0-9a-fA-F]{2})"
_BINARY = re.compile(rf"{_BYTE}(?:.{{0,6}}?{_BYTE}){{7,}}", re.DOTALL)


def without_binary(text: str) -> str:
    """*text* without runs of unprintable bytes, such as a server's response in an error."""
    return _BINARY.sub(lambda run: f"... {pluralize(len(run[0]), 'character')} of binary ...", text)


def headline(text: str) -> str:
    """The first line of an error, without an introduction to the lines below it."""
    line, _, _ = text.partition("\n")
    if not line.endswith(":"):
        return line
    beginning, point, _ = line.rpartition(". ")
    return f"{beginning}." if point else line.removesuffix(":")


def indent_rest(text: str) -> str:
    """*text* with its further lines indented, so that they do not look like pytest's output."""
    return text.replace("\n", "\n    ")


def to_plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """*options* for JSON: other than plain values become ``{"code": ...}``."""
    plain = (type(None), bool, int, float, str)
    return {
        name: value if isinstance(value, plain) else {"code": _code_or_name(value, name)}
        for name, value in options.items()
    }


def _code_or_name(value: Any, name: str) -> str:
    """The code of *value*: its name, a literal or, without either, the option's *name*."""
    try:
        identifier = value.__name__
    except Exception:  # noqa: BLE001  # An object of the user's may raise anything.
        identifier = None
    if isinstance(identifier, str) and identifier.isidentifier():
        return identifier
    text = format_value(value)
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name
    return text


def code(value: Any) -> str:
    """*value* of ``to_plain`` as Python code: functions by their name, mappings as literals."""
    if not isinstance(value, dict):
        return repr(value)
    if set(value) == {"code"}:
        return str(value["code"])
    return f"{{{', '.join(f'{key!r}: {code(item)}' for key, item in value.items())}}}"


def call(name: str, *arguments: str, **options: Any) -> str:
    """A call of *name* as Python code: *arguments* unchanged, and *options* that are not None."""
    return f"{name}({', '.join(_format_arguments(arguments, options))})"


def call_in_lines(name: str, *arguments: str, **options: Any) -> str:
    """A call for the body of a function, with one argument per line if it is long."""
    if len(line := call(name, *arguments, **options)) <= _LINE:
        return line
    lines = "".join(f"        {each},\n" for each in _format_arguments(arguments, options))
    return f"{name}(\n{lines}    )"


def _format_arguments(arguments: tuple[str, ...], options: Mapping[str, Any]) -> list[str]:
    passed = {name: value for name, value in options.items() if value is not None}
    return [*arguments, *(f"{name}={code(value)}" for name, value in passed.items())]


# Some facts about stacks, which readers see with the user's frames first and none of this
# package's. faulthandler prints the innermost frame of a thread first, and a traceback prints it
# last. A library may have dozens of frames between the user's call and the line that crashes.


PYTHON = os.path.dirname(os.__file__) + os.sep
OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_FRAME = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+)(?P<comma>,?) in (?P<function>.*)')
"""Only a traceback has the comma."""
_CRASHED = re.compile(
    r"^Fatal Python error: .*\n(?:(?!Fatal ).*\n)*?(?:Current thread|Stack) .*\n((?:  .*\n)*)",
    re.MULTILINE,
)
"""What faulthandler prints if a signal ends the process, and the stack of its current thread."""
_LOADER = re.compile(rf".*/torch/utils/data/|{re.escape(OURS)}")
_PIECE = re.compile(r'^(?:  File ".*", line \d+, in .*(?:\n    .*)*|.*)$', re.MULTILINE)
"""A frame of a traceback with its source, or any other line."""
_OWN = re.compile(rf'  File "{re.escape(OURS)}')
LIBRARY = re.compile(
    rf"<|.*/(?:site|dist)-packages/|.*/torch/utils/data/|{re.escape(PYTHON)}|{re.escape(OURS)}"
)
"""The path of code that is not the user's own."""


def is_user_frame(line: str) -> bool:
    """Whether *line* is a frame of the user's code, and not of Python, torch or another library."""
    frame = _FRAME.match(line)
    return frame is not None and not LIBRARY.match(frame["path"])


def crashed_files(printed: str) -> list[str]:
    """The file of the innermost frame of each process that crashed and *printed* its stack.

    Frames of torch's loader and of this package do not count. "" if there are no others.
    """
    stacks = (_FRAME.finditer(match[1]) for match in _CRASHED.finditer(printed))
    files = ([frame["path"] for frame in frames] for frames in stacks)
    return [next((file for file in each if not _LOADER.match(file)), "") for each in files]


def users_place(text: str) -> str:
    """The user's innermost line in *text*, the stack of a thread by faulthandler; "" if none is."""
    frames = (_FRAME.match(line) for line in text.split("\n") if is_user_frame(line))
    frame = next(filter(None, frames), None)
    return "{path}:{line} in {function}".format(**frame.groupdict()) if frame else ""


def sort_for_reader(lines: Sequence[str]) -> list[str]:
    """*lines* of one or more stacks and of other text, in the order for a reader.

    The user's frames come first in each stack of faulthandler, and this package's are omitted.
    """
    ordered: list[str] = []
    pieces = _PIECE.findall("\n".join(lines)) if lines else []
    for of_stack, group in itertools.groupby(pieces, key=_is_of_stack):
        shown = [each for each in group if not _OWN.match(each)]
        ordered += sorted(shown, key=lambda piece: not is_user_frame(piece)) if of_stack else shown
    return [line for piece in ordered for line in piece.split("\n")]


def _is_of_stack(piece: str) -> bool:
    frame = _FRAME.match(piece)
    return frame is not None and not frame["comma"]


def limit_lines(lines: Sequence[str], limit: int) -> list[str]:
    """The first and the last of *lines*, *limit* in all, and how many are left out."""
    if len(lines) <= limit:
        return list(lines)
    half = limit // 2
    omission = f"... {len(lines) - 2 * half} lines omitted ..."
    return [*lines[:half], omission, *lines[-half:]]


class Shown:
    """Base of results: a short ``repr``; the attributes and ``to_dict`` have everything."""

    __slots__ = ()
    _repr_pretty_ = PrintsItself()

    def _facts(self) -> Iterator[tuple[str, object]]:
        """Names and values for the one line."""
        raise NotImplementedError

    def _text(self) -> str:
        """What a notebook shows below that line."""
        raise NotImplementedError

    def __repr__(self) -> str:
        texts = [f"{name}={printable(str(value))}" for name, value in self._facts()]
        facts = ", ".join(each if len(each) <= _VALUE else f"{each[:_VALUE]}..." for each in texts)
        return f"<{type(self).__name__}: {facts}>"

    def _repr_html_(self) -> str:
        text = f"{self!r}\n{self._text()}"
        return f"<pre>{escape(printable_lines(text))}</pre>"
