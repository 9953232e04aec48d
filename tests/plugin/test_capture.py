"""Trials leave pytest's capture alone, and what pytest inherits from its parent breaks no run."""

import os
import subprocess
import sys

import pytest

from support.rows import slow

pytestmark = pytest.mark.usefixtures("engine")


SUITE = """
import logging
import os
import sys

import pytest
from support.plugin_datasets import Chatty

one = pytest.mark.dataloader_faults(only="worker-killed-sending")

@one
def test_loud(fault_check, records):
    print("BEFORE")
    fault_check(lambda: Chatty(records))
    print("AFTER")

@one
def test_fixtures_of_pytest(fault_check, records, tmp_path, capsys, caplog, monkeypatch):
    monkeypatch.setenv("MARK", "mine")
    (tmp_path / "mine.txt").write_text("mine")
    print("one")
    fault_check(lambda: Chatty(records))
    print("two")
    print("three", file=sys.stderr)
    logging.getLogger("mine").warning("four")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("one\\ntwo\\n", "three\\n")
    assert [record.getMessage() for record in caplog.records] == ["four"]
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["mine.txt", "records"]
    assert os.environ["MARK"] == "mine"

@one
def test_capfd(fault_check, records, capfd):
    os.write(1, b"one\\n")
    fault_check(lambda: Chatty(records))
    os.write(1, b"two\\n")
    os.write(2, b"three\\n")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("one\\ntwo\\n", "three\\n")

def test_follows(capsys, tmp_path):
    print("mine")
    assert capsys.readouterr().out == "mine\\n"
    assert not os.listdir(tmp_path)
"""


WAYS = [("--capture=fd", "--log-file=all.log"), slow(("--capture=no", "-k", "test_loud"))]


@pytest.mark.parametrize("options", WAYS)
def test_a_trial_and_what_captures_leave_each_other_alone(suite, options):
    """What a trial prints and logs stays in it; the test's own prints are shown.

    capsys, capfd, caplog, tmp_path and monkeypatch work on, and so does the next test.
    """
    result = suite.run(SUITE, *options, "-rA")
    result.assert_outcomes(**({"passed": 1, "deselected": 3} if "-k" in options else {"passed": 4}))
    text = result.stdout.str()
    assert "BEFORE\n" in text
    assert "AFTER\n" in text
    written = "".join(each.read_text() for each in suite.path.glob("all.log"))
    assert "LEAK" not in text + result.stderr.str() + written


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
