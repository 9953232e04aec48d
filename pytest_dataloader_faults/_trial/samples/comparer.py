"""How samples are told apart: by their bytes, their shapes, or as their author says [in the trial].

Where the author compares, the reference's samples are kept, and one that equals them gets their
fingerprint: so whoever judges sees fingerprints only, and needs no sample.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pytest_dataloader_faults._trial.samples.fingerprint import Leaf, digest_of, leaves, split
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.outcomes._records import Leaves
from pytest_dataloader_faults.outcomes._reference import Comparison

_MOST_SAMPLES, _MOST_LEAVES = 256, 16
"""What is told of the parts of samples: it is for people, and an outcome is to stay small."""


@dataclass(frozen=True)
class SampleFingerprint:
    """One sample of a batch: its fingerprint, and what it is made of, where that is still told."""

    digest: str
    leaves: Leaves = ()


@dataclass
class SampleComparer:
    """Gives samples their fingerprints, all of one trial or reference."""

    telling: Comparison = field(default_factory=Comparison)
    _told: int = 0

    def __post_init__(self) -> None:
        """Unpack the samples that are known."""
        self._known: dict[Any, tuple[str, Any]] = {}
        for index, pickled in self.telling.kept:
            sample = pickle.loads(base64.b64decode(pickled))  # noqa: S301  # our own
            self._known[index] = (self._plain(list(leaves(sample))), sample)

    def begin(self) -> None:
        """A pass begins: its first samples are told in full."""
        self._told = 0

    def digest(self, value: Any, index: Any = None) -> str:
        """Of *value*, which is to be the sample *index*; None if that is not known."""
        return self._like(value, self._plain(list(leaves(value))), index)

    def row(self, value: Any, index: Any = None) -> SampleFingerprint:
        """Of *value*, with its parts, unless many have been told already."""
        parts = list(leaves(value))
        self._told += 1
        told = parts[:_MOST_LEAVES] if self._told <= _MOST_SAMPLES else ()
        return SampleFingerprint(
            self._like(value, self._plain(parts), index),
            tuple((each.path, each.form, each.digest) for each in told),
        )

    def rows(
        self, batch: Any, count: int, indices: Iterable[Any] = ()
    ) -> tuple[SampleFingerprint, ...] | None:
        """Of each sample of *batch*, or None if it cannot be split into *count*."""
        parts = split(batch, count)
        if parts is None:
            return None
        known = [*indices, *(None for _ in range(count))]
        return tuple(self.row(*each) for each in zip(parts, known, strict=False))

    def keep(self, value: Any, index: Any) -> str | None:
        """*value*, packed for later, where the author compares; from now on it is known here."""
        if self.telling.compare is None or index in self._known:
            return None
        name = self._plain(list(leaves(value)))
        packed = pickle.dumps(value)
        self._known[index] = (name, pickle.loads(packed))  # noqa: S301  # our own
        _require_equality(self.telling.compare, value)
        return base64.b64encode(packed).decode()

    def _plain(self, parts: list[Leaf]) -> str:
        if self.telling.shapes:
            parts = [each._replace(digest="") for each in parts]
        return digest_of(parts)

    def _like(self, value: Any, name: str, index: Any) -> str:
        """The fingerprint of the known sample that *value* equals, or else *name*."""
        if self.telling.compare is None:
            return name
        near = [self._known[index]] if index in self._known else list(self._known.values())
        if any(name == known for known, _ in near):
            return name
        return next((known for known, sample in near if self._equal(sample, value)), name)

    def _equal(self, sample: Any, value: Any) -> bool:
        """What cannot be compared is not the same: a batch may be anything once a fault came."""
        assert self.telling.compare is not None
        try:
            return bool(self.telling.compare(sample, value))
        except Exception:  # noqa: BLE001  # it was tried on the reference, where it must work
            return False


def _require_equality(compare: Callable[[Any, Any], Any], value: Any) -> None:
    try:
        same = bool(compare(value, value))
    except Exception as error:
        message = f"the contract's compare failed on a sample and itself: {error!r}"
        raise UnusableDatasetError(message) from error
    if not same:
        message = "the contract's compare says that a sample differs from itself"
        raise UnusableDatasetError(message)
