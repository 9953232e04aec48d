"""How calls of workers collide in a trial without faults, which shows races. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Collisions:
    """At what two workers wait for each other, and in which order they continue.

    *unprovoked*: globs of what workers use without waiting for each other. At all else that they
    share, their calls collide. *empties_late*: a worker that empties a file waits until the one
    that created it has written to it.
    """

    unprovoked: tuple[str, ...] = ()
    empties_late: bool = False


DEFAULT_COLLISIONS = Collisions()
