"""Try every reader under every fault, and write what comes of it.

    python evidence readers            every reader
    python evidence readers --page     none: only the page, from the record

writes the record, which evidence/test_readers.py compares with what it finds, and the section of
docs/explanation/why.md. Readers of files are in tests/support/readers.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pages import Page, matrix
from support.readers import READERS, documented, versions

PAGE = Page("readers", "docs/explanation/why.md")
HEADINGS = {
    "OpenError(EIO)": "open fails",
    "OpenError(EACCES)": "not permitted",
    "ReadError(EIO)": "first read fails",
    matrix.LATER: "a later read fails",
    "ClosedDescriptor": "descriptor closed",
    "TruncatedFile(keep=0.5)": "half of the file",
    "TruncatedFile(keep=0)": "empty file",
    "ShortRead(max_bytes=1000)": "short reads",
    "CorruptedFile(flips=1)": "a byte differs",
}
"""A fault that is not here is shown by its name."""
WORDS = {
    matrix.RIGHT: "right data",
    matrix.ERROR: "error",
    matrix.HIDDEN: "*unclear error*",
    "SIGBUS": "**SIGBUS**",
    matrix.HANG: "**hang**",
    matrix.NOTHING: "**None**",
    matrix.SHORTER: "**short data**",
    matrix.LONGER: "**long data**",
    matrix.WRONG: "**wrong data**",
}
_LONGEST = 200


def record(cells: dict[tuple[str, str], matrix.Cell]) -> dict[str, Any]:
    """What is kept of a run: the versions, and each reader's cells by fault."""
    rows = {
        key: {name: _record_of(cells[key, name]) for name in matrix.COLUMNS if (key, name) in cells}
        for key in documented()
    }
    return {"versions": versions(), "readers": rows}


def _record_of(cell: matrix.Cell) -> dict[str, Any]:
    entry = {"outcome": cell.outcome, "calls": list(cell.calls)}
    if cell.nth > 1:
        entry["nth"] = cell.nth
    return {**entry, "message": cell.message} if cell.message else entry


def page(record: dict[str, Any]) -> str:
    """The section about what is kept."""
    rows = record["readers"]
    return PAGE.text(
        conclusions="".join(_conclusions(rows)),
        table="".join(_table(rows)),
        messages="".join(_messages(rows)),
        versions=", ".join(f"{name} {version}" for name, version in record["versions"].items()),
    )


def _conclusions(rows: dict[str, Any]) -> Iterator[str]:
    cut = [name for name in matrix.COLUMNS if name.startswith("TruncatedFile")]
    distorting = [
        name for name in matrix.COLUMNS if name.startswith(("CorruptedFile", "ShortRead"))
    ]
    failing = [name for name in matrix.COLUMNS if name not in (*cut, *distorting)]
    wrong = {matrix.WRONG, matrix.SHORTER, matrix.LONGER}
    bad = {
        "Wrong or missing data and no error when a read fails": _readers_with(rows, failing, wrong),
        "The same for a truncated file": _readers_with(rows, cut, wrong, raw=False),
        "`None` and no error": _readers_with(rows, matrix.COLUMNS, {matrix.NOTHING}),
        "The worker dies by SIGBUS": _readers_with(rows, matrix.COLUMNS, {"SIGBUS"}),
    }
    for conclusion, keys in bad.items():
        yield f"- **{conclusion}:** {', '.join(READERS[key].shown for key in keys) or 'none'}.\n"


def _readers_with(
    rows: dict[str, Any], columns: Iterable[str], outcomes: set[str], *, raw: bool | None = None
) -> list[str]:
    """The readers to which one of *outcomes* comes in one of *columns*."""
    return [
        key
        for key, row in rows.items()
        if raw in (None, READERS[key].is_raw)
        and any(row[name]["outcome"] in outcomes for name in columns if name in row)
    ]


def _table(rows: dict[str, Any]) -> Iterator[str]:
    headings = [HEADINGS.get(name, f"`{name}`") for name in matrix.COLUMNS]
    yield f"| reader | {' | '.join(headings)} |\n"
    yield f"| --- |{' --- |' * len(headings)}\n"
    for key, row in rows.items():
        words = [_word(row[name]["outcome"]) if name in row else "-" for name in matrix.COLUMNS]
        yield f"| {READERS[key].shown} | {' | '.join(words)} |\n"


def _word(outcome: str) -> str:
    return WORDS.get(outcome, f"**{outcome}**")


def _messages(rows: dict[str, Any]) -> Iterator[str]:
    for key, row in rows.items():
        faults: dict[str, list[str]] = {}
        for name, cell in row.items():
            if cell["outcome"] == matrix.HIDDEN:
                faults.setdefault(cell["message"], []).append(HEADINGS.get(name, name))
        for message, names in faults.items():
            yield f"| {READERS[key].shown} | {', '.join(names)} | {_code(message)} |\n"


def _code(message: str) -> str:
    """A message as code in a cell of a table."""
    short = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
    return f"`{short.replace('|', '¦').replace('`', chr(39))}`"


def main() -> None:
    """Run everything, and write the record and the page."""
    if sys.argv[1:] != ["--page"]:
        with tempfile.TemporaryDirectory() as folder:
            PAGE.keep(record(matrix.all_cells(Path(folder))))
    PAGE.write(page(PAGE.record()))


if __name__ == "__main__":
    main()
