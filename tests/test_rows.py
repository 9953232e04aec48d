"""A test of many rows runs each of them, and says which failed."""

import inspect

import pytest

from support.rows import rows


def test_each_row_that_fails_is_named_and_the_others_run():
    ran = []

    @rows(("number", "sort"), [(1, ValueError), (2, ValueError), (3, KeyError), (4, ValueError)])
    def check(number, sort):
        ran.append(number)
        with pytest.raises(sort, match="invalid literal" if number < 4 else "even"):
            int("x" if number % 2 or number == 4 else "0")

    with pytest.raises(AssertionError) as caught:
        check()
    text = str(caught.value)
    assert ran == [1, 2, 3, 4]
    assert text.startswith("3 of 4 rows fail\nnumber=2, sort=<class 'ValueError'>:\n")
    assert "DID NOT RAISE" in text
    assert "number=3, sort=<class 'KeyError'>:\n" in text
    assert text.count(f"{__file__}:") == 3
    assert "number=1" not in text


def test_two_tables_are_multiplied():
    calls = []

    @rows("letter", "ab", ids=str)
    @rows("digit", [1, 2])
    def check(folder, letter, digit):
        calls.append(f"{folder}{letter}{digit}")
        assert digit == 1

    assert list(inspect.signature(check).parameters) == ["folder"]
    with pytest.raises(AssertionError, match=r"(?s)2 of 2 rows.*letter=a:.*digit=2.*letter=b:"):
        check(folder="/")
    assert calls == ["/a1", "/a2", "/b1", "/b2"]


def test_a_table_without_rows_is_refused():
    """The test would show nothing, and pass."""
    with pytest.raises(AssertionError, match="without rows"):
        rows("each", [])
