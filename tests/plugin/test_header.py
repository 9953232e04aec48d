"""The line in pytest's header, and a session on a machine that lacks something."""

from __future__ import annotations

import os

import pytest

from pytest_dataloader_faults import _engine
from pytest_dataloader_faults.battery.checks import CHECKS

SUITE = """
import pytest


def test_battery(fault_check):
    fault_check(None)


def test_injected(eio_reads):
    eio_reads("*.rec")


def test_plain():
    pass


test_battery = pytest.mark.dataloader_faults(only="read-error-first")(test_battery)
"""
BUSY = "under a seccomp listener already*EBUSY*"


def _lines(result) -> list[str]:
    return [line for line in result.outlines if line.startswith("dataloader-faults")]


def test_header_names_the_engine(light_suite, engine):
    """One line says which engine there is, and on which kernel."""
    expected = [f"dataloader-faults: kernel engine, Linux {os.uname().release}"]
    assert expected == _lines(light_suite.run("def test_plain(): pass"))


def test_installed_is_active(suite, engine, monkeypatch):
    """Nothing has to be switched on: pytest finds the plugin by itself, and loads it once."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    suite.pytester.makepyfile(test_inner="def test_plain(): pass")
    assert len(_lines(suite.pytester.runpytest_subprocess(timeout=100))) == 1


COUNTING = """
from pytest_dataloader_faults import _engine
from pytest_dataloader_faults.battery.checks import CHECKS


def pytest_unconfigure():
    print("probes:", _engine.start_probe.cache_info().currsize)
"""


@pytest.mark.parametrize(("options", "probes"), [((), 1), (("-q",), 0), (("--no-header",), 0)])
def test_the_machine_is_looked_at_for_the_header_only(fresh_suite, options, probes):
    """Without a header, a suite that uses none of the fixtures pays for no child process."""
    fresh_suite.pytester.makeconftest(COUNTING)
    result = fresh_suite.run("def test_plain(): pass", "-s", *options)
    result.stdout.fnmatch_lines([f"probes: {probes}"])


USING = """
import pytest
from torch.utils.data import DataLoader
from support.datasets import Records
from pytest_dataloader_faults import check_dataset, inject
from pytest_dataloader_faults.faults import OpenError


def loop(records):
    with pytest.raises(OSError):
        list(DataLoader(Records(records), num_workers=1))


def test_fixture(open_errors, records):
    open_errors("*.rec")
    loop(records)


def test_inject(records):
    with inject(OpenError("*.rec")):
        loop(records)


def test_python(records):
    with inject(OpenError("*.rec"), engine="python"):
        loop(records)


def test_run(dataloader_faults, records):
    dataloader_faults.run(lambda: Records(records), OpenError("*.rec"))


def test_explore(dataloader_faults, records):
    dataloader_faults.explore(lambda: Records(records), max_examples=1)


def test_battery(fault_check, records):
    fault_check(lambda: Records(records))


def test_plain():
    pass
"""
KERNEL = f"dataloader-faults: kernel engine, Linux {os.uname().release}"
PYTHON = "dataloader-faults: python engine (Python-level reads only): as asked for"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("chosen", "options", "lines"),
    [
        ("test_fixture", ["-q"], [KERNEL]),
        ("test_inject", ["-q"], [KERNEL]),
        ("test_run", ["-q"], [KERNEL]),
        ("test_explore", ["-q"], [KERNEL]),
        ("test_python", ["-q"], [PYTHON]),
        ("test_inject or test_python or test_run", ["-q"], [KERNEL, PYTHON]),
        ("test_inject", ["--no-header"], [KERNEL]),
        ("test_inject", [], [KERNEL]),
        ("test_inject", ["-qq"], []),
        ("test_battery and open-error", ["-q"], []),
        ("test_plain", ["-q"], []),
    ],
)
def test_each_run_with_faults_names_its_engine_once(suite, chosen, options, lines):
    """In its header; where there is none, at its end, or in the summary of checks."""
    result = suite.run(USING, "-k", chosen, *options)
    assert result.ret == 0
    assert _lines(result) == lines


def test_header_says_why_it_is_the_python_engine(run_refused):
    """Where the kernel refuses, the one line gives the reason, and pytest goes on."""
    result = run_refused(SUITE, "-k", "test_plain")
    result.assert_outcomes(passed=1, deselected=2)
    assert len(_lines(result)) == 1
    result.stdout.fnmatch_lines(
        [f"dataloader-faults: python engine (Python-level reads only): *{BUSY}"]
    )


def test_items_run_by_the_python_engine(run_refused):
    """The battery and the fixtures; a failure is repeated by that engine, wherever it is."""
    source = """
        from torch.utils.data import DataLoader
        from support.datasets import Records

        def test_battery(fault_check, records):
            result = fault_check(lambda: Records(records), loader={"num_workers": 1})
            assert "engine='python'" in result.outcome.reproduce()
            assert "--dataloader-faults-engine=python" in result.explanation

        def test_injected(eio_reads, records):
            armed = eio_reads("*/05.rec")
            try:
                list(DataLoader(Records(records), num_workers=1))
            except OSError:
                assert armed.fired == armed.surfaced == 1
        """
    options = "--dataloader-faults-deadline=60"
    result = run_refused(source, options, "-k", "read-error-first or test_injected")
    result.assert_outcomes(passed=2, deselected=len(CHECKS) - 1)


@pytest.mark.parametrize(
    "asked",
    ["--dataloader-faults-engine=kernel", "--override-ini=dataloader_faults_engine=kernel"],
)
def test_items_fail_where_the_engine_was_asked_for(run_refused, asked):
    """An engine asked for by name must be there: the items fail with the reason."""
    result = run_refused(SUITE, asked)
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines([f"engine='kernel' cannot run here: *{BUSY}"])


def test_the_reason_is_the_kernels(engine):
    """The same probe, in this process, which has no listener, finds nothing in its way."""
    assert _engine.unavailable() is None


def test_trials_are_refused_with_the_reason(run_refused):
    """Without pytest's fixtures it is an EngineUnavailableError, which says the same."""
    source = """
        import pytest
        from pytest_dataloader_faults import check_dataset, exceptions, faults, inject, run_trial

        REFUSED = pytest.raises(exceptions.EngineUnavailableError, match="seccomp listener already")

        @pytest.mark.parametrize("call", [check_dataset, run_trial])
        def test_trial(call):
            with REFUSED:
                call(list, engine="kernel")

        def test_inject():
            with REFUSED, inject(faults.ReadError(), engine="kernel"):
                pass
        """
    run_refused(source).assert_outcomes(passed=3)


ENVIRONMENT_SUITE = """
import os
import resource

import pytest
from support.datasets import Records


@pytest.fixture(autouse=True)
def few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "read-error-first"])
def test_x(fault_check, records):
    fault_check(lambda: Records(records))


def test_y(dataloader_faults, records):
    dataloader_faults.sweep(lambda: Records(records))
"""


@pytest.mark.usefixtures("engine")
def test_what_is_lacking_is_reported_once(suite, monkeypatch):
    """The first item says all, the others where that is; all fail, and none blames the dataset.

    The summary of the datasets counts those that could not be run.
    """
    for name in ("CI", "BUILD_NUMBER"):  # There, pytest's summary gives each text in full again.
        monkeypatch.delenv(name, raising=False)
    result = suite.run(ENVIRONMENT_SUITE)
    result.assert_outcomes(failed=4)
    text = result.stdout.str()
    failures, _, summary = text.partition("= dataloader-faults =")
    assert (failures.count("ulimit -n 4096"), summary.count("ulimit -n 4096")) == (1, 0)
    assert "3 checks could not be run (see the error above)" in summary
    assert failures.count("too few file descriptors: see test_inner.py::test_x[workers-agree]") == 3
    assert "Traceback" not in text
