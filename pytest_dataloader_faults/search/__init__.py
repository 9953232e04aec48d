"""Search: Hypothesis draws schedules of faults, and shrinks those under which a dataset fails."""

from __future__ import annotations

from pytest_dataloader_faults.battery.survey import DataFiles, Survey, survey
from pytest_dataloader_faults.search._assertion import assert_survives_or_fails_cleanly
from pytest_dataloader_faults.search._exploration import Exploration
from pytest_dataloader_faults.search._explore import explore
from pytest_dataloader_faults.search._replay import replay

__all__ = (
    "DataFiles",
    "Exploration",
    "Survey",
    "assert_survives_or_fails_cleanly",
    "explore",
    "replay",
    "survey",
)
