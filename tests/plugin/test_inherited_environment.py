"""What pytest's process inherits from its parent breaks no run: signals, limits and streams."""

import os
import subprocess
import sys

import pytest

from pytest_dataloader_faults import _engine
from support.surroundings import traceback_under, with_processes

PLAIN = """
def test_passes():
    pass

def test_fails():
    assert False
"""
START = "import os, resource, signal, sys\n{}\nos.execv(sys.executable, sys.argv[1:])"
"""A program that changes its own process, and becomes pytest. Both survive execve(2)."""
_EVERY = "(n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP))"
INHERITED = {
    "signals ignored": f"[signal.signal(n, signal.SIG_IGN) for n in {_EVERY}]",
    "no descriptor to spare": "resource.setrlimit(resource.RLIMIT_NOFILE, (14, 14))",
    "signals blocked, small files, little stack, no input": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))\n"
        "os.close(0)"
    ),
}


def _run(suite, inherited: str, *arguments: str) -> tuple[int, str]:
    """The exit status of pytest in *suite*, and what it printed."""
    command = [sys.executable, "-c", START.format(inherited)]
    command += [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environment = os.environ.copy()
    environment.pop("PYTEST_XDIST_WORKER", None)  # That of the outer run.
    process = subprocess.run(
        command, cwd=suite.path, env=environment, capture_output=True, text=True, check=False
    )
    return process.returncode, process.stdout


@pytest.mark.parametrize("inherited", INHERITED.values(), ids=INHERITED)
def test_a_suite_without_the_plugin_has_the_same_result(fresh_suite, inherited):
    fresh_suite.pytester.makepyfile(test_inner=PLAIN)
    status, printed = _run(fresh_suite, inherited, "-p", "dataloader_faults")
    assert "1 failed, 1 passed" in printed
    assert status == pytest.ExitCode.TESTS_FAILED


def test_a_user_without_a_process_left_can_run_a_suite_without_the_plugin(tmp_path):
    """The header says that none can be started, and no probe of the kernel is needed."""
    (tmp_path / "test_inner.py").write_text("def test_passes(): pass")
    options = ["-p", "no:cacheprovider", "-p", "dataloader_faults", "-c", os.devnull]

    def run() -> None:
        _engine.explain_missing_engine.cache_clear()
        assert pytest.main([str(tmp_path), *options]) == pytest.ExitCode.OK

    assert traceback_under(run, with_processes(1)) == ""


WAITING = """
import os
import signal

import pytest

ends = []
signal.signal(signal.SIGCHLD, lambda *_: ends.append(os.waitpid(-1, os.WNOHANG)))

def test_gets_signals_of_its_own_children():
    assert ends == []
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

def test_waits_for_its_own_child():
    pid = os.fork() or os._exit(0)
    assert os.wait() == (pid, 0)
    with pytest.raises(ChildProcessError):
        os.wait()
"""


def test_a_suite_that_waits_for_any_child_meets_none_of_the_plugin(fresh_suite):
    """The header's probe of the kernel is over before the first conftest.py, or after the last."""
    fresh_suite.pytester.makeconftest("import test_inner")
    fresh_suite.pytester.makepyfile(test_inner=WAITING)
    status, printed = _run(fresh_suite, "", "-p", "dataloader_faults")
    assert "2 passed" in printed
    assert status == pytest.ExitCode.OK
