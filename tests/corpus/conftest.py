"""Counts the specimens that fail their check and the twins that pass, and prints it at the end."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checking import run_check
from pytest_dataloader_faults.battery.checks import CHECKS
from support.accelerators import stand_in
from support.corpus import network
from support.datasets import write_records

_SPECIMENS = "test_specimens.py::test_specimen_fails_its_check["
_TWINS = "test_specimens.py::test_twin_passes_"


@pytest.fixture(name="ask_once", scope="module")
def _ask_once(tmp_path_factory) -> Callable[..., Any]:
    """A function that asks a dataset a check once in a module; all its checks share a battery."""
    batteries, results = {}, {}

    def battery(make, options, fill):
        folder = fill(tmp_path_factory.mktemp("shared") / "records")
        settings = {name: value for name, value in options.items() if name != "exclude"}
        return Battery(functools.partial(make, folder), Settings(**settings))

    def ask_once(make, check, *, fails=False, fill=write_records, **options):
        key = make, str(options), CHECKS[check].scenario.uses_accelerator
        if key not in batteries:
            batteries[key] = battery(make, options, fill)
        if (key, check) not in results:
            # A failure that is expected is not confirmed by a second trial.
            expected = "it has a bug" if fails else None
            results[key, check] = run_check(batteries[key], check, expected=expected)
        return results[key, check]

    return ask_once


@pytest.fixture(autouse=True)
def _accelerator(request, monkeypatch):
    """Where a case needs one: a stand-in, on every machine alike."""
    case = getattr(request.node, "callspec", None) and request.node.callspec.params.get("case")
    if getattr(case, "check", None) != "pin-memory":
        yield
        return
    with stand_in(monkeypatch):
        yield


@pytest.fixture(autouse=True)
def _server(request, tmp_path):
    """Where a case needs one: it has the records, which are the same for each case."""
    case = getattr(request.node, "callspec", None) and request.node.callspec.params.get("case")
    if case not in network.CASES:
        yield
        return
    (tmp_path / "served").mkdir()
    with network.served(write_records(tmp_path / "of_server"), tmp_path / "served"):
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for the specimens and one for the twins, of all that ran."""
    counts = {
        (part, outcome): sum(part in report.nodeid for report in _calls(terminalreporter, outcome))
        for part in (_SPECIMENS, _TWINS)
        for outcome in ("passed", "failed")
    }
    for part, word in ((_SPECIMENS, "specimens failed their check"), (_TWINS, "twins passed")):
        total = counts[part, "passed"] + counts[part, "failed"]
        if total:
            terminalreporter.write_line(f"corpus: {counts[part, 'passed']} of {total} {word}")


def _calls(reporter: pytest.TerminalReporter, outcome: str) -> list[pytest.TestReport]:
    reports = reporter.getreports(outcome)
    return [each for each in reports if getattr(each, "when", "call") == "call"]
