"""How a result shows itself: on one line as its repr, and as a small table in a notebook. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pytest_dataloader_faults._arguments import PrintsItself
from pytest_dataloader_faults.outcomes._text import printable, printable_lines

_MOST = 200
"""Characters of a value that is shown on one line: a schedule may list thousands of paths."""


class Shown:
    """Base of results, which say what they show; ``to_dict`` and the attributes have it all."""

    __slots__ = ()
    _repr_pretty_ = PrintsItself()

    def _facts(self) -> Iterator[tuple[str, object]]:
        """Names and values for the one line."""
        raise NotImplementedError

    def _texts(self) -> Iterator[tuple[str, str]]:
        """Names and longer texts, for the table alone."""
        yield from ()

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={_on_one_line(value)}" for name, value in self._facts())
        return f"<{type(self).__name__}: {told}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the same as the one line, and the longer texts."""
        rows = [
            _row(name, f"<td>{escape(_on_one_line(value))}</td>") for name, value in self._facts()
        ]
        rows += [
            _row(name, f"<td><pre>{escape(printable_lines(text))}</pre></td>")
            for name, text in self._texts()
        ]
        return f"<table>{''.join(rows)}</table>"


def _row(name: str, cell: str) -> str:
    return f"<tr><th>{escape(name)}</th>{cell}</tr>"


def _on_one_line(value: object) -> str:
    text = printable(str(value))
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."
