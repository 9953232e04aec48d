"""What an argument may be, and the error that says so: the value, and what is allowed. Pure.

Frozen dataclasses inherit from ``Checked`` and list a rule per field. The rules of what functions
take are in ``_settings``.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults.exceptions import InvalidArgumentError

_SHOWN = 40
"""So many of the allowed values are listed, and the last one."""


def is_int(value: object, least: int = 1, most: float = math.inf) -> bool:
    """Whether *value* is an int, and no bool, from *least* to *most*."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object) -> bool:
    """Whether *value* is a finite number, and no bool."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # An int may be larger than any float.


class Rule(NamedTuple):
    """What an argument may be: the test, and the text for people."""

    allows: Callable[[Any], bool]
    allowed: str

    def check(
        self, name: str, value: Any, owner: str = "", error: type[Exception] = InvalidArgumentError
    ) -> None:
        """Raise *error* if argument *name* of *owner* may not have this *value*."""
        if not self.allows(value):
            text = exceptions._cut(exceptions._shown(value))
            raise error(f"{owner and f'{owner}: '}{name}={text} must be {self.allowed}")


def ints(least: int = 1, most: int | None = None, allowed: str = "") -> Rule:
    """Ints from *least* to *most*."""
    text = f"an int, {least} or more" if most is None else f"an int from {least} to {most}"
    highest = math.inf if most is None else most
    return Rule(lambda value: is_int(value, least, highest), allowed or text)


def one_of(values: Iterable[str]) -> Rule:
    """Strings that are among *values*."""
    choices = tuple(values)
    allowed = f"one of {', '.join(map(repr, choices))}"
    return Rule(lambda value: isinstance(value, str) and value in choices, allowed)


def at_least(least: int) -> Callable[[object], bool]:
    """Whether a value is an int of *least* or more."""
    return lambda value: is_int(value, least)


def optional(allows: Callable[[Any], bool], allowed: str) -> Rule:
    """None, or what *allows* accepts."""
    return Rule(lambda value: value is None or allows(value), allowed)


FLAG = Rule(lambda value: isinstance(value, bool), "True or False")
COUNT = ints(1)
SECONDS = Rule(lambda value: is_number(value) and value > 0, "a positive number of seconds")


def chosen(
    known: Collection[Any], error: type[Exception] = InvalidArgumentError, **named: Iterable[Any]
) -> list[Any]:
    """The one argument in *named* as a list: at least one of *known*."""
    ((name, value),) = named.items()
    names = [getattr(each, "__name__", repr(each)) for each in known]
    shown = [*names[:_SHOWN], *([f"..., {names[-1]}"] if names[_SHOWN:] else [])]
    given = list(value) if isinstance(value, Iterable) else []
    ok = bool(given) and all(each in known for each in given)
    rule = Rule(lambda _: ok, f"a list of one or more of {', '.join(shown)}")
    rule.check(name, value, error=error)
    return given


def meant(name: str, known: Iterable[str]) -> str:
    """Which of *known* are nearest to *name*, as a question; "" if none is near."""
    near = difflib.get_close_matches(name, list(known), n=2)
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else ""


class StrEnum(str, Enum):
    """Base of enumerations whose ``str`` is their value, as ``enum.StrEnum`` of Python 3.11."""

    def __str__(self) -> str:
        return str(self.value)


class PrintsItself:
    """Has Hypothesis and IPython print an instance by its repr, and leave the class alone."""

    def __get__(self, value: object | None, _kind: type) -> Callable[[Any, bool], None] | None:
        return None if value is None else lambda printer, _cycle: printer.text(repr(value))


class Checked:
    """Base of frozen dataclasses: each field is checked by its rule, and the repr is code."""

    __slots__ = ()
    _rules: ClassVar[Mapping[str, Rule]] = {}
    _repr_pretty_ = PrintsItself()

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for the first field that breaks its rule."""
        for each in fields(self):  # type: ignore[arg-type]  # Every subclass is a dataclass.
            rule = self._rules[each.name]
            rule.check(each.name, getattr(self, each.name), owner=type(self).__name__)

    def _require(self, name: str, ok: bool, allowed: str) -> None:
        """Refuse the value of field *name*, unless it is *ok* beside the other fields."""
        Rule(lambda _: ok, allowed).check(name, getattr(self, name), owner=type(self).__name__)

    def __repr__(self) -> str:
        """Valid code: the arguments that differ from their defaults."""
        differ = [
            each
            for each in sorted(fields(self), key=lambda each: bool(each.kw_only))  # type: ignore[arg-type]
            if each.default is MISSING or getattr(self, each.name) != each.default
        ]
        return f"{type(self).__name__}({', '.join(map(self._argument, differ))})"

    def _argument(self, field: Field[Any]) -> str:
        return f"{field.name}={getattr(self, field.name)!r}"
