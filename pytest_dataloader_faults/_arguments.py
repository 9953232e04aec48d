"""What an argument may be, and the error that says so: the value, and what is allowed. Pure.

Frozen dataclasses inherit from ``Checked`` and list a rule per field. The rules of what functions
take are in ``_settings``.
"""

from __future__ import annotations

import difflib
import errno
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

_SHOWN = 40
"""The number of allowed values that are listed before the last one."""


def is_int(value: object, minimum: int = 1, maximum: float = math.inf) -> bool:
    """Whether *value* is an int, and no bool, from *minimum* to *maximum*."""
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def is_number(value: object) -> bool:
    """Whether *value* is a finite number, and no bool."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # An int may be larger than any float.


class ArgumentRule(NamedTuple):
    """What an argument may be: the test, and the text for people."""

    allows: Callable[[Any], bool]
    allowed: str

    def check(
        self, name: str, value: Any, owner: str = "", error: type[Exception] = InvalidArgumentError
    ) -> None:
        """Raise *error* if argument *name* of *owner* may not have this *value*."""
        if not self.allows(value):
            text = exceptions._shorten(exceptions._format_value(value))
            raise error(f"{owner and f'{owner}: '}{name}={text} must be {self.allowed}")


def ints(minimum: int = 1, maximum: int | None = None, allowed: str = "") -> ArgumentRule:
    """Ints from *minimum* to *maximum*."""
    text = (
        f"an int, {minimum} or more" if maximum is None else f"an int from {minimum} to {maximum}"
    )
    highest = math.inf if maximum is None else maximum
    return ArgumentRule(lambda value: is_int(value, minimum, highest), allowed or text)


def one_of(values: Iterable[str]) -> ArgumentRule:
    """Strings that are among *values*."""
    choices = tuple(values)
    allowed = f"one of {', '.join(map(repr, choices))}"
    return ArgumentRule(lambda value: isinstance(value, str) and value in choices, allowed)


def at_least(minimum: int) -> Callable[[object], bool]:
    """Whether a value is an int of *minimum* or more."""
    return lambda value: is_int(value, minimum)


def optional(allows: Callable[[Any], bool], allowed: str) -> ArgumentRule:
    """None, or what *allows* accepts."""
    return ArgumentRule(lambda value: value is None or allows(value), allowed)


FLAG = ArgumentRule(lambda value: isinstance(value, bool), "True or False")
COUNT = ints(1)
SECONDS = ArgumentRule(lambda value: is_number(value) and value > 0, "a positive number of seconds")


def choose_arguments(
    choices: Collection[Any],
    error: type[Exception] = InvalidArgumentError,
    **argument: Iterable[Any],
) -> list[Any]:
    """The one argument in *argument* as a list: at least one of *choices*."""
    ((name, value),) = argument.items()
    names = [getattr(each, "__name__", repr(each)) for each in choices]
    shown_names = [*names[:_SHOWN], *([f"..., {names[-1]}"] if names[_SHOWN:] else [])]
    values = list(value) if isinstance(value, Iterable) else []
    ok = bool(values) and all(each in choices for each in values)
    rule = ArgumentRule(lambda _: ok, f"a list of one or more of {', '.join(shown_names)}")
    rule.check(name, value, error=error)
    return values


def suggest_name(name: str, choices: Iterable[str]) -> str:
    """Which of *choices* are nearest to *name*, as a question; "" if none is near."""
    # A choice half as long as the name is part of it by chance, as "at" is of "path".
    likeness = {each: _similarity(name, each) for each in choices if 2 * len(each) > len(name)}
    near = [each for each in likeness if likeness[each] >= _LEAST_LIKENESS]
    near.sort(key=lambda choice: (-likeness[choice], len(choice)))
    return f"Did you mean {' or '.join(map(repr, near[:2]))}?" if near else ""


_LEAST_LIKENESS, _WEIGHT_OF_PREFIX = 0.6, 0.95


def _similarity(name: str, choice: str) -> float:
    """How near they are, from 0 to 1. Many a long name is typed up to some place."""
    of_all, of_beginning = (
        difflib.SequenceMatcher(None, candidate, name).ratio()
        for candidate in (choice, choice[: len(name)])
    )
    return max(of_all, of_beginning * _WEIGHT_OF_PREFIX)


def errno_name(number: int) -> str:
    """The name of an errno by which its manual page calls it; the number if it has none."""
    return "EDEADLK" if number == errno.EDEADLK else errno.errorcode.get(number, str(number))


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
    _rules: ClassVar[Mapping[str, ArgumentRule]] = {}
    _repr_pretty_ = PrintsItself()

    def __new__(cls, *_args: Any, **arguments: Any) -> Self:
        """Raise InvalidArgumentError for an argument that is none, before Python's TypeError."""
        field_names = [each.name for each in fields(cls) if each.init]  # type: ignore[arg-type]
        for name in arguments:
            if name not in field_names:
                advice = (
                    suggest_name(name, field_names) or f"Its arguments are {', '.join(field_names)}"
                )
                message = f"{cls.__name__} got an unexpected keyword argument {name!r}. {advice}"
                raise InvalidArgumentError(message)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for the first field that breaks its rule."""
        for field in fields(self):  # type: ignore[arg-type]  # Every subclass is a dataclass.
            rule = self._rules[field.name]
            rule.check(field.name, getattr(self, field.name), owner=type(self).__name__)

    def _require(self, name: str, ok: bool, allowed: str) -> None:
        """Refuse the value of field *name* unless it is *ok* together with the other fields."""
        ArgumentRule(lambda _: ok, allowed).check(
            name, getattr(self, name), owner=type(self).__name__
        )

    def __repr__(self) -> str:
        """Valid code: the arguments that differ from their defaults."""
        differ = [
            field
            for field in sorted(fields(self), key=lambda each: bool(each.kw_only))  # type: ignore[arg-type]
            if getattr(self, field.name)
            != (field.default if field.default_factory is MISSING else field.default_factory())
        ]
        return f"{type(self).__name__}({', '.join(map(self._argument, differ))})"

    def _argument(self, field: Field[Any]) -> str:
        return f"{field.name}={getattr(self, field.name)!r}"
