"""Write the page of the checks, docs/reference/checks.md.

    python docs/checks.py

The promise and the advice of a check are those of the code, the bugs that it finds those of
tests/support/corpus, and all else is in docs/reference/checks.in. There, the section of a check
begins with its faults.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [str(ROOT / "tests"), *(each for each in sys.path if each != str(ROOT / "docs"))]

from pytest_dataloader_faults.battery.checks import CHECKS  # noqa: E402  # after the path
from support.corpus import CASES, ENTRIES  # noqa: E402  # it is below tests/

PAGE = ROOT / "docs/reference/checks.md"
_SECTION = re.compile(r"^### ([\w-]+)\n\n(.*?)\n\n(?=##)", re.MULTILINE | re.DOTALL)


def page() -> str:
    """The whole page."""
    template = PAGE.with_suffix(".in").read_text(encoding="utf-8")
    text = _SECTION.sub(lambda found: _section(found[1], found[2]), template)
    return Template(text).substitute(overview="\n".join(_overview()))


def _overview() -> Iterator[str]:
    yield "| check | promise |\n| --- | --- |"
    for check in CHECKS.values():
        yield f"| [`{check.name}`](#{check.name}) | {check.promise} |"


def _section(name: str, text: str) -> str:
    check = CHECKS[name]
    parts = [f"### {name}", f"Promise: {check.promise}.", text]
    if check.advice:
        parts.append(f"What a failure says besides: {_literal(check.advice)}.")
    bugs = {case.entry: ENTRIES[case.entry] for case in CASES if case.check == name}
    if bugs:
        names = ", ".join(f"{entry} `{title}`" for entry, title in bugs.items())
        parts.append(f"Bugs of the [corpus](../evidence/corpus.md) that it finds: {names}.")
    return "\n\n".join(parts) + "\n\n"


def _literal(text: str) -> str:
    return re.sub(r"([_*])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
