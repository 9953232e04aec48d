"""Each number and struct of the kernel engine is what the kernel's own headers say, per machine."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from pytest_dataloader_faults._engine.calls import CALLS
from pytest_dataloader_faults._engine.kernel.linux import MACHINE, SYSCALLS
from support.kernel_headers import TABLE, compile_values, engine_values, expressions_for

VALUES = json.loads(TABLE.read_text(encoding="utf-8"))["values"]
HANDED_OVER = {*CALLS}


@pytest.fixture(name="compiler")
def _compiler():
    """A C compiler, and beside it the kernel's headers for the machine that runs this."""
    if MACHINE not in SYSCALLS:
        pytest.skip(f"the kernel engine does not know {MACHINE}")
    if not os.path.exists("/usr/include/linux/seccomp.h") or not shutil.which("cc"):
        pytest.skip("cc or the kernel's headers (Debian: linux-libc-dev) are not installed here")
    return ["cc"]


@pytest.mark.parametrize("machine", SYSCALLS)
def test_numbers_and_structs_are_the_kernels(machine):
    """By the headers of both machines; a call that a machine does not have is not in its table."""
    assert engine_values(machine) == VALUES[machine]


@pytest.mark.parametrize("machine", SYSCALLS)
def test_each_call_that_is_handed_over_has_its_number(machine):
    """Or the filter would let it pass in silence. It may lack only what the machine lacks."""
    lacking = HANDED_OVER - {*SYSCALLS[machine]}

    assert lacking == {name for name in HANDED_OVER if f"__NR_{name}" not in VALUES[machine]}


def test_the_table_is_what_the_headers_of_this_machine_say(compiler):
    """As far as its headers go: they may be older than some names, and then lack them."""
    header_values = compile_values(expressions_for(MACHINE), compiler)

    assert header_values.items() <= VALUES[MACHINE].items()
    assert {f"__NR_{name}" for name in HANDED_OVER} & {*VALUES[MACHINE]} <= {*header_values}


def test_another_number_is_seen(monkeypatch):
    """One that is wrong on one machine alone."""
    monkeypatch.setitem(SYSCALLS["aarch64"], "pread64", 68)

    assert engine_values("aarch64").items() ^ VALUES["aarch64"].items() == {
        ("__NR_pread64", 67),
        ("__NR_pread64", 68),
    }
    assert engine_values("x86_64") == VALUES["x86_64"]
