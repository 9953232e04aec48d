"""Is this the sample we know? By its bytes, its shapes, or the contract's key [in the trial].

The judge compares fingerprints only, and does not need the samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_dataloader_faults._trial.samples.draws import Draw
from pytest_dataloader_faults._trial.samples.fingerprint import (
    digest_of,
    digest_of_rows,
    rows_of,
    split,
    take_apart,
    without_batch,
)
from pytest_dataloader_faults.outcomes import Batch, Sample
from pytest_dataloader_faults.outcomes.agreement import EXACT, ZEROS, Comparison, Part
from pytest_dataloader_faults.outcomes.contract import Contract

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_MOST_SAMPLES, _MOST_PARTS = 256, 16
"""How many parts of samples are reported. People read them, and an outcome must stay small."""


class Fingerprint(NamedTuple):
    """A sample, and what its record leaves out.

    Attributes:
        sample: The record of the sample.
        exact: The digest of the whole sample, whatever is compared of it.
        parts: All parts of the sample.
    """

    sample: Sample
    exact: str
    parts: tuple[Part, ...]


@dataclass
class SampleComparer:
    """Makes the fingerprints of all samples of one trial or reference."""

    comparison: Comparison = EXACT
    contract: Contract = field(default_factory=Contract)
    _reported: int = 0

    def begin(self) -> None:
        """Begin a pass: the parts of its first samples are reported."""
        self._reported = 0

    def row(self, value: Any, *, is_slice: bool = False) -> Fingerprint:
        """The fingerprint of *value*, with its parts unless many have been reported already.

        *is_slice*: it is a batch of one sample. Messages then name the sample instead of a batch.
        """
        parts = tuple(take_apart(self._key_of(value)))
        self._reported += 1
        reported = parts[:_MOST_PARTS] if self._reported <= _MOST_SAMPLES else ()
        if is_slice and self.contract.key is None:
            reported = tuple(map(without_batch, reported))
        return Fingerprint(self.record(parts, reported), digest_of(parts), parts)

    def rows(self, batch: Any, count: int) -> tuple[Fingerprint, ...] | None:
        """The fingerprint of each sample of *batch*; None if it is not of *count* samples."""
        samples = self.split(batch, count)
        if samples is None:
            return None
        return tuple(self.row(sample, is_slice=self.slices) for sample in samples)

    @property
    def slices(self) -> bool:
        """Whether ``split`` slices batches itself, without a function of the contract."""
        return self.contract.split is None

    def split(self, batch: Any, count: int) -> list[Any] | None:
        """The samples of *batch*; None if it is not of *count* samples."""
        contract_split = self.contract.split
        try:
            samples = split(batch, count) if contract_split is None else list(contract_split(batch))
        except Exception:  # noqa: BLE001  # the user's classes; the reference has tried it
            return None
        return samples if samples and len(samples) == count else None

    def parts(self, batch: Any) -> tuple[str, ...]:
        """The digests of the rows of *batch*, which a stream has made; none if it lacks rows."""
        if self.comparison.by_form or self.contract.key is not None:
            return ()
        try:
            return tuple(digest_of(take_apart(row)) for row in rows_of(batch))
        except Exception:  # noqa: BLE001  # the user's classes: it is not a batch
            return ()

    def _key_of(self, value: Any) -> Any:
        """What is compared of *value*: all of it if the key fails, as it may under a fault."""
        if self.contract.key is None:
            return value
        try:
            return self.contract.key(value)
        except Exception:  # noqa: BLE001  # it was tried on the reference, where it must work
            return value

    def record(self, parts: Iterable[Part], shown: tuple[Part, ...] = ()) -> Sample:
        """The record of a sample that has these *parts*, some of which are *shown*."""
        compared = self.comparison.reduce(parts)
        # A batch cannot have the content of another sample.
        large = [each for each in compared if each.is_large and not self.comparison.in_batches]
        zeros = f"{ZEROS} " if all(each.digest == ZEROS for each in large) else ""
        content = zeros + digest_of(large) if large else ""
        return Sample(digest_of(compared), content, shown)


def record_batch(
    batch: Any,
    draw: Draw | None,
    loader: DataLoader[Any],
    comparer: SampleComparer,
    max_samples: int | None = None,
) -> Batch:
    """The record of *batch*: its samples, or the whole if it is compared so, or cannot be split.

    *draw* is what the sampler requested; None for a stream. *max_samples*: how many samples it has
    at most, if that is not the batch size of *loader*.
    """
    size = max_samples or loader.batch_size or 1
    is_whole = comparer.comparison.in_batches
    rows = None if is_whole else _rows(batch, draw, loader, comparer, size)
    keys = None if draw is None else draw.names
    if rows is None:
        whole = comparer.row(batch)
        return Batch(keys, (whole.sample,), whole.exact, is_whole=True)
    return Batch(
        keys,
        tuple(row.sample for row in rows),
        digest_of_rows(row.exact for row in rows),
        rows=() if draw or loader._auto_collation else comparer.parts(batch),
    )


def _rows(
    batch: Any, draw: Draw | None, loader: DataLoader[Any], comparer: SampleComparer, size: int
) -> tuple[Fingerprint, ...] | None:
    """The samples in *batch*, which may be fewer than were requested, or than its *size*."""
    indices = None if draw is None else draw.names
    if not loader._auto_collation or (draw and draw.is_whole):
        return (comparer.row(batch),)
    if batch is None or indices == () or _is_empty(batch):
        return ()
    if indices and (rows := comparer.rows(batch, len(indices))):
        return rows
    largest = size if indices is None else len(indices) - 1
    return next(
        (rows for size in range(largest, 0, -1) if (rows := comparer.rows(batch, size))), None
    )


def _is_empty(batch: Any) -> bool:
    try:
        return isinstance(batch, (list, tuple, dict)) and not batch
    except Exception:  # noqa: BLE001  # whatever the user's class raises
        return False
