"""A fault, an operation that it is about, and what then comes of the operation."""

import os
import re
from collections.abc import Callable, Container
from typing import Any, NamedTuple

from pytest_dataloader_faults.faults import Fault
from support.attempts import CONTENT

SOME = range(1, 1 << 30)
RIGHT = object()
"""The effect of a fault that the operation survives."""


class Row(NamedTuple):
    """One cell of the contract."""

    fault: Callable[..., Fault]
    """Makes it, of a glob and of triggers."""
    operation: Callable[[Any], Any]
    """What a worker does with a path, or with the address of a server."""
    effect: Any
    """What it returns then, or a pattern of the text of its error, or what is true of it."""
    content: bytes | Callable[[str], object] | None = CONTENT
    """What the file holds, or what writes it; None if there is none yet."""
    fired: Container[int] = SOME
    left: bytes | None = None
    """What the file holds afterwards; None if that is not asked."""
    name: str = "x.rec"
    is_counted: bool = True
    """Whether operations count that happen before the turn of the fault."""

    def is_met(self, gave: Any, right: Any) -> bool:
        """Whether *gave* shows the fault, where *right* is what comes without it."""
        if self.effect is RIGHT:
            return gave == right
        if isinstance(self.effect, re.Pattern):
            return isinstance(gave, str) and bool(self.effect.search(gave))
        return self.effect(gave, right) if callable(self.effect) else gave == self.effect


def text(pattern: str) -> re.Pattern[str]:
    """The effect of a fault that a library reports in its own words."""
    return re.compile(pattern, re.DOTALL)


def errno(number: int) -> re.Pattern[str]:
    return text(re.escape(os.strerror(number)))
