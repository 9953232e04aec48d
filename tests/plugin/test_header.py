"""The line in pytest's header, and a session on a machine that lacks something."""

from __future__ import annotations

import os

import pytest

from pytest_dataloader_faults import _engine

BUSY = "already has a seccomp listener*EBUSY*"


def _lines(result) -> list[str]:
    return [line for line in result.outlines if line.startswith("dataloader-faults")]


def test_header_names_the_engine(light_suite, engine):
    expected = [f"dataloader-faults: kernel engine, Linux {os.uname().release}"]
    assert expected == _lines(light_suite.run("def test_plain(): pass"))


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


def test_run(fault_injector, records):
    fault_injector.run(lambda: Records(records), OpenError("*.rec"))


def test_explore(fault_injector, records):
    fault_injector.explore(lambda: Records(records), max_examples=1)


def test_battery(fault_check, records):
    fault_check(lambda: Records(records))


def test_plain():
    pass
"""
KERNEL = f"dataloader-faults: kernel engine, Linux {os.uname().release}"
PYTHON = "dataloader-faults: python engine (Python-level reads only): as requested"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("chosen", "options", "lines"),
    [
        ("test_fixture", ["-q"], [KERNEL]),
        ("test_explore", ["-q"], [KERNEL]),
        ("test_python or test_run", ["-q"], [PYTHON, KERNEL]),
        ("test_inject", ["--no-header"], [KERNEL]),
        ("test_inject", [], [KERNEL]),
        ("test_inject", ["-qq"], []),
        ("test_battery and open-error", ["-q"], []),
        ("test_plain", ["-q"], []),
    ],
)
def test_each_run_with_faults_names_its_engine_once(suite, chosen, options, lines):
    result = suite.run(USING, "-k", chosen, *options)
    assert result.ret == 0
    assert _lines(result) == lines


REFUSED = """
import pytest
from torch.utils.data import DataLoader
from support.datasets import Records
from pytest_dataloader_faults import check_dataset, exceptions, faults, inject, run_trial


@pytest.mark.dataloader_faults(only="read-error", deadline=60)
def test_battery(fault_check, records):
    result = fault_check(lambda: Records(records), loader={"num_workers": 1})
    assert "engine='python'" in result.outcome.reproduce()
    assert "--dataloader-faults-engine=python" in result.explanation


def test_injected(read_errors, records):
    armed = read_errors("*/05.rec")
    with pytest.raises(OSError):
        list(DataLoader(Records(records), num_workers=1))
    assert armed.fired == armed.mentioned == 1


@pytest.mark.dataloader_faults(engine="kernel")
def test_marked(fault_injector):
    pass


@pytest.mark.parametrize("call", [check_dataset, run_trial, inject])
def test_functions(call):
    given = faults.ReadError() if call is inject else list
    with pytest.raises(exceptions.EngineUnavailableError, match="already has a seccomp listener"):
        with call(given, engine="kernel"):
            pass
"""
ASKED = """
import pytest


@pytest.mark.dataloader_faults(only="read-error")
def test_battery(fault_check):
    fault_check(None)


def test_injected(read_errors):
    read_errors("*.rec")


@pytest.mark.dataloader_faults(engine="auto")
def test_marked(fault_injector):
    pass


def test_plain():
    pass
"""


def test_items_run_by_the_python_engine(run_refused):
    """The battery and the fixtures do, and the header says why, in one line.

    What names the kernel engine, in a marker or a call, fails with the reason.
    """
    result = run_refused(REFUSED)
    result.assert_outcomes(passed=5, errors=1)
    assert len(_lines(result)) == 1
    python = f"dataloader-faults: python engine (Python-level reads only): *{BUSY}"
    result.stdout.fnmatch_lines([python, f"engine='kernel' cannot run here: *{BUSY}"])


def test_items_fail_where_the_engine_was_requested(run_refused):
    """An engine asked for by name must be there; a marker beats the option."""
    result = run_refused(ASKED, "--dataloader-faults-engine=kernel")
    result.assert_outcomes(passed=2, errors=2)
    header = f"dataloader-faults: no kernel engine available, so tests that need it fail: *{BUSY}"
    result.stdout.fnmatch_lines([header, f"engine='kernel' cannot run here: *{BUSY}"])


def test_the_reason_is_the_kernels(engine):
    assert _engine.explain_missing_kernel_engine() is None


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


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "read-error"])
def test_x(fault_check, records):
    fault_check(lambda: Records(records))


def test_y(fault_injector, records):
    fault_injector.sweep(lambda: Records(records))
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
