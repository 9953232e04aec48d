"""Say where plain data is not as schema.json has it. Pure.

It knows the few words of JSON Schema that stand there. A property that the schema does not know is
no problem: a later version of this plugin may have written it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_LONGEST = 60
_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "array": ("a list", (list,)),
    "integer": ("an integer", (int,)),
    "number": ("a number", (int, float)),
    "object": ("an object", (dict,)),
    "string": ("a string", (str,)),
}


def problems(data: Any, root: Mapping[str, Any]) -> Iterator[str]:
    """Each place in *data* that the schema *root* does not allow."""
    return _problems(data, root, root, "")


def _problems(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str
) -> Iterator[str]:
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if wanted := _wanted(value, schema):
        shown = json.dumps(value)
        shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
        yield f"{place or 'it'} is {shown}, and must be {wanted}"
    elif isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{place or 'it'} has no {name!r}"
        of_others = schema.get("additionalProperties") or {}
        for name, each in value.items():
            of_name = schema.get("properties", {}).get(name, of_others)
            yield from _problems(each, of_name, root, f"{place}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _problems(each, schema.get("items", {}), root, f"{place}[{number}]")


def _wanted(value: Any, schema: Mapping[str, Any]) -> str:
    """What *schema* itself wants instead of *value*; "" if it is right."""
    words, types = _TYPES.get(schema.get("type", ""), ("", (object,)))
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else [value])
    if not isinstance(value, types) or (isinstance(value, bool) and int in types):
        return words
    if value not in allowed:
        return "one of " * (len(allowed) > 1) + ", ".join(map(json.dumps, allowed))
    if "minimum" in schema and value < schema["minimum"]:
        return f"at least {schema['minimum']}"
    if "pattern" in schema and not re.search(schema["pattern"], str(value)):
        return f"like {schema['pattern']}"
    return ""
