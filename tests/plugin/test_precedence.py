"""Which value holds: ini key < command-line option < marker, the closest one."""

from __future__ import annotations

import importlib

import pytest

from pytest_dataloader_faults.plugin._injector import PytestFaultInjector
from pytest_dataloader_faults.plugin._options import Settings

SUITE = """
import pytest
from support.plugin_datasets import Numbers

pytestmark = pytest.mark.dataloader_faults(engine="kernel")


def show(name, dataloader_faults):
    outcome = dataloader_faults.run(Numbers, num_workers=1, batch_size=16)
    print(f"\\n{name}: deadline {outcome.deadline}, seed {outcome.seed}, {outcome.engine}")


def test_unmarked(dataloader_faults):
    show("unmarked", dataloader_faults)


@pytest.mark.dataloader_faults(deadline=43)
class TestMarked:
    def test_by_its_class(self, dataloader_faults):
        show("by its class", dataloader_faults)

    @pytest.mark.dataloader_faults(deadline=44)
    def test_by_itself(self, dataloader_faults):
        show("by itself", dataloader_faults)

    @pytest.mark.dataloader_faults(engine="auto")
    def test_by_both(self, dataloader_faults):
        show("by both", dataloader_faults)
"""

INI = "[pytest]\ndataloader_faults_deadline = 41\ndataloader_faults_seed = 6\n"
OPTIONS = ("--dataloader-faults-deadline=42", "--dataloader-faults-seed=7")

ENGINE = """
import pytest


@pytest.mark.dataloader_faults(engine="{engine}")
def test_marked(dataloader_faults):
    pass
"""


@pytest.mark.parametrize(
    ("ini", "options", "deadline", "seed"),
    [
        pytest.param("", (), 30.0, 0, id="default", marks=pytest.mark.slow),
        pytest.param(INI, (), 41.0, 6, id="ini"),
        pytest.param("", OPTIONS, 42.0, 7, id="option", marks=pytest.mark.slow),
        pytest.param(INI, OPTIONS, 42.0, 7, id="option-over-ini"),
    ],
)
def test_the_strongest_source_holds(suite, engine, ini, options, deadline, seed):
    """An option beats the ini key, a marker beats both, and of markers the closest one."""
    suite.pytester.makeini(ini or "[pytest]\n")
    result = suite.run(SUITE, "-s", *options)
    result.assert_outcomes(passed=4)
    shown = [line for line in result.outlines if ": deadline" in line]
    assert shown == [
        f"unmarked: deadline {deadline}, seed {seed}, kernel",
        f"by its class: deadline 43.0, seed {seed}, kernel",
        f"by itself: deadline 44.0, seed {seed}, kernel",
        f"by both: deadline 43.0, seed {seed}, kernel",
    ]


@pytest.mark.parametrize(
    ("engine_of_marker", "option", "expected"),
    [("auto", "kernel", {"passed": 1}), ("kernel", "auto", {"errors": 1})],
)
def test_the_markers_engine_beats_the_option(run_refused, engine_of_marker, option, expected):
    """Where the kernel refuses, the marker alone decides between the python engine and failure."""
    source = ENGINE.format(engine=engine_of_marker)
    result = run_refused(source, f"--dataloader-faults-engine={option}")
    result.assert_outcomes(**expected)


class _StopError(Exception):
    """Ends a call once its arguments are known."""


@pytest.mark.parametrize("given", [(), ("seed",)], ids=["default", "given"])
@pytest.mark.parametrize(
    ("method", "module"),
    [("run", "_trial"), ("sweep", "battery"), ("explore", "search")],
)
def test_settings_hold_for_each_method_of_the_fixture(monkeypatch, request, method, module, given):
    """A search is seeded only by a seed that the user gave."""
    arguments = {}

    def stop(_make_dataset, **options):
        arguments.update(options)
        raise _StopError

    home = importlib.import_module(f"pytest_dataloader_faults.{module}")
    monkeypatch.setattr(home, "run_trial" if method == "run" else method, stop)
    settings = Settings("python", 43.0, 7, "warn", 64, frozenset(given))
    with pytest.raises(_StopError):
        getattr(PytestFaultInjector(settings, request.node), method)(list)
    seed = None if method.startswith("explore") and not given else 7
    passed = (arguments["engine"], arguments["deadline"], arguments["seed"])
    assert passed == ("python", 43.0, seed)
