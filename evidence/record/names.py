"""Which names checks have had: a record may be compared with one from before checks were merged."""

from __future__ import annotations

from collections.abc import Iterable

from support.old_names import OLD_NAMES


def current_name(check: str) -> str:
    """The name of the check that stands for *check*, which may be its own."""
    return OLD_NAMES.get(check, check)


def current_names(checks: Iterable[str]) -> list[str]:
    """The names of the checks that stand for *checks*, each once."""
    return list(dict.fromkeys(map(current_name, checks)))
