"""The pages of docs/evidence: each is made from the record of what was tried, and a template.

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
    """The page *name*: ``docs/evidence/NAME.md``, its record beside it, its template beside us."""

    def __init__(self, name: str) -> None:
        self.path = ROOT / f"docs/evidence/{name}.md"
        self._record = self.path.with_suffix(".json")
        self._template = Path(__file__).with_name(f"{name}.in")

    def record(self) -> Any:
        """What is kept of all runs so far."""
        return json.loads(self._record.read_text(encoding="utf-8"))

    def keep(self, record: Any) -> None:
        """Keep *record* in place of the one before."""
        text = json.dumps(record, indent=1, ensure_ascii=False)
        self._record.write_text(text + "\n", encoding="utf-8")

    def text(self, **fields: Any) -> str:
        """The template, with *fields* in their places."""
        template = Template(self._template.read_text(encoding="utf-8"))
        return template.substitute(fields)


def commit() -> str:
    """The commit of the checkout, which a record names."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
