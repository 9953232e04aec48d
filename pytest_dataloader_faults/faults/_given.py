"""What is given in place of a fault, and what to write instead. Pure."""

from __future__ import annotations

from typing import TypeGuard

from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults.faults._base import Fault


def why_no_fault(given: object) -> str:
    """What is wrong with *given* where a fault is expected, and what to do; "" if it is one."""
    if isinstance(given, Fault):
        return ""
    if _is_kind(given):
        return f"{given.__name__} is no fault, but a class. Call it: {given.__name__}()"
    if not isinstance(given, (list, tuple, set, frozenset)):
        shown = exceptions._shown(given)
        return f"{shown} is no fault. Give faults, such as ReadError('*.jpg')"
    kinds = sorted({each.__name__ for each in given if _is_kind(each)})
    calls = f", and call each class: {', '.join(f'{kind}()' for kind in kinds)}" if kinds else ""
    shown = ", ".join(
        each.__name__ if _is_kind(each) else exceptions._shown(each) for each in given
    )
    return (
        f"[{shown}] is no fault, but several things. Give each fault as an argument of its own, as"
        f" by *faults{calls}"
    )


def _is_kind(given: object) -> TypeGuard[type[Fault]]:
    return isinstance(given, type) and issubclass(given, Fault)
