"""Values as code, for the lines that repeat a trial. Pure."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """*options* for JSON: what is no plain value becomes ``{"code": ...}``."""
    return {name: _plain(name, value) for name, value in options.items()}


def _plain(name: str, value: Any) -> Any:
    """What has neither a name nor a literal goes by the *name* of its option."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    own = getattr(value, "__name__", "")
    if own.isidentifier():
        return {"code": own}
    return {"code": repr(value) if _is_literal(repr(value)) else name}


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def code(value: Any) -> str:
    """*value* of ``plain`` as Python: functions by their name, mappings as literals of these."""
    if not isinstance(value, dict):
        return repr(value)
    if set(value) == {"code"}:
        return str(value["code"])
    return f"{{{', '.join(f'{key!r}: {code(item)}' for key, item in value.items())}}}"


def code_of(name: str, arguments: Mapping[str, Any]) -> str:
    """A call of *name* as Python."""
    given = plain(arguments)
    return f"{name}({', '.join(f'{key}={code(given[key])}' for key in given)})"
