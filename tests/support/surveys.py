"""Surveys: the fault-free run of a search, by the keywords of ``explore``."""

from typing import Any

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.search._search import Survey


def survey(make_dataset: Any, *, before_init: bool = False, **settings: Any) -> Survey:
    """Run the dataset once without a fault, and list the files that it reads."""
    return Survey(make_dataset, Settings.of(settings), before_init=before_init)
