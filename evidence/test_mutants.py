"""Mutations change what the code does, and a report says which of them a test has noticed."""

from __future__ import annotations

import ast

import pytest

from mutants import mutations
from mutants.__main__ import PARTS, sample, summary
from paths import ROOT
from size import PACKAGE


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("a == b", {"(a != b)"}),
        ("a < b <= c", set()),
        ("a in b and not c", {"(a in b or not c)", "(a not in b)", "(c)"}),
        ("x = True", {"(False)"}),
        ("x: Literal[3] = 3", {"(4)"}),
        ("x = f'{a == b}'", set()),
        ("call()", {"pass"}),
        ("self.x = y", {"pass"}),
        ("x = y", set()),
        ("'text'", set()),
        ("def f():\n    return x\n", {"return None"}),
        ("def f():\n    return None\n", set()),
        ("while True:\n    break\n", {"(False)", "pass"}),
        ("raise E('ä' is b)", {"pass", "('ä' is not b)"}),
    ],
)
def test_mutations_of_a_line(code, expected):
    found = list(mutations(code))
    assert {each.after for each in found} == expected
    assert all(ast.parse(each.apply(code)) for each in found)


def test_a_mutation_keeps_the_lines():
    code = "x = (\n    a\n    == b\n)\ny = 'é', 3\n"
    first, second = (each.apply(code) for each in mutations(code))
    assert first == "x = (\n    (a != b\n)\n)\ny = 'é', 3\n"
    assert second == "x = (\n    a\n    == b\n)\ny = 'é', (4)\n"


def test_a_sample_has_as_many_mutants_of_each_part():
    mutants = list(sample(1, 8))
    assert [each.part for each in mutants] == [part for part in PARTS for _ in range(2)]
    assert mutants == list(sample(1, 8))
    assert mutants != list(sample(2, 8))
    assert len({each.name for each in mutants}) == 8
    for each in mutants:
        code = (ROOT / PACKAGE / each.path).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(each.mutation.apply(code))) != ast.dump(ast.parse(code))


def test_every_part_has_modules_and_tests():
    for part in PARTS.values():
        assert all((ROOT / PACKAGE / each).exists() for each in part.modules)
        assert all((ROOT / each).exists() for group in part.tests for each in group.split())


def test_summary():
    results = [
        {"mutant": "_engine/plan.py:3 (9): 1 -> (2)", "killer": "tests/engine/test_a.py::test_b"},
        {"mutant": "_engine/plan.py:4 (9): 1 -> (2)", "killer": "tests/engine: timeout"},
        {"mutant": "outcomes/a.py:4 (9): 1 -> (2)", "killer": ""},
    ]
    assert list(summary(results)) == [
        "_engine: 2 of 2 killed (tests/engine 1, tests/engine: timeout 1)",
        "outcomes: 0 of 1 killed ()",
        "in all: 2 of 3 killed (tests/engine 1, tests/engine: timeout 1)",
        "survivors:",
        "  outcomes/a.py:4 (9): 1 -> (2)",
    ]
