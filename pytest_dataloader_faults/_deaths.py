"""What can be said of the death of a process, of which only the signal is known. Pure."""

from __future__ import annotations

_KILLED = (
    ", which the dataset sent itself, or somebody outside: the kernel does when the machine, or its"
    " control group, is out of memory (see dmesg)"
)


def how_told(died: str) -> str:
    """*died*, as of ``Outcome.died``, with who may have done it where there is no telling."""
    return died + _KILLED if "SIGKILL" in died else died
