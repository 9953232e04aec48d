"""JSON documents that some other program may have written: mutations of a good one, by a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

_DEEP = 100_000
_ODD: list[Callable[[], Any]] = [
    lambda: None,
    lambda: True,
    lambda: 0,
    lambda: -1,
    lambda: 10**400,
    lambda: 1e308,
    lambda: float("nan"),
    lambda: float("-inf"),
    lambda: 2.5,
    lambda: "",
    lambda: "open-error",
    lambda: "worker 0",
    lambda: "worker " + "9" * 5000,
    lambda: "\x1b]0;owned\x07\udcff\0\u202e\n::error::x ##[group]",
    lambda: "long" * 5000,
    list,
    lambda: [[]],
    dict,
    lambda: {"a": {"b": []}},
    lambda: [{"id": []}],
]


def mutate(document: Any, seed: int) -> bytes:
    """The text of *document* with a few random changes."""
    choice = random.Random(seed)
    document = copy.deepcopy(document)
    for _ in range(choice.choice([1, 1, 1, 2, 4])):
        holders = list(_holders(document))
        if not holders:
            break
        _change(choice, document, *choice.choice(holders))
    text = json.dumps(document)
    if choice.random() < 0.1:
        text = _damage(choice, text)
    return text.encode("utf-8", errors="surrogatepass")


def _holders(node: Any) -> Any:
    """Each list or dict of the document with each key in it."""
    keys = range(len(node)) if isinstance(node, list) else list(node)
    for key in keys:
        yield node, key
        if isinstance(node[key], (list, dict)):
            yield from _holders(node[key])


def _change(choice: random.Random, document: Any, holder: Any, key: Any) -> None:
    change = choice.choice(["replace", "replace", "replace", "remove", "add", "copy"])
    if change == "replace":
        holder[key] = choice.choice(_ODD)()
    elif change == "remove":
        del holder[key]
    elif change == "add" and isinstance(holder, dict):
        holder[choice.choice(["", "odd", "\udc80", "version"])] = choice.choice(_ODD)()
    else:
        source, place = choice.choice(list(_holders(document)))
        holder[key] = copy.deepcopy(source[place])


def _damage(choice: random.Random, text: str) -> str:
    """*text* that is not JSON, or unreadable JSON."""
    place = choice.randrange(len(text))
    damages = [
        text[:place],
        text[:place] + choice.choice('{}[]",:0\udc80\0') + text[place:],
        "[" * _DEEP,
        '{"version":1,"items":' + "[" * _DEEP,
        "\ufeff" + text,
        text.replace("{", '{"id": 1, "id": 2, ', 1),
        "9" * 5000,
    ]
    return choice.choice(damages)
