"""What /proc shows of processes."""

import os
import signal

from pytest_dataloader_faults._engine.system.proc import is_below
from pytest_dataloader_faults._engine.system.processes import fork


def test_who_is_below():
    ours, theirs = os.pipe()
    child = fork()
    if not child:
        grandchild = fork()
        if grandchild:
            os.write(theirs, grandchild.to_bytes(4, "little"))
        signal.pause()
    grandchild = int.from_bytes(os.read(ours, 4), "little")
    own_pid = os.getpid()
    try:
        below_here = [
            is_below(pid, {own_pid}) for pid in (own_pid, child, grandchild, os.getppid(), 1, 0)
        ]
        below_child = [is_below(pid, {child}) for pid in (own_pid, child, grandchild)]
    finally:
        for pid in (grandchild, child):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ours)
        os.close(theirs)
    assert [True, True, True, False, False, False] == below_here
    assert [False, True, True] == below_child
    assert not is_below(child, {own_pid})
