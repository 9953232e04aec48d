"""A batch that came, as the fingerprints of its samples [in the disposable process]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_dataloader_faults._trial.samples.comparer import SampleComparer, SampleFingerprint
from pytest_dataloader_faults._trial.samples.draws import Draw
from pytest_dataloader_faults._trial.samples.fingerprint import digest_of_rows
from pytest_dataloader_faults.outcomes import Delivery

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def delivery(
    batch: Any, draw: Draw | None, loader: DataLoader[Any], comparer: SampleComparer
) -> Delivery:
    """*batch* as fingerprints: of its samples, or of the whole where it cannot be split.

    *draw* is what the sampler asked for; None of a stream.
    """
    rows = None if comparer.comparison.whole else _rows(batch, draw, loader, comparer)
    indices = None if draw is None else draw.names
    if rows is None:
        return Delivery(indices, None, comparer.digest(batch, indices))
    return Delivery(
        indices,
        tuple(row.digest for row in rows),
        digest_of_rows(row.exact for row in rows),
        tuple(row.leaves for row in rows if row.leaves),
    )


def _rows(
    batch: Any, draw: Draw | None, loader: DataLoader[Any], comparer: SampleComparer
) -> tuple[SampleFingerprint, ...] | None:
    """The samples in *batch*, which may be fewer than were asked for."""
    indices = None if draw is None else draw.names
    if not loader._auto_collation or (draw and draw.whole):
        return (comparer.row(batch, *(indices or ())),)
    if batch is None or indices == () or _is_empty(batch):
        return ()
    if indices and (rows := comparer.rows(batch, len(indices), indices)):
        return rows
    most = (loader.batch_size or 1) if indices is None else len(indices) - 1
    return next((rows for size in range(most, 0, -1) if (rows := comparer.rows(batch, size))), None)


def _is_empty(batch: Any) -> bool:
    try:
        return isinstance(batch, (list, tuple, dict)) and not batch
    except Exception:  # noqa: BLE001  # whatever the user's class raises
        return False
