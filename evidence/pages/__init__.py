"""The pages of docs/evidence: each is made from the records of what was tried, and a template.

A page is generated and not edited. test_pages.py compares it with what its module makes.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from string import Template
from typing import Any

from paths import ROOT


class Page:
    """A page, its record ``docs/evidence/NAME.json``, and its template next to this file.

    Attributes:
        path: The page; ``docs/evidence/NAME.md``, unless *path* is another one.
    """

    def __init__(self, name: str, path: str = "") -> None:
        self.path = ROOT / (path or f"docs/evidence/{name}.md")
        self._record = ROOT / f"docs/evidence/{name}.json"
        self._template = Path(__file__).with_name(f"{name}.in")

    def record(self) -> Any:
        """What is kept of all runs so far."""
        return json.loads(self._record.read_text(encoding="utf-8"))

    def keep(self, record: Any) -> None:
        """Keep *record* in place of the one before."""
        text = json.dumps(record, indent=1, ensure_ascii=False)
        self._record.write_text(text + "\n", encoding="utf-8")

    def write(self, text: str) -> None:
        """Write the whole page, or, if *text* begins with ``## ``, that section of it."""
        if text.startswith("## "):
            old = self.section(text.partition("\n")[0])
            text = self.path.read_text(encoding="utf-8").replace(old, text)
        self.path.write_text(text, encoding="utf-8")

    def section(self, heading: str) -> str:
        """The section of the page below *heading*, up to the next one of its level."""
        text = self.path.read_text(encoding="utf-8")
        _, begin, after = text.partition(f"{heading}\n")
        rest, following, _ = after.partition("\n## ")
        return begin + rest + ("\n" if following else "")

    def text(self, **fields: Any) -> str:
        """The template, with *fields* in their places."""
        template = Template(self._template.read_text(encoding="utf-8"))
        return template.substitute(fields)


def commit() -> str:
    """The commit of the checkout, which a record names."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
