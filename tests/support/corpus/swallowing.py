"""Errors that are swallowed, retried, or replaced by a sample: bugs, and twins without them."""

from __future__ import annotations

from support.corpus.cases import Case

CASES: tuple[Case, ...] = ()
BEHAVIOURS: dict[str, str] = {}
EXCUSED: dict[str, str] = {}
