"""Texts of others, made fit to be kept and to be shown. Pure."""

from __future__ import annotations

_KEPT = 1 << 16
"""Characters kept of either end of a text."""
_WORDS = 100
"""More than the line takes that says what was left out."""


def shortened(text: str) -> str:
    """*text*, without its middle if it is very long.

    A dataset that tries again from within its handlers makes a chain of hundreds of exceptions. The
    first one, which began it, stands at the front, and the last one, which came out, at the end.
    """
    if len(text) <= 2 * _KEPT + _WORDS:
        return text
    head = text[: _end_of_line(text, _KEPT)]
    tail = text[_begin_of_line(text, len(text) - _KEPT) :]
    left_out = len(text) - len(head) - len(tail)
    # Indented like a frame of a traceback, so that nobody takes it for the words of an error.
    return f"{head}  ... {left_out} characters are left out here ...\n{tail}"


def _end_of_line(text: str, most: int) -> int:
    """Where the last line ends that ends before *most*; *most* where the lines are too long."""
    return text.rfind("\n", most // 2, most) + 1 or most


def _begin_of_line(text: str, least: int) -> int:
    """Where the first line begins after *least*; *least* where the lines are too long."""
    return text.find("\n", least, least + _KEPT // 2) + 1 or least


def printable(text: str) -> str:
    """*text* on one line, with what a terminal would obey or could not show as Python escapes it.

    File names hold any byte but the slash: newlines, and the escapes by which a terminal is told to
    go back and print something else.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
