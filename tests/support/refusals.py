"""Entries of the package, and what they say when they refuse something."""

from collections.abc import Callable
from typing import Any

import pytest

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults.exceptions import DataLoaderFaultsError

Entry = Callable[..., Any]


def battery(make_dataset: Any, *_faults: Any, **options: Any) -> Any:
    """check_dataset, called as run_trial is."""
    return check_dataset(make_dataset, only="read-error", **options)


both_entries = pytest.mark.parametrize("entry", [run_trial, battery])


def refusal(error: type[Exception], entry: Entry, *arguments: Any, **options: Any) -> str:
    """What *entry* says when it raises *error*, which is one of the package's own."""
    with pytest.raises(error) as refused:
        entry(*arguments, **options)
    assert isinstance(refused.value, DataLoaderFaultsError)
    return str(refused.value)


def missing_parts(text: str, *parts: str) -> list[str]:
    """Those of *parts* that are not in *text*."""
    return [part for part in parts if part not in text]
