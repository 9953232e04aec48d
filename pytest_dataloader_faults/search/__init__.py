"""Search: Hypothesis draws schedules of faults, or the steps of a loader, and shrinks them."""

from __future__ import annotations

from pytest_dataloader_faults.battery._survey import DataFiles, Survey, survey
from pytest_dataloader_faults.search._explore import (
    Exploration,
    assert_survives_or_fails_cleanly,
    explore,
    replay,
)
from pytest_dataloader_faults.search._lifecycle import (
    LifeExploration,
    explore_lifecycle,
    replay_life,
)

__all__ = (
    "DataFiles",
    "Exploration",
    "LifeExploration",
    "Survey",
    "assert_survives_or_fails_cleanly",
    "explore",
    "explore_lifecycle",
    "replay",
    "replay_life",
    "survey",
)
