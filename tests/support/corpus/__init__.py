"""The corpus of known bugs: a module per family, each with specimens and their healthy twins.

``CASES`` fail a check of the battery. ``BEHAVIOURS`` are torch's own, or not a dataset's: for each
a sentence, and in brackets the test (``file.py::test``, below ``tests``) that shows how the harness
takes it. ``EXCUSED`` says why the rest cannot be shown here.
"""

from __future__ import annotations

from support.corpus import (
    caches,
    deaths,
    descriptors,
    handles,
    hangs,
    memory,
    network,
    pickling,
    pinning,
    ranks,
    resume,
    state,
    streams,
    swallowing,
    transport,
    truncation,
)
from support.corpus.entries import ENTRIES as ENTRIES

FAMILIES = (
    handles,
    pickling,
    transport,
    descriptors,
    memory,
    deaths,
    swallowing,
    streams,
    state,
    caches,
    hangs,
    pinning,
    truncation,
    network,
    ranks,
    resume,
)
CASES = tuple(case for family in FAMILIES for case in family.CASES)
BEHAVIOURS = {entry: why for family in FAMILIES for entry, why in family.BEHAVIOURS.items()}
EXCUSED = {entry: why for family in FAMILIES for entry, why in family.EXCUSED.items()}
