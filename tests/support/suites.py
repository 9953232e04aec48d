"""What an inner run of pytest wrote and printed: its results, its failures and its summary."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

REPORT = "--dataloader-faults-report=r.json"
"""The option of a run whose results are read here."""


def items_of(folder: Path) -> list[dict[str, Any]]:
    """The items of the report in *folder*, each with the name of its test."""
    items = json.loads((folder / "r.json").read_text("utf-8"))["items"]
    return [{**each, "name": each["test"].partition("::test_")[2]} for each in items]


def results_of(folder: Path) -> dict[str, dict[str, str]]:
    """The status and the verdict of each check, by test."""
    results: dict[str, dict[str, str]] = {}
    for item in items_of(folder):
        word = " ".join(filter(None, (item["status"], item["verdict"])))
        results.setdefault(item["name"], {})[item["check"]] = word
    return results


def failures_of(result: pytest.RunResult) -> dict[str, str]:
    """What is printed of each failure, by the name of its item without ``test_``."""
    text = re.split(
        r"(?m)^=+ (?:dataloader-faults|warnings summary|short test)", result.stdout.str()
    )
    parts = re.split(r"\n_+ (?:ERROR at \w+ of )?(?:\w+\.)?test_(\S+) _+\n", text[0])
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def summary_of(result: pytest.RunResult) -> str:
    """The summary of the plugin in one line."""
    summary = result.stdout.str().partition("= dataloader-faults =")[2].partition("= short test")[0]
    return " ".join(summary.split())
