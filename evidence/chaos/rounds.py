"""What a round consists of: drawn from a seed and its number. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import Any

ROLES = ("main", "warden", "supervisor", "root", "worker", "runner")
"""Processes: pytest's, the one with the deadline, the one that answers, the loader's, a worker of
the loader, and a worker of pytest-xdist."""
SIGNALS = {"kill": "SIGKILL", "term": "SIGTERM", "int": "SIGINT", "stop": "SIGSTOP"}
SHORTAGES = ("full-shm", "full-tmp", "no-inodes", "no-processes", "few-descriptors")
SUBJECTS = ("trial", "inject", "battery", "explore", "pytest", "xdist")
VERDICTS = {"careful": "failed_cleanly", "retries": "survived", "zeros": "corrupted"}
"""The datasets, and the verdict of each with nothing hurt."""
_WEIGHTS = {"trial": 12, "inject": 8, "battery": 2, "explore": 2, "pytest": 2, "xdist": 1}
_ROLE_WEIGHTS = dict.fromkeys(ROLES, 1.0) | {"runner": 0.1}
NOTHING = "nothing"
"""The act of a round in which nothing is hurt."""
LITTER = "litter"
"""A subject that leaves what no subject may leave, to be seen."""
_METHODS = {"fork": 8, "forkserver": 2, "spawn": 1}
_ACTS = {"kill": 8, "term": 2, "int": 2, "pause": 2, "stop": 1}
_DELAYS = (0.0, 0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between the start of a process and what comes to it."""


@dataclass(frozen=True)
class Round:
    """One subject, and one hurt.

    *act*: a signal's short name, ``pause`` for SIGSTOP and SIGCONT, or a shortage, which has no
    *role*. The act comes *delay* seconds after a process of that role was first seen.
    """

    number: int
    subject: str
    dataset: str
    method: str
    act: str
    role: str
    delay: float

    @property
    def hurt(self) -> str:
        """Such as ``kill-warden``."""
        return f"{self.act}-{self.role}" if self.role else self.act

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Limits:
    """Those that are drawn: *acts*, *roles* and *subjects*; empty for any."""

    acts: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()


def draw(seed: int, number: int, limits: Limits) -> Round:
    """Round *number* of the campaign with that *seed*."""
    stream = Random(f"{seed}/{number}")
    act = _choose(stream, _ACTS | dict.fromkeys(SHORTAGES, 0.4), limits.acts)
    role = "" if act in (*SHORTAGES, NOTHING) else _choose(stream, _ROLE_WEIGHTS, limits.roles)
    if (role, act) == ("runner", "stop"):  # pytest-xdist would wait for it forever.
        act = "kill"
    # That is tried as another user, who may not read what such a worker imports.
    methods = ("fork",) if act == "no-processes" else limits.methods
    weights = {name: weight for name, weight in _WEIGHTS.items() if _is_possible(name, act, role)}
    return Round(
        number=number,
        subject=_choose(stream, weights, limits.subjects),
        dataset=stream.choice(list(VERDICTS)),
        method=_choose(stream, _METHODS, methods),
        act=act,
        role=role,
        delay=stream.choice(_DELAYS),
    )


def _choose(stream: Random, weights: Mapping[str, float], names: tuple[str, ...]) -> str:
    chosen = {name: weight for name, weight in weights.items() if not names or name in names}
    chosen = chosen or dict.fromkeys(names, 1.0)
    return stream.choices(list(chosen), list(chosen.values()))[0]


def _is_possible(subject: str, act: str, role: str) -> bool:
    """Whether *subject* has such a process, and whether the act ends."""
    if role == "runner":
        return subject == "xdist"
    if subject == "inject":  # torch waits forever for a worker that is stopped.
        return role not in ("warden", "root") and (role, act) != ("worker", "stop")
    return True


def round_from(data: dict[str, Any]) -> Round:
    """The round that ``to_dict`` made *data* from."""
    return Round(**{field.name: data[field.name] for field in fields(Round)})
