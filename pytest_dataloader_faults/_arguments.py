"""Arguments that several functions take: what they may be. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from pytest_dataloader_faults.exceptions import InvalidArgumentError

_SEEDS = 2**32
NOT_REPRODUCED = ("warn", "fail")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def _has_reasons(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(reason, str) and reason for reason in value.values()
    )


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "make_dataset": (callable, "callable, such as lambda: MyDataset()"),
    "loader": (
        lambda value: value is None or isinstance(value, Mapping),
        "a dict of options of DataLoader, such as {'num_workers': 4}, or None",
    ),
    "max_trials": (lambda value: _is_int(value) and value >= 1, "an int, 1 or more"),
    "max_examples": (lambda value: _is_int(value) and value >= 1, "an int, 1 or more"),
    "max_faults": (lambda value: _is_int(value) and value >= 1, "an int, 1 or more"),
    "max_epochs": (lambda value: _is_int(value) and value >= 1, "an int, 1 or more"),
    "max_steps": (
        lambda value: _is_int(value) and value > 1,
        "an int, 2 or more, of which the first step makes a loader",
    ),
    "on_fail": (
        lambda value: value in ("raise", "warn", None),
        "one of ('raise', 'warn', None)",
    ),
    "not_reproduced": (lambda value: value in NOT_REPRODUCED, f"one of {NOT_REPRODUCED}"),
    "epochs": (lambda value: _is_int(value) and value >= 1, "an int, 1 or more"),
    "deadline": (_is_time, "a positive number of seconds"),
    "seed": (lambda value: _is_int(value) and 0 <= value < _SEEDS, "an int from 0 to 2**32 - 1"),
    "tell": (
        lambda value: value is None or callable(value),
        "a function of a str, such as print, or None",
    ),
    "expected_failures": (
        lambda value: value is None or _has_reasons(value),
        'a dict that gives each check a reason, such as {"open-error": "issue 7"}',
    ),
}


def check(**arguments: Any) -> None:
    """Raise InvalidArgumentError for the first of *arguments* that breaks the rule of its name."""
    for name, value in arguments.items():
        allows, allowed = _RULES[name]
        if not allows(value):
            message = f"{name}={value!r} must be {allowed}"
            raise InvalidArgumentError(message)
