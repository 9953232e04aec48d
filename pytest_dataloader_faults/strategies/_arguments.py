"""Arguments of strategies: refused by Hypothesis' own exception, as those of its strategies are."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from hypothesis.errors import InvalidArgument

from pytest_dataloader_faults import _arguments
from pytest_dataloader_faults._arguments import Rule


def require(rule: Rule, **named: Any) -> None:
    """Refuse the arguments in *named* that *rule* does not allow."""
    for name, value in named.items():
        rule.check(name, value, error=InvalidArgument)


def require_some(known: Collection[Any], **named: Iterable[Any]) -> list[Any]:
    """The one argument in *named* as a list: at least one of *known*."""
    return _arguments.chosen(known, InvalidArgument, **named)
