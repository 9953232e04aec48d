"""The supervisors below this process, which answer the calls of workers."""

import contextlib

import psutil

from pytest_dataloader_faults._engine.supervisor.start import NAME


def running_supervisors() -> set[psutil.Process]:
    """Those that have not ended; other processes may end meanwhile."""
    supervisors = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == NAME and process.status() != psutil.STATUS_ZOMBIE:
                supervisors.add(process)
    return supervisors
