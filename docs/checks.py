"""Write the page of the checks, docs/reference/checks.md.

    python docs/checks.py

The promise and the advice of a check come from the code, the bugs that it finds from
tests/support/corpus, and everything else from docs/reference/checks.in. There, the section of a
check starts with its faults.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [str(ROOT / "tests"), *(each for each in sys.path if each != str(ROOT / "docs"))]

from pytest_dataloader_faults.battery import checks  # noqa: E402  # after the path
from support.corpus import CASES, ENTRIES  # noqa: E402  # it is below tests/

CHECKS = checks.CHECKS
GROUPS = {
    "Whole epochs": (*checks.EPOCHS, *checks.MEMORY),
    "Files": checks.FILES,
    "Listings of folders": checks.LISTINGS,
    "Workers that die": checks.WORKERS,
    "Writes": (checks.writes.write_error,),
    "File locks": (checks.locks.file_locks,),
    "Threads and processes": (checks.threads.thread_exhaustion,),
    "Hanging reads and connections": checks.network.NETWORK,
    "Checkpoints": (checks.resume.resumes,),
    "Several ranks": checks.RANKS,
    "Pinned memory": (checks.pin_memory,),
}
PAGE = ROOT / "docs/reference/checks.md"
_SECTION = re.compile(r"^### ([\w-]+)\n\n(.*?)\n\n(?=##)", re.MULTILINE | re.DOTALL)


def page() -> str:
    """The whole page."""
    template = PAGE.with_suffix(".in").read_text(encoding="utf-8")
    text = _SECTION.sub(lambda match: _section(match[1], match[2]), template)
    return Template(text).substitute(overview="\n".join(_overview()).rstrip())


def _overview() -> Iterator[str]:
    """A table for each group of checks."""
    for title, group in GROUPS.items():
        yield f"**{title}**\n\n| check | promise |\n| --- | --- |"
        for check in group:
            star = "\\*" if check.name in checks.GROUPS["quick"] else ""
            yield f"| [`{check.name}`](#{check.name}){star} | {check.promise} |"
        yield ""


def _section(name: str, text: str) -> str:
    check = CHECKS[name]
    parts = [f"### {name}", f"Promise: {check.promise}.", text]
    if check.advice:
        parts.append(f"What to do, as the failure says: {_literal(check.advice)}.")
    bugs = {case.entry: ENTRIES[case.entry] for case in CASES if case.check == name}
    if bugs:
        names = ", ".join(f"{entry} `{title}`" for entry, title in bugs.items())
        parts.append(f"Finds these [published bugs](../evidence/corpus.md): {names}.")
    return "\n\n".join(parts) + "\n\n"


def _literal(text: str) -> str:
    return re.sub(r"([_*])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
