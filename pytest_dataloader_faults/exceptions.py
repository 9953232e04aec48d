"""Every error and warning that this package raises on purpose, with texts that can be printed."""

from __future__ import annotations

import os
import re

__all__ = (
    "CheckFailedError",
    "DataLoaderFaultsError",
    "EngineUnavailableError",
    "FaultNotFiredError",
    "FlakyCheckWarning",
    "HarnessError",
    "InvalidArgumentError",
    "InvalidCheckError",
    "LostProcessError",
    "UnclearErrorWarning",
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
    escaped = [
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    ]
    return "".join(escaped)


def _printable_lines(text: str) -> str:
    """*text* with its lines, each of which is printable."""
    return "\n".join(map(_printable, text.split("\n")))


_ON_ONE_LINE = 200
"""Characters of a message that must stay on one line, whatever it contains."""


def _shorten(text: str) -> str:
    """*text* on one line, without its middle if that is a long one."""
    line = _printable(text)
    half = _ON_ONE_LINE // 2
    return line if len(line) <= _ON_ONE_LINE else f"{line[:half]} ... {line[-half:]}"


def _format_value(value: object) -> str:
    """``repr`` of *value*, which may be of a class whose ``__repr__`` raises."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  # whatever the user's class raises
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"


_COMMAND = re.compile(r"(^|[\r\n])(?=[^\S\r\n]*::)")


def _is_github_job() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _escape_for_log(text: str) -> str:
    """*text* as it may be printed: a log of GitHub Actions must not read it as a command.

    GitHub's runner looks for ``::`` behind the blanks at the start of a line, and for ``##[``
    anywhere in it: github.com/actions/runner, src/Runner.Common/ActionCommand.cs.
    """
    if not _is_github_job():
        return text
    return _COMMAND.sub(r"\1| ", text).replace("##[", "## [")


class DataLoaderFaultsError(Exception):
    """Base class of all errors that this package raises."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_printable_lines(message))


class InvalidArgumentError(DataLoaderFaultsError, ValueError):
    """An argument has an invalid value. The message names the argument and what is allowed."""


class InvalidCheckError(InvalidArgumentError):
    """A check that the user added has a mistake. The message names the check and its file."""


class EngineUnavailableError(DataLoaderFaultsError):
    """No fault can be injected on this machine. The message says what is missing."""


class HarnessError(DataLoaderFaultsError):
    """The plugin itself failed, so the run proves nothing about the dataset."""


class LostProcessError(HarnessError):
    """A process of a trial was stopped or killed from outside. The message says which, and how."""


class UnusableDatasetError(DataLoaderFaultsError):
    """The dataset cannot be tested, for example because ``make_dataset`` raised, or it is empty."""


class UnusableEnvironmentError(DataLoaderFaultsError):
    """The machine lacks a resource that every DataLoader needs, named in ``lacking``."""

    def __init__(self, message: str, lacking: str) -> None:
        super().__init__(message)
        self.lacking = lacking


class FaultNotFiredError(DataLoaderFaultsError, AssertionError):
    """A fault was armed but never fired. The message says what the workers did instead."""


class CheckFailedError(DataLoaderFaultsError, AssertionError):
    """The dataset failed a check. The message contains the verdict and the evidence."""


class FlakyCheckWarning(UserWarning):
    """A check is flaky: one trial failed, but two repeats passed, so the check does not fail."""


class UnclearErrorWarning(UserWarning):
    """A library raised an error that hides its cause, so the check does not fail."""
