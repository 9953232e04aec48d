"""Every error and warning that this package raises on purpose, with texts that can be printed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

__all__ = (
    "CheckFailedError",
    "DataLoaderFaultsError",
    "EngineUnavailableError",
    "FaultNotFiredError",
    "InjectionError",
    "InvalidArgumentError",
    "LostProcessError",
    "NotReproducedWarning",
    "SeveralLoadersError",
    "UnusableDatasetError",
    "UnusableEnvironmentError",
)


def _printable(text: str) -> str:
    """*text* on one line, with control and unprintable characters escaped as Python does it.

    File names hold any byte but the slash: newlines, and escape sequences by which a terminal goes
    back and prints something else. Names of classes and texts of errors hold any character.
    """
    if text.isprintable():
        return text
    escaped = [one if one.isprintable() else one.encode("unicode_escape").decode() for one in text]
    return "".join(escaped)


def _printable_lines(text: str) -> str:
    """*text* with its lines, each of which is printable."""
    return "\n".join(map(_printable, text.split("\n")))


_ON_ONE_LINE = 200
"""Characters of a text that is to stay on one line, whatever is in it."""


def _cut(text: str) -> str:
    """*text* on one line, without its middle if that is a long one."""
    line = _printable(text)
    half = _ON_ONE_LINE // 2
    return line if len(line) <= _ON_ONE_LINE else f"{line[:half]} ... {line[-half:]}"


def _shown(value: object) -> str:
    """``repr`` of *value*, which may be of a class whose ``__repr__`` raises."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  # whatever the user's class raises
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"


_COMMAND = re.compile(r"(^|[\r\n])(?=[^\S\r\n]*::)")


def _is_github_job() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _for_log(text: str) -> str:
    """*text* as it may be printed: a log of GitHub Actions must not read it as a command.

    GitHub's runner looks for ``::`` behind the blanks at the start of a line, and for ``##[``
    anywhere in it: github.com/actions/runner, src/Runner.Common/ActionCommand.cs.
    """
    if not _is_github_job():
        return text
    return _COMMAND.sub(r"\1| ", text).replace("##[", "## [")


class DataLoaderFaultsError(Exception):
    """Base class: catch it to catch everything below."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_printable_lines(message))


class InvalidArgumentError(DataLoaderFaultsError, ValueError):
    """An argument has a value that cannot be used. The text names it and what is allowed."""


class SeveralLoadersError(InvalidArgumentError):
    """Several loaders or datasets were handed over where one is needed: ``parts`` names them."""

    def __init__(self, message: str, parts: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.parts = tuple(parts)


class EngineUnavailableError(DataLoaderFaultsError):
    """This machine cannot run the engine that was asked for. The text says what it lacks."""


class InjectionError(DataLoaderFaultsError):
    """This package failed, so nothing is shown about the dataset. The text says where it did."""


class LostProcessError(InjectionError):
    """Something stopped or killed a process of a trial. The text says which one, and how."""


class UnusableDatasetError(DataLoaderFaultsError):
    """The dataset cannot be tried: its factory raised, it is empty, or no sample is comparable."""


class UnusableEnvironmentError(DataLoaderFaultsError):
    """This machine has too little of what every loader needs, ``lacking``. The text has advice."""

    def __init__(self, message: str, lacking: str) -> None:
        super().__init__(message)
        self.lacking = lacking


class FaultNotFiredError(DataLoaderFaultsError, AssertionError):
    """A fault was armed and never happened. The text says what the workers did instead."""


class CheckFailedError(DataLoaderFaultsError, AssertionError):
    """The dataset fails a check. The text gives the verdict, the evidence and how to repeat it."""


class NotReproducedWarning(UserWarning):
    """A trial failed, and two more of the same kind passed, so that the check does not fail."""
