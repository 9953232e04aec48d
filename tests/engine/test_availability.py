"""Is there an engine? Found out by truly installing one, also where it is truly refused."""

import os
import signal
import subprocess
import sys
from unittest import SkipTest

import pytest

from pytest_dataloader_faults import _engine
from pytest_dataloader_faults._engine import explain_missing_engine, require_engine
from pytest_dataloader_faults._engine.kernel import linux
from pytest_dataloader_faults.exceptions import EngineUnavailableError
from support.inner import start_forked
from support.waiting import output_of

EPERM, ENOSYS, EINVAL = 1, 38, 22

LISTENED_TO = """
from pytest_dataloader_faults._engine.kernel.calls import program
from pytest_dataloader_faults._engine.kernel.linux import *

# The listener stays open: a filter that hands over nothing, as of a sandbox around us.
filter_this_process(program({}, ARCHITECTURES[MACHINE]), 1)
"""
FORBIDDEN = """
import struct
from pytest_dataloader_faults._engine.kernel.linux import *

# As a container's seccomp profile does: a call is answered with an errno.
def instruction(code, yes, no, value):
    return struct.pack("=HBBI", code, yes, no, value)

code = instruction(0x20, 0, 0, 0) + instruction(0x15, 0, 1, {number})
code += instruction(0x06, 0, 0, 0x00050000 | {errno}) + instruction(0x06, 0, 0, Return.ALLOW)
from pytest_dataloader_faults._engine.system.libc import Prctl, prctl
prctl(Prctl.SET_NO_NEW_PRIVS, 1)
install_filter(code, FilterFlag.TSYNC)
"""
ASK = """
from pytest_dataloader_faults import exceptions
from pytest_dataloader_faults._engine import explain_missing_engine, require_engine
from pytest_dataloader_faults._engine.kernel import linux

print(explain_missing_engine())
try:
    print(require_engine())
except exceptions.EngineUnavailableError as error:
    print(error)
"""


NUMBERS = {
    "x86_64": {"setsid": 112, "pidfd_open": 434},
    "aarch64": {"setsid": 157, "pidfd_open": 434},
}
"""Calls that no filter of ours is about."""


def forbid_call(call: str, errno: int) -> str:
    numbers = linux.SYSCALLS[linux.MACHINE] | NUMBERS[linux.MACHINE]
    return FORBIDDEN.format(number=numbers[call], errno=errno)


CASES = [
    (LISTENED_TO, "EBUSY", "already has a seccomp listener"),
    (forbid_call("seccomp", EPERM), "EPERM", "seccomp(2) is forbidden here"),
    (forbid_call("seccomp", ENOSYS), "ENOSYS", "seccomp(2) is missing or forbidden"),
    (forbid_call("seccomp", EINVAL), "EINVAL", "does not support seccomp user notification"),
]


def run_preparation(preparation):
    process = subprocess.run(
        [sys.executable, "-c", preparation + ASK], capture_output=True, text=True, check=False
    )
    assert (0, "") == (process.returncode, process.stderr)
    return process.stdout.splitlines()


@pytest.mark.parametrize(("preparation", "name", "hint"), CASES, ids=[each[1] for each in CASES])
def test_a_refusal_has_a_reason(preparation, name, hint):
    reason, error = run_preparation(preparation)
    assert hint in reason
    assert f"[{name}, Linux " in reason
    assert f"no engine can run here: {reason}" == error


@pytest.mark.parametrize("call", ["memfd_create", "pidfd_open"])
def test_a_call_that_the_engine_needs_is_named(call):
    reason, error = run_preparation(forbid_call(call, EPERM))
    assert reason.startswith(f"{call}(2)")
    assert "is missing or forbidden here" in reason
    assert "[EPERM, Linux " in reason
    assert error == f"no engine can run here: {reason}"


TRY = """
from pytest_dataloader_faults import exceptions, run_trial

try:
    run_trial(lambda: [1, 2, 3])
except exceptions.UnusableEnvironmentError as error:
    print(error)
"""


def test_a_call_that_every_trial_needs_is_named():
    with start_forked(forbid_call("setsid", EPERM) + TRY) as process:
        output, errors = output_of(process)
    assert errors == ""
    assert "a system call is forbidden: " in output
    assert "os.setsid()" in output
    assert "Allow it, for example in the container's seccomp profile" in output


def test_no_refusal_without_a_cause():
    assert ["None", "None"] == run_preparation("")


def test_a_test_that_needs_an_engine_is_skipped(monkeypatch):
    """Pytest and unittest skip a test that raises this error."""
    monkeypatch.setattr(_engine, "explain_missing_engine", lambda: "why")
    with pytest.raises(EngineUnavailableError, match="no engine can run here: why") as caught:
        require_engine()
    assert isinstance(caught.value, SkipTest)


def test_probing_leaves_this_process_as_it_was():
    """It is done in a child: this process can still have a listener of its own."""
    with open("/proc/self/status", encoding="utf-8") as status:
        status_lines = [line for line in status if line.startswith(("Seccomp", "NoNewPrivs"))]
    _forget_availability()
    assert explain_missing_engine() is None
    with open("/proc/self/status", encoding="utf-8") as status:
        assert status_lines == [
            line for line in status if line.startswith(("Seccomp", "NoNewPrivs"))
        ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_probe_that_fails_says_nothing_of_the_kernel(monkeypatch, number):
    monkeypatch.setattr(_engine, "_PROBE_SECONDS", 1.0)
    with monkeypatch.context() as patches:
        patches.setattr(_engine, "_filter_reason", lambda: os.kill(os.getpid(), number))
        _forget_availability()
        assert "exited, or were stopped, before they had an answer" in explain_missing_engine()
    _forget_availability()
    assert explain_missing_engine() is None


def _forget_availability() -> None:
    explain_missing_engine.cache_clear()
