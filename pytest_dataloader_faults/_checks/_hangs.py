"""Checks in which nothing fails, and nothing comes either. Pure."""

from __future__ import annotations

from pytest_dataloader_faults._checks._base import Check, Plan, Recon, path_of
from pytest_dataloader_faults.faults import HungRead

_PATIENCE = 1.0
"""Seconds. A dataset that has a time limit of its own meets it where that is shorter."""


def _hung(recon: Recon) -> Plan:
    if not (recon.read and recon.readers):
        return recon.nothing("read")
    return (HungRead(path_of(recon.read)),)


HANGS = (
    Check(
        "hung-read",
        "storage that does not answer is an error in time",
        _hung,
        trial={"patience": _PATIENCE},
    ),
)
