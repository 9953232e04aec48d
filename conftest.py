"""What tests and evidence share: real data files, and a check that nothing is left behind."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from pytest_dataloader_faults._engine import explain_missing_engine
from pytest_dataloader_faults._engine.system.proc import descriptors
from support import golden as golden_files
from support.datasets import write_records
from support.waiting import allowed

pytest_plugins = ["pytester"]  # pytest accepts it from the conftest at the root only
_MANY = 300
_SLOW_PER_SAMPLE = 40

# As Hypothesis does it in CI: on each machine the same examples, however long they take there. To
# explain an example it would run a hundred more.
settings.register_profile(
    "suite",
    database=None,
    deadline=None,
    derandomize=True,
    phases=set(Phase) - {Phase.explain},
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


def pytest_addoption(parser):
    """Declare the options that write golden files, and that choose slow tests."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files")
    about = f"mark one in {_SLOW_PER_SAMPLE} slow tests, chosen by TEXT, as sampled"
    parser.addoption("--sample", metavar="TEXT", help=about)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by -m
def pytest_collection_modifyitems(config, items):
    """Mark the slow tests that are in the sample."""
    text = config.getoption("sample")
    if text is None:
        return
    for item in items:
        number = zlib.crc32(f"{text} {item.nodeid}".encode())
        if item.get_closest_marker("slow") and number % _SLOW_PER_SAMPLE == 0:
            item.add_marker("sampled")


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_timeout_set_timer(settings):
    """Let a test take longer than its timeout where the machine is busy."""
    has_timer = yield
    expire, began = signal.getsignal(signal.SIGALRM), time.monotonic()

    def expire_if_due(number, frame):
        remaining = began + allowed(settings.timeout) - time.monotonic()
        if remaining > 0:
            signal.setitimer(signal.ITIMER_REAL, remaining)
        else:
            expire(number, frame)

    if callable(expire):
        signal.signal(signal.SIGALRM, expire_if_due)
    return has_timer


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport():
    """Have no finalizer run while pytest parses the source of a test that failed.

    On Python 3.11 the garbage collector may run one within ast.parse(). If that formats a
    traceback, as the hook for unraisable exceptions does, it parses the line for its carets, and
    the outer ast.parse() raises SystemError: AST constructor recursion depth mismatch.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if was_enabled:
            gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _hangups_end_processes():
    """Started by nohup(1), this process has SIGHUP ignored, and its workers would inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def _workers_are_forked():
    """Tests take it for granted, with closures as datasets and modules that they change.

    It is the default up to Python 3.13 only. A loader that does not name a start method has the
    default: tests of other methods name theirs, and tests of the interpreter's own default set it,
    or start a new interpreter.
    """
    multiprocessing.set_start_method("fork", force=True)


@pytest.fixture(autouse=True)
def _limits_are_kept():
    """A test that leaves a limit of descriptors behind would have later ones fail for it."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limit


@pytest.fixture(autouse=True)
def _descriptors_are_given_back():
    """Many may wait for the garbage collector, which would be a leak if it were not to help."""
    yield
    if len(descriptors("self")) > _MANY:
        gc.collect()
        assert len(descriptors("self")) <= _MANY


@pytest.fixture(name="records")
def _records(tmp_path: Path) -> Path:
    """A folder of 16 files of 64 bytes, each with different content."""
    return write_records(tmp_path / "records")


@pytest.fixture
def golden(pytestconfig):
    """Compare the texts of a family of messages with its golden file: ``golden(family, texts)``."""
    is_update = pytestconfig.getoption("update_golden")
    return functools.partial(golden_files.compare, is_update=is_update)


@pytest.fixture
def engine() -> None:
    """Skip, with the reason, where faults cannot be made."""
    reason = explain_missing_engine()
    if reason is not None:
        pytest.skip(f"no engine can run here: {reason}")


@pytest.fixture(name="busy_core")
def _busy_core():
    """A core for which four processes compete."""
    core = min(os.sched_getaffinity(0))
    loop = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    command = [sys.executable, "-c", loop]
    # Linux divides a processor among sessions first, if sched_autogroup_enabled is 1 (sched(7)):
    # all processes of one session together would have the weight of one.
    busy = [subprocess.Popen(command, start_new_session=True) for _ in range(4)]
    yield core
    for process in busy:
        process.kill()
        process.wait()


_FLAGS = """
    --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync
""".split()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Let no test start OpenMP's threads here: a process that is forked later waits for them."""
    torch.set_num_threads(1)


@pytest.fixture(name="browser", scope="module")
def _browser():
    """Chromium of the machine, driven by Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=_FLAGS)
        yield browser
        browser.close()
