"""Many rows in one test: for a table whose rows take no time, where an item each would cost more.

``@rows`` stands where ``@pytest.mark.parametrize`` would, with the same arguments. The test runs
for all rows, also behind one that fails, and then names each that failed. All rows share the
fixtures of the test, and none may skip.
"""

import functools
import inspect
import reprlib
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

_SHORT = reprlib.Repr()  # It also names what lacks a repr().
_SHORT.maxstring = _SHORT.maxother = 200
_PARAM = type(pytest.param())
_FAILS = (Exception, pytest.fail.Exception)


def slow(*values: Any, **options: Any) -> Any:
    """A set of values of ``parametrize`` that only slow runs have."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)


def rows(
    names: str | Sequence[str],
    values: Iterable[Any],
    *,
    ids: Callable[[Any], object] | Iterable[object] = _SHORT.repr,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that calls a test once for each of *values*, each of which gives *names*."""
    arguments = [each.strip() for each in names.split(",")] if isinstance(names, str) else names
    sets = [_param(each if len(arguments) > 1 else (each,)) for each in values]
    table = [dict(zip(arguments, each.values, strict=True)) for each in sets]
    row_names = list(map(str, ids)) if not callable(ids) else [_name(row, ids) for row in table]
    row_names = [str(each.id or name) for each, name in zip(sets, row_names, strict=True)]
    assert not any(each.marks for each in sets), "a row has no marks"
    assert table, "a test without rows shows nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_rows(**fixtures: Any) -> None:
            failed = []
            for name, row in zip(row_names, table, strict=True):
                try:
                    test(**fixtures, **row)
                except _FAILS as error:
                    failed.append(f"{name}:\n{_short(error)}")
            assert not failed, f"{len(failed)} of {len(table)} rows fail\n" + "\n".join(failed)

        parameters = inspect.signature(test).parameters.values()
        all_rows.__signature__ = inspect.Signature(
            [p for p in parameters if p.name not in arguments]
        )
        return all_rows

    return decorate


def _param(values: Any) -> Any:
    """Of a tuple, or of a tuple of one that is a ``pytest.param`` already."""
    param = values[0] if len(values) == 1 else values
    return param if isinstance(param, _PARAM) else pytest.param(*values)


def _name(row: dict[str, Any], of: Callable[[Any], object]) -> str:
    return ", ".join(f"{name}={of(value)}" for name, value in row.items())


def _short(error: BaseException) -> str:
    """Its message, and the line of the test that raised it."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    lines = [f"{frame.filename}:{frame.lineno}: {frame.line}" for frame in frames[:1]]
    message = "".join(traceback.format_exception_only(type(error), error)).rstrip()
    return "\n".join(f"    {line}" for line in [*lines, *message.splitlines()])
