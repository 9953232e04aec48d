"""Write the table of known bugs, and of what the battery says of each.

    python docs/corpus.py

writes docs/explanation/corpus.md from docs/corpus.in and tests/support/corpus. That the battery
says so is tested by tests/corpus; that the page is as this script writes it, too.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.corpus import BEHAVIOURS, CASES, ENTRIES, EXCUSED, FAMILIES  # noqa: E402

TEMPLATE = ROOT / "docs/corpus.in"
PAGE = ROOT / "docs/explanation/corpus.md"


def page() -> str:
    """The whole page."""
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    letters = dict.fromkeys(entry[0] for entry in ENTRIES)
    sections = [
        _section(letter, (family.__doc__ or "").partition(":")[0])
        for letter, family in zip(letters, FAMILIES, strict=True)
    ]
    return template.substitute(
        entries=len(ENTRIES),
        shown=len({case.entry for case in CASES}),
        cases=len(CASES),
        explained=len(BEHAVIOURS),
        excused=len(EXCUSED),
        sections="\n\n".join(sections),
    )


def _section(letter: str, title: str) -> str:
    rows = [
        f"| {entry} | {name} | {_account(entry)} |"
        for entry, name in ENTRIES.items()
        if entry[0] == letter
    ]
    return "\n".join(
        [f"## {letter}: {title}", "", "| | bug | here |", "| --- | --- | --- |", *rows]
    )


def _account(entry: str) -> str:
    if entry in BEHAVIOURS:
        return re.sub(r"\(([\w/]+\.py::\w+)\)", r"(`\1`)", BEHAVIOURS[entry])
    if entry in EXCUSED:
        return f"not shown: {EXCUSED[entry]}"
    found: dict[str, list[str]] = defaultdict(list)
    for case in CASES:
        if case.entry == entry:
            found[case.specimen.__name__].append(f"**{case.verdict}** by `{case.check}`")
    return "; ".join(f"`{name}`: {', '.join(how)}" for name, how in found.items())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
