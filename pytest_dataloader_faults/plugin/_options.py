"""Options, ini keys and marker arguments, resolved once into a frozen object.

Precedence, from weak to strong: ini key, command-line option, marker (the closest one).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._engine import ENGINES
from pytest_dataloader_faults.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    import pytest


_STEM = "dataloader_faults"


class Settings(NamedTuple):
    """What holds for one test."""

    engine: str
    deadline: float
    seed: int
    not_reproduced: str
    only: Any = None
    exclude: Any = ()
    expected_failures: Mapping[str, str] | None = None


class _Option(NamedTuple):
    parse: Callable[[str], Any]
    allowed: str
    default: Any
    help: str


def _engine(text: str) -> str:
    if text not in ENGINES:
        raise ValueError
    return text


def _seconds(value: Any) -> float:
    seconds = float(value)
    _arguments.check(deadline=seconds)
    return seconds


def _not_reproduced(value: Any) -> str:
    _arguments.check(not_reproduced=value)
    return str(value)


def _seed(value: Any) -> int:
    seed = int(value)
    _arguments.check(seed=seed)
    return seed


_OPTIONS = {
    "engine": _Option(
        _engine,
        f"one of {', '.join(ENGINES)}",
        "auto",
        "how faults are made: auto (kernel, else python), kernel (fail where this machine cannot)"
        " or python (Python-level reads only)",
    ),
    "deadline": _Option(
        _seconds,
        "a positive number of seconds",
        30.0,
        "seconds that one trial may take before it counts as hung",
    ),
    "seed": _Option(
        _seed, "an int from 0 to 2**32 - 1", 0, "seed of samplers and workers in trials"
    ),
    "not_reproduced": _Option(
        _not_reproduced,
        f"one of {', '.join(_arguments.NOT_REPRODUCED)}",
        "warn",
        "what a check does where one trial fails and two repeats of it pass: warn or fail",
    ),
}


def add_options(parser: pytest.Parser) -> None:
    """Declare ``--dataloader-faults-*`` and the ini keys of the same names."""
    group = parser.getgroup(
        "dataloader-faults", "storage and process faults under PyTorch DataLoaders"
    )
    for name, option in _OPTIONS.items():
        text = f"{option.help} (default: {option.default})"
        group.addoption(flag(name), dest=f"{_STEM}_{name}", metavar=name.upper(), help=text)
        parser.addini(f"{_STEM}_{name}", text)
    group.addoption(
        "--dataloader-faults-require-gpu",
        dest=f"{_STEM}_require_gpu",
        action="store_true",
        help="fail, not skip, the tests marked gpu where torch finds no accelerator",
    )


def flag(name: str) -> str:
    """The command-line option of *name*."""
    return f"--dataloader-faults-{name.replace('_', '-')}"


def marker(
    *,
    only: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    expected_failures: Mapping[str, str] | None = None,
    deadline: float | None = None,
    engine: str | None = None,
    not_reproduced: str | None = None,
) -> dict[str, Any]:
    """Choose the checks of fault_check and how they run; see check_dataset()."""
    given: dict[str, Any] = {
        "only": only,
        "exclude": exclude,
        "expected_failures": expected_failures,
        "deadline": deadline,
        "engine": engine,
        "not_reproduced": not_reproduced,
    }
    return {name: value for name, value in given.items() if value is not None}


def marker_line() -> str:
    """The line of ``pytest --markers``, from the signature above."""
    names = ", ".join(f"{name}=..." for name in inspect.signature(marker).parameters)
    return f"{_STEM}({names}): {marker.__doc__}"


def command_line(config: pytest.Config) -> str:
    """The options that were given, as they would be given again."""
    given = {name: config.getoption(f"{_STEM}_{name}") for name in _OPTIONS}
    options = (f"{flag(name)}={value}" for name, value in given.items() if value)
    return " ".join(options)


def settings_for(config: pytest.Config, marks: Iterable[pytest.Mark]) -> Settings:
    """What holds for a test with *marks*, the closest first."""
    values: dict[str, Any] = {}
    for name, option in _OPTIONS.items():
        values[name] = option.default
        ini = config.getini(f"{_STEM}_{name}") or None
        values.update(_parsed(name, ini, f"ini key {_STEM}_{name}"))
        values.update(_parsed(name, config.getoption(f"{_STEM}_{name}"), flag(name)))
    for mark in reversed(list(marks)):
        values.update(_from_marker(mark))
    return Settings(**values)


def _from_marker(mark: pytest.Mark) -> dict[str, Any]:
    try:
        given = marker(*mark.args, **mark.kwargs)
    except TypeError as error:
        message = f"@pytest.mark.{_STEM}: {error}. It takes {marker_line().partition(':')[0]}"
        raise InvalidArgumentError(message) from error
    for name in set(given) & set(_OPTIONS):
        given.update(_parsed(name, given[name], f"@pytest.mark.{_STEM}"))
    return given


def _parsed(name: str, value: Any, where: str) -> dict[str, Any]:
    """``{name: value}`` as it should be; nothing if *value* was not given."""
    if value is None:
        return {}
    try:
        return {name: _OPTIONS[name].parse(value)}
    except (TypeError, ValueError) as error:
        message = f"{name}={value!r} from {where} must be {_OPTIONS[name].allowed}"
        raise InvalidArgumentError(message) from error
