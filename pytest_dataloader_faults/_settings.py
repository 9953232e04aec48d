"""What the functions of this package take: a rule for each argument, and the settings of trials.

A function that users call spells the keywords it takes. What is behind it takes ``Settings``, which
it makes by ``Settings.of(locals())``. So a new setting is a field here, and a keyword of these
functions. If it has an option, the plugin adds the option, the ini key and the marker's argument.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pytest_dataloader_faults._arguments import (
    COUNT,
    FLAG,
    SECONDS,
    ArgumentRule,
    at_least,
    ints,
    optional,
)
from pytest_dataloader_faults.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_dataloader_faults.outcomes import Contract

Files: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

EVERY_FILE = ("*",)
DEADLINE = 30.0
"""Seconds for an epoch, if nothing is known about the dataset and no deadline was passed."""
MOST_RANKS = 8
"""Each rank has a loader with its own workers, all on one machine."""
SAMPLES = 64
"""How many samples a battery checks by default."""
spared_folders: list[Callable[[], Iterable[str]]] = []
"""What returns folders in which ``inject`` lets files be changed: pytest's temporary folder."""


def _has_reasons(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(reason, str) and reason for reason in value.values()
    )


def _may_be_ready(value: Any) -> bool:
    """Whether *value* may have samples or loaders; a trial finds out more."""
    names = ("__getitem__", "__iter__", "setup")
    kind = type(value)
    return not issubclass(kind, (str, bytes)) and any(hasattr(kind, name) for name in names)


_NOT_REPRODUCED = ("warn", "fail")
_ON_FAIL = ("raise", "warn", None)

RULES = {
    "make_dataset": ArgumentRule(
        lambda value: callable(value) or _may_be_ready(value),
        "callable, such as lambda: MyDataset(), or a dataset, a loader or several of them",
    ),
    "loader": optional(
        lambda value: isinstance(value, Mapping),
        "a dict of DataLoader options, such as {'num_workers': 4}, or None",
    ),
    "samples": optional(at_least(1), "an int, 1 or more, or None or 'all' for all samples"),
    "max_trials": COUNT,
    "max_examples": optional(at_least(1), "an int, 1 or more, or None for the profile's value"),
    "max_faults": COUNT,
    "max_epochs": COUNT,
    "on_fail": ArgumentRule(lambda value: value in _ON_FAIL, f"one of {_ON_FAIL}"),
    "flaky": ArgumentRule(lambda value: value in _NOT_REPRODUCED, f"one of {_NOT_REPRODUCED}"),
    "epochs": COUNT,
    "ranks": optional(
        ints(2, MOST_RANKS).allows, f"an int from 2 to {MOST_RANKS}, or None for no ranks"
    ),
    "deadline": SECONDS,
    "seed": ints(0, 2**32 - 1, "an int from 0 to 2**32 - 1"),
    "require_fired": FLAG,
    "copy": optional(
        lambda value: isinstance(value, (str, os.PathLike)) and os.path.isdir(value),
        "an existing folder, as a str or pathlib.Path, or None",
    ),
    "expected_failures": optional(
        _has_reasons, 'a dict with a reason for each check, such as {"open-error": "issue 7"}'
    ),
}


def check(**arguments: Any) -> None:
    """Raise InvalidArgumentError for the first of *arguments* that breaks the rule of its name."""
    for name, value in arguments.items():
        RULES[name].check(name, value)


def parse_globs(files: Files | None) -> tuple[str, ...]:
    """*files* as globs; every file if it is None."""
    if files is None:
        return EVERY_FILE
    values: Any = (files,) if isinstance(files, (str, os.PathLike)) else files
    try:
        globs = tuple(map(os.fspath, values))
    except TypeError:
        globs = ()
    if not globs or not all(isinstance(each, str) and each for each in globs):
        message = (
            f"files={files!r} must be a glob or a list of globs, such as '*.jpg' or"
            " ['*.jpg', '*.json'], or None for every file"
        )
        raise InvalidArgumentError(message)
    return globs


class Option(NamedTuple):
    """A setting that can be chosen for a run of pytest.

    *values*: its values, as ``--help`` shows them. *word*: what stands for None. *kind*: the type
    that the text of an option has.
    """

    default: Any
    help: str
    values: str
    kind: type = str
    word: str | None = None

    @property
    def value(self) -> Any:
        """The default, as a setting has it."""
        return self.read(self.default)

    def read(self, value: Any) -> Any:
        """*value*, or None if it is the word for that."""
        return None if self.word is not None and value == self.word else value


OPTIONS: Mapping[str, Option] = {
    "samples": Option(
        SAMPLES,
        "approximate number of samples of a map-style dataset that a check reads, or all",
        "N|all",
        kind=int,
        word="all",
    ),
    "deadline": Option(
        "auto",
        "seconds that one epoch of a trial (one run of a loader) may take before it counts as hung;"
        " auto: 10 to 30, depending on how long an epoch takes without a fault",
        "SECONDS|auto",
        kind=float,
        word="auto",
    ),
    "seed": Option(
        0,
        "seed for the samplers, workers and faults of trials, and for the faults of fixtures",
        "N",
        kind=int,
    ),
    "ranks": Option(
        "none",
        "number of processes, 2 to 8, that train on the dataset together, as under torchrun: also"
        " runs the rank checks; none skips them",
        "N|none",
        kind=int,
        word="none",
    ),
}
"""The settings that a run of pytest can choose, by name."""


def _default_contract() -> Contract:
    from pytest_dataloader_faults.outcomes.contract import Contract

    return Contract()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What holds for all trials of a dataset. Its fields are arguments of ``check_dataset``.

    Attributes:
        files: Globs of the files that faults may hit.
        loader: Options of the ``DataLoader``.
        contract: What the author promises.
        copy: A folder that is copied for each trial and passed to ``make_dataset``; or None.
        samples: Approximate number of samples of a map-style dataset that are checked; None for
            all.
        deadline: Seconds for each epoch, and for the recovery pass; None to measure the fault-free
            epoch and choose.
        seed: Of the samplers, the workers, and the faults with a ``probability``.
        ranks: How many processes train on the dataset together in the rank checks; None to skip
            them.
    """

    files: tuple[str, ...] = EVERY_FILE
    loader: Mapping[str, Any] | None = None
    contract: Contract = field(default_factory=_default_contract)
    copy: str | None = None
    samples: int | None = None
    deadline: float | None = None
    seed: int = 0
    ranks: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for the first field that breaks its rule."""
        from pytest_dataloader_faults.outcomes.contract import Contract

        for name, option in OPTIONS.items():
            object.__setattr__(self, name, option.read(getattr(self, name)))
        left_open = {"deadline"} if self.deadline is None else set()
        ruled = {name: getattr(self, name) for name in vars(self).keys() & RULES.keys() - left_open}
        check(**dict(sorted(ruled.items())))
        object.__setattr__(self, "contract", Contract.from_argument(self.contract))
        object.__setattr__(self, "files", parse_globs(self.files))
        if self.copy is not None:
            object.__setattr__(self, "copy", os.path.abspath(self.copy))

    @classmethod
    def of(cls, arguments: Mapping[str, Any], *, may_be_auto: bool = False) -> Self:
        """The settings among the *arguments* of a call.

        *may_be_auto*: whether its deadline may be None or ``"auto"``.
        """
        return cls().override(arguments, may_be_auto=may_be_auto)

    def override(self, arguments: Mapping[str, Any], *, may_be_auto: bool = False) -> Self:
        """These settings, with those among the *arguments* of a call in their place."""
        if "deadline" in arguments and not may_be_auto:
            check(deadline=arguments["deadline"])
        names = [each.name for each in fields(self)]
        return replace(self, **{name: arguments[name] for name in names if name in arguments})

    @property
    def longest_epoch(self) -> float:
        """Seconds that no epoch may exceed."""
        return DEADLINE if self.deadline is None else self.deadline

    def as_arguments(self) -> dict[str, Any]:
        """The arguments that pass them to ``check_dataset``, as ``outcomes.text.call`` shows it.

        The seed is always shown.
        """
        from pytest_dataloader_faults.outcomes.text import to_plain

        usual = {**vars(type(self)()), "samples": SAMPLES, "seed": None}
        arguments = {name: value for name, value in vars(self).items() if value != usual[name]}
        if "samples" in arguments and self.samples is None:  # None is left out of a call.
            arguments["samples"] = {"code": "None"}
        return {**arguments, "loader": to_plain(self.loader) if self.loader else None}
