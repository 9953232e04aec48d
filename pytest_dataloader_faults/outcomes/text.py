"""Texts for people: long or unprintable ones made fit to show, and values as Python code. Pure."""

from __future__ import annotations

import ast
import re
import signal
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults.faults import Fault

_GLOBS = 2
"""Globs of a fault that a person reads, unless there are hardly more."""
_LINE = 92
"""Characters of a call that stays on one line, indented by four."""


printable = exceptions._printable
printable_lines = exceptions._printable_lines
cut = exceptions._cut
shown = exceptions._shown
for_log = exceptions._for_log
"""They are at the bottom, since the text of every error goes through them."""


def text_of(value: object) -> str:
    """``str`` of *value*, which may be of a class whose ``__str__`` raises."""
    return text_or_error(value)[0]


def text_or_error(value: object) -> tuple[str, str]:
    """``str`` of *value*, and the class of what its ``__str__`` raises; "" if that gives a text."""
    try:
        return str(value), ""
    except BaseException as error:  # noqa: BLE001  # whatever the user's class raises
        name = type(error).__name__
        return f"its own __str__ raises {name}", name


def listed(values: Iterable[object], most: int = 3) -> str:
    """The first *most* of *values*, and dots if there are more."""
    texts = list(map(str, values))
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")


def counted(number: int, what: str, form: str = "") -> str:
    """*number* of *what*, such as "1 batch" or "2 batches"; *form*: how to format the number."""
    ending = "es" if what.endswith(("s", "x", "tch")) else "s"
    return f"{number:{form}} {what}{'' if number == 1 else ending}"


def are(number: int) -> str:
    """The verb that follows *number* of something."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    """The same for what is over."""
    return "was" if number == 1 else "were"


def signal_name(number: int) -> str:
    """The name of a signal, such as "SIGKILL". The real-time signals but two have none."""
    names = {each.value: each.name for each in signal.Signals}
    return names.get(number, f"signal {number}")


def exit_in_words(code: int) -> str:
    """How a process ended, given its exit status or minus the number of a signal."""
    if code >= 0:
        return f"exit status {code}"
    number, name = f"signal {-code}", signal_name(-code)
    return number if name == number else f"{number} ({name})"


def shown_fault(fault: Fault) -> str:
    """*fault* as code; of many globs the first ones, and how many more there are."""
    code = repr(fault)
    more = len(fault.globs) - _GLOBS
    if more < _GLOBS:
        return code
    few = f"({', '.join(map(repr, fault.globs[:_GLOBS]))}, ... and {more} more)"
    return code.replace(repr(fault.globs), few, 1)


_BYTE = r"(?:[^\t\n -~\u00a0-\U0010ffff]|\\x[0-9a-fA-F]{2})"
_BINARY = re.compile(rf"{_BYTE}(?:.{{0,6}}?{_BYTE}){{7,}}", re.DOTALL)


def without_binary(text: str) -> str:
    """*text* without runs of bytes that cannot be printed, as of an answer in an error."""
    return _BINARY.sub(lambda run: f"... {counted(len(run[0]), 'character')} of binary ...", text)


def headline(text: str) -> str:
    """The first line of *text*, as of an error, without words that only lead to lines below it."""
    first, _, _ = text.partition("\n")
    if not first.endswith(":"):
        return first
    before, point, _ = first.rpartition(". ")
    return f"{before}." if point else first.removesuffix(":")


def continued(text: str) -> str:
    """*text* with its further lines indented, so that none of them reads as a line of pytest's."""
    return text.replace("\n", "\n    ")


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """*options* for JSON: what is no plain value becomes ``{"code": ...}``."""
    return {name: _plain(name, value) for name, value in options.items()}


def _plain(name: str, value: Any) -> Any:
    """*value* itself, or its code: a name, a literal or, without either, the option's *name*."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    own = _name_of(value)
    if own.isidentifier():
        return {"code": own}
    text = shown(value)
    return {"code": text if _is_literal(text) else name}


def _name_of(value: Any) -> str:
    """Its ``__name__``, if that is a text: objects may have any attribute, or raise an error."""
    try:
        own = value.__name__
    except Exception:  # noqa: BLE001  # whatever the user's class raises
        return ""
    return own if isinstance(own, str) else ""


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def code(value: Any) -> str:
    """*value* of ``plain`` as Python: functions by their name, mappings as literals of these."""
    if not isinstance(value, dict):
        return repr(value)
    if set(value) == {"code"}:
        return str(value["code"])
    return f"{{{', '.join(f'{key!r}: {code(item)}' for key, item in value.items())}}}"


def call(name: str, *arguments: str, **options: Any) -> str:
    """A call of *name* as Python: *arguments* as they stand, and *options* that are not None."""
    return f"{name}({', '.join(_given(arguments, options))})"


def call_in_lines(name: str, *arguments: str, **options: Any) -> str:
    """The same for the body of a function, with a line for each argument if there are many."""
    if len(line := call(name, *arguments, **options)) <= _LINE:
        return line
    lines = "".join(f"        {each},\n" for each in _given(arguments, options))
    return f"{name}(\n{lines}    )"


def _given(arguments: tuple[str, ...], options: Mapping[str, Any]) -> list[str]:
    given = {name: value for name, value in options.items() if value is not None}
    return [*arguments, *(f"{name}={code(value)}" for name, value in given.items())]


def run_settings(deadline: float | None, seed: int, engine: str) -> dict[str, Any]:
    """The options at the end of a call that repeats something; the kernel engine is the default."""
    return {"deadline": deadline, "seed": seed, "engine": "python" if engine == "python" else None}
