"""What the functions of this package take: a rule for each argument, and the settings of trials.

A function that users call spells the keywords it takes. What is behind it takes ``Settings``, which
it makes by ``Settings.of(locals())``. So a new setting is a field here, and a keyword of these
functions. If it has an option, the plugin adds the option, the ini key and the marker's argument.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pytest_dataloader_faults._arguments import COUNT, FLAG, SECONDS, Rule, at_least, ints, optional
from pytest_dataloader_faults.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_dataloader_faults.outcomes import Contract

Files: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

EVERY_FILE = ("*",)
DEADLINE = 30.0
"""Seconds for an epoch, where nothing is known of the dataset and nothing was asked for."""
MOST_RANKS = 8
"""Each has a loader with workers of its own, on one machine."""
SAMPLES = 64
"""How many samples a battery looks at, unless it is asked for more or fewer."""


def _has_reasons(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(reason, str) and reason for reason in value.values()
    )


def _may_be_ready(value: Any) -> bool:
    """Whether *value* may have samples or loaders; a trial finds out more."""
    names = ("__getitem__", "__iter__", "setup")
    kind = type(value)
    return not issubclass(kind, (str, bytes)) and any(hasattr(kind, name) for name in names)


_LINKS = ("copy", "symlink")
_ENGINES = ("auto", "kernel", "python")
_NOT_REPRODUCED = ("warn", "fail")
_ON_FAIL = ("raise", "warn", None)

RULES = {
    "engine": Rule(lambda value: value in _ENGINES, f"one of {', '.join(_ENGINES)}"),
    "make_dataset": Rule(
        lambda value: callable(value) or _may_be_ready(value),
        "callable, such as lambda: MyDataset(), or a dataset, a loader or several of them",
    ),
    "loader": optional(
        lambda value: isinstance(value, Mapping),
        "a dict of options of DataLoader, such as {'num_workers': 4}, or None",
    ),
    "samples": optional(at_least(1), "an int, 1 or more, or None or 'all' for all samples"),
    "max_trials": COUNT,
    "max_examples": optional(at_least(1), "an int, 1 or more, or None for that of the profile"),
    "max_faults": COUNT,
    "max_epochs": COUNT,
    "on_fail": Rule(lambda value: value in _ON_FAIL, f"one of {_ON_FAIL}"),
    "not_reproduced": Rule(lambda value: value in _NOT_REPRODUCED, f"one of {_NOT_REPRODUCED}"),
    "epochs": COUNT,
    "ranks": optional(
        ints(2, MOST_RANKS).allows, f"an int from 2 to {MOST_RANKS}, or None for no ranks"
    ),
    "from_start": FLAG,
    "deadline": SECONDS,
    "seed": ints(0, 2**32 - 1, "an int from 0 to 2**32 - 1"),
    "require_fired": FLAG,
    "links": Rule(lambda value: value in _LINKS, f"one of {', '.join(_LINKS)}"),
    "report": optional(callable, "a function of a str, such as print, or None"),
    "copy": optional(
        lambda value: isinstance(value, (str, os.PathLike)) and os.path.isdir(value),
        "a folder that exists, a str or a pathlib.Path, or None",
    ),
    "expected_failures": optional(
        _has_reasons, 'a dict that gives each check a reason, such as {"open-error": "issue 7"}'
    ),
}


def check(**arguments: Any) -> None:
    """Raise InvalidArgumentError for the first of *arguments* that breaks the rule of its name."""
    for name, value in arguments.items():
        RULES[name].check(name, value)


def parse_globs(files: Files | None) -> tuple[str, ...]:
    """*files* as globs; every file if there are none given."""
    if files is None:
        return EVERY_FILE
    given: Any = (files,) if isinstance(files, (str, os.PathLike)) else files
    try:
        globs = tuple(map(os.fspath, given))
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

    *word*: what stands for None. *kind*: the type that the text of an option has.
    """

    default: Any
    help: str
    kind: type = str
    word: str | None = None

    @property
    def value(self) -> Any:
        """The default, as a setting has it."""
        return self.read(self.default)

    def read(self, value: Any) -> Any:
        """*value*, or None if it is the word for that."""
        return None if self.word is not None and value == self.word else value


def _with_option(otherwise: Any, *of_option: Any, **more: Any) -> Any:
    """A field that is *otherwise* where no run of pytest chooses it."""
    return field(default=otherwise, metadata={"option": Option(*of_option, **more)})


def _ordinary() -> Contract:
    from pytest_dataloader_faults.outcomes.contract import Contract

    return Contract()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What holds for all trials of a dataset. Its fields are arguments of ``check_dataset``.

    Attributes:
        files: Globs of the files that faults may hit.
        loader: Options of the ``DataLoader``.
        contract: What the author promises.
        copy: A folder of which each trial gets its own copy, for ``make_dataset``; or None.
        samples: About how many samples of a map-style dataset are looked at; None for all.
        deadline: Seconds for each epoch, and for the recovery; None where the epochs themselves
            show how long is enough.
        seed: Of the samplers, the workers, and the faults with a ``probability``.
        engine: ``"auto"``, ``"kernel"`` or ``"python"``.
        ranks: How many processes train on the dataset together, in the checks of ranks; None where
            those are not asked.
    """

    files: tuple[str, ...] = EVERY_FILE
    loader: Mapping[str, Any] | None = None
    contract: Contract = field(default_factory=_ordinary)
    copy: str | None = None
    samples: int | None = _with_option(
        None,
        SAMPLES,
        "about how many samples of a map-style dataset a check or a sweep looks at, or all",
        kind=int,
        word="all",
    )
    deadline: float | None = _with_option(
        None,
        "auto",
        "seconds that one epoch of a trial may take before it counts as hung; auto is 10 to 30 in a"
        " check or a sweep, by how long an epoch takes without a fault, and 30 elsewhere",
        kind=float,
        word="auto",
    )
    seed: int = _with_option(
        0, 0, "seed of samplers, workers and faults in trials; if given, of searches, too", kind=int
    )
    engine: str = _with_option(
        "auto",
        "auto",
        "what injects the faults: kernel (at system calls; tests fail where this machine cannot),"
        " python (in Python's own file functions) or auto (kernel where it can, else python)",
    )
    ranks: int | None = _with_option(
        None,
        "none",
        "how many processes train on the dataset together, 2 to 8, as under torchrun: asks the"
        " checks of ranks, too; none leaves them out",
        kind=int,
        word="none",
    )

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for the first field that breaks its rule."""
        from pytest_dataloader_faults.outcomes.contract import Contract

        for name, option in OPTIONS.items():
            object.__setattr__(self, name, option.read(getattr(self, name)))
        left_open = {"deadline"} if self.deadline is None else set()
        ruled = {name: getattr(self, name) for name in vars(self).keys() & RULES.keys() - left_open}
        check(**dict(sorted(ruled.items())))
        object.__setattr__(self, "contract", Contract.given(self.contract))
        object.__setattr__(self, "files", parse_globs(self.files))
        if self.copy is not None:
            object.__setattr__(self, "copy", os.path.abspath(self.copy))

    @classmethod
    def of(cls, arguments: Mapping[str, Any], *, may_be_auto: bool = False) -> Self:
        """The settings among the *arguments* of a call.

        *may_be_auto*: whether its deadline may be None or ``"auto"``.
        """
        return cls().with_those_of(arguments, may_be_auto=may_be_auto)

    def with_those_of(self, arguments: Mapping[str, Any], *, may_be_auto: bool = False) -> Self:
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
        """What gives them to a call of ``check_dataset``, as ``outcomes.text.call`` shows it.

        The seed is shown always, and the engine where it is not the kernel's.
        """
        from pytest_dataloader_faults.outcomes.text import plain

        usual = {**vars(type(self)()), "samples": SAMPLES, "seed": None, "engine": "kernel"}
        shown = {name: value for name, value in vars(self).items() if value != usual[name]}
        if "samples" in shown and self.samples is None:  # None is left out of a call.
            shown["samples"] = {"code": "None"}
        return {**shown, "loader": plain(self.loader) if self.loader else None}


OPTIONS: dict[str, Option] = {
    each.name: each.metadata["option"] for each in fields(Settings) if each.metadata
}
"""The settings that a run of pytest can choose, by name."""
