"""The battery: is this dataset robust? Each check runs a DataLoader under one fault and judges it.

``check_dataset`` runs every check, or those you name. ``sweep`` fails one operation after another.
"""

from __future__ import annotations

from pytest_dataloader_faults.battery._sweep import sweep
from pytest_dataloader_faults.battery.checking import check_dataset

__all__ = ("check_dataset", "sweep")
