"""The corpus of known bugs: a module per family, each with specimens and their healthy twins.

``CASES`` fail a check of the battery. ``BEHAVIOURS`` are torch's own, or not a dataset's.
``EXCUSED`` says why the rest cannot be shown here.
"""

from importlib import import_module

from support.corpus import at_rest, others
from support.corpus.entries import BEHAVIOURS as BEHAVIOURS
from support.corpus.entries import ENTRIES as ENTRIES
from support.corpus.entries import EXCUSED as EXCUSED

_NAMES = """
    handles pickling transport descriptors memory deaths swallowing streams state caches hangs
    pinning truncation network ranks shared_folders resume locks threads listings
"""
FAMILIES = tuple(import_module(f"support.corpus.{name}") for name in _NAMES.split())
CASES = tuple(case for family in FAMILIES for case in family.CASES)
SPECIMENS = (*CASES, *at_rest.CASES, *others.CASES)
"""With those that nobody has published."""
FIRST = {(case.check, case.verdict): case for case in reversed(SPECIMENS)}
"""The first case of each check and verdict."""
OF_CHECK = {
    case.check: case for case in sorted(FIRST.values(), key=lambda case: case.verdict != "hung")
}
"""A case of each check, if possible without a hang."""
