"""The indices that samplers draw, as numbers and as texts [in the worker, and in a trial]. Pure.

Some facts about indices. torch looks at none: what a sampler yields goes to a worker through a
pickle, and from there to the dataset. So an index may be a slice, a list of indices, a tensor or
an object of any class. It need not have a hash, and its ``==`` may give an array. An array of NumPy
or of torch has ``__index__`` whatever is in it, and raises TypeError unless that is one integer.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable
from typing import Any

_PLAIN = (type(None), type(...), float, complex, str, bytes, range)
_BRACKETS: dict[Any, str] = {tuple: "()", list: "[]", set: "{}", frozenset: "{}"}


def integer_of(index: Any) -> int | None:
    """The integer that *index* is, also as a scalar of NumPy or torch; None of anything else."""
    is_one = not index.ndim if is_array(index) else type(index) in (int, bool)
    return number_of(index) if is_one else None


def number_of(index: Any) -> int | None:
    """The integer that *index* has, though it may have more; None if it has none."""
    if not hasattr(type(index), "__index__"):
        return None
    try:
        return operator.index(index)
    except Exception:  # noqa: BLE001  # An array, or a class of the user's.
        return None


def plain_text(index: Any) -> str | None:
    """*index* as Python prints it, if it is made of plain values only, or else None."""
    kind = type(index)
    if (number := integer_of(index)) is not None:
        return str(number)
    if kind in _PLAIN:
        return repr(index)
    if kind is slice:
        return _joined("slice()", (index.start, index.stop, index.step))
    if kind is dict:
        return _joined("{}", index.items())
    if kind in _BRACKETS:
        return _joined(_BRACKETS[kind], index, is_ordered=kind in (tuple, list))
    return _joined(f"{kind.__name__}()", [index.tolist()]) if is_array(index) else None


def _joined(brackets: str, parts: Iterable[Any], *, is_ordered: bool = True) -> str | None:
    texts = [plain_text(each) for each in parts]
    found = [each for each in texts if each is not None]
    if len(found) < len(texts):
        return None
    inner = ", ".join(found if is_ordered else sorted(found))
    comma = "," if brackets == "()" and len(found) == 1 else ""
    return f"{brackets[:-1]}{inner}{comma}{brackets[-1]}"


def is_array(index: Any) -> bool:
    """Whether *index* is a tensor, an array or a scalar of NumPy's."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kinds = (numpy and (numpy.ndarray, numpy.generic), torch and torch.Tensor)
    return any(issubclass(type(index), each) for each in kinds if each)


def parts_of(drawn: Any) -> list[Any] | None:
    """The indices in *drawn*, if it is a list, a tuple, a range or an array; or else None."""
    has_parts = drawn.ndim > 0 if is_array(drawn) else issubclass(type(drawn), (list, tuple, range))
    return list(drawn) if has_parts else None
