"""Arguments of strategies: checked as they are drawn from, refused as Hypothesis refuses."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults.faults._base import is_int

_SHOWN = 40


def require(ok: bool, allowed: str, **named: Any) -> None:
    """Refuse the one argument in *named*, unless it is *ok*."""
    ((name, value),) = named.items()
    if not ok:
        message = f"{name}={value!r} must be {allowed}"
        raise InvalidArgument(message)


def require_count(least: int = 1, most: int | None = None, **named: Any) -> None:
    """Refuse the arguments in *named* that are no int from *least* to *most*."""
    allowed = f"an int, {least} or more" if most is None else f"an int from {least} to {most}"
    for name, value in named.items():
        require(is_int(value, least) and (most is None or value <= most), allowed, **{name: value})


def require_some(known: Collection[Any], **named: Iterable[Any]) -> list[Any]:
    """The one argument in *named* as a list: at least one of *known*."""
    ((name, value),) = named.items()
    names = [getattr(each, "__name__", repr(each)) for each in known]
    shown = [*names[:_SHOWN], *([f"..., {names[-1]}"] if names[_SHOWN:] else [])]
    allowed = f"a list of one or more of {', '.join(shown)}"
    try:
        given = list(value)
    except TypeError:
        given = []
    require(bool(given) and all(each in known for each in given), allowed, **{name: value})
    return given
