"""Datasets for workers that are spawned or come from a fork server, which import this module."""

import os
import resource
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import torch

from support.datasets import Records

VARIABLE = "DATALOADER_FAULTS_TEST"


class Surroundings(Records):
    """Each sample says which environment, working directory and limit its worker has."""

    def __getitem__(self, index):
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        text = f"{os.environ.get(VARIABLE)} {os.getcwd()} {limit} {os.environ.get('PYTHONPATH')}"
        return torch.tensor(list(text.encode()))


class StartsSlowly(Records):
    """Calls *action* as a worker unpickles it."""

    def __init__(self, folder, action):
        super().__init__(folder)
        self.action = action

    def __setstate__(self, state):
        self.__dict__ = state
        self.action()


class LeavesAProcess(Records):
    """Starts a program for its first sample, and does not end it."""

    def __getitem__(self, index):
        if not index:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return super().__getitem__(index)


class KeepsFile(Records):
    def __init__(self, folder):
        super().__init__(folder)
        self.file = self.paths[0].open("rb")


class ForkedWorkers(Records):
    """Raises in a worker that is forked from the process that made it, or not, as *forked* says."""

    def __init__(self, folder, *, forked):
        super().__init__(folder)
        self.made_in = os.getpid()
        self.forked = forked

    def __getitem__(self, index):
        is_forked = os.getppid() == self.made_in
        if torch.utils.data.get_worker_info() and is_forked != self.forked:
            raise RuntimeError("started by another method")
        return super().__getitem__(index)


class SharesTensors(Records):
    """Shares each sample as a worker's queue does; an error if that imports anything."""

    def __getitem__(self, index):
        sample = torch.tensor(index)
        modules = set(sys.modules)
        ForkingPickler.dumps(sample)
        if new := sorted(set(sys.modules) - modules):
            message = f"imported to share a tensor: {new}"
            raise ImportError(message)
        return sample
