"""Numbers in messages: "1 sample", not "1 samples"."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest_dataloader_faults
from pytest_dataloader_faults.outcomes.text import format_size, is_or_are, pluralize, was_or_were
from support.rows import rows

NOUNS = """
    arguments batches bytes checks datasets descriptors epochs examples fetches files items loaders
    operations processes reads reports samples steps threads times trials workers
""".split()
MANY = re.compile(rf" (?:\w+ )?(?:{'|'.join(NOUNS)})\b")
SOURCES = sorted(Path(pytest_dataloader_faults.__file__).parent.rglob("*.py"))
NO_NUMBERS = {"what", "name", "matched", "contract", "silent or _line(frames)"}
"""Texts that stand before such a noun."""
ALWAYS_MANY = {"len(self._files)"}
"""A supervisor that has so many files open that it takes no more. It imports little."""


@rows(
    ("number", "noun", "text"),
    [
        (0, "file", "0 files"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (2, "epoch", "2 epochs"),
        (1, "more process", "1 more process"),
        (2, "more process", "2 more processes"),
    ],
)
def test_a_number_and_its_noun(number, noun, text):
    assert pluralize(number, noun) == text


@rows(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (36.4, "36 bytes"),
        (1023, "1023 bytes"),
        (1023.9, "1.0 KiB"),
        (1946, "1.9 KiB"),
        (10 * 1024, "10 KiB"),
        (16 << 20, "16 MiB"),
        (1.8 * 2**30, "1.8 GiB"),
        (2.0**52, "4096 TiB"),
    ],
)
def test_a_size_and_its_unit(size, text):
    assert format_size(size) == text


def test_a_number_and_its_verb():
    assert [is_or_are(1), is_or_are(2), was_or_were(1), was_or_were(0)] == [
        "is",
        "are",
        "was",
        "were",
    ]


def _before_nouns(source: Path) -> Iterator[str]:
    """The code of each value in a string of *source* that precedes a plural noun."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        values = node.values if isinstance(node, ast.JoinedStr) else []
        for value, text in itertools.pairwise(values):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            code = ast.unparse(value.value)
            if MANY.match(text.value) and not code.isupper() and "__name__" not in code:
                yield f"{source.name}: {code}"


def test_no_plural_noun_follows_a_bare_number():
    """Each number of things is written with ``pluralize``; constants may be known to be plural."""
    numbers = {each for source in SOURCES for each in _before_nouns(source)}
    allowed = NO_NUMBERS | ALWAYS_MANY
    assert {each for each in numbers if each.partition(": ")[2] not in allowed} == set()
