"""Checks of what several processes make of one dataset, with no fault at all. Pure."""

from __future__ import annotations

from pytest_dataloader_faults._trial.job import TrialOptions
from pytest_dataloader_faults.battery.checks._base import Check, no_fault

_USED_BEFORE = (
    "The main process read one sample before it started the workers. Forked workers share a handle"
    " that was opened for that sample, and spawned workers cannot receive it. Open the file once"
    " per process: keep os.getpid() beside the handle, and open the file again where it differs. Or"
    " exclude 'used-before', if nothing reads the dataset before the loop over the loader"
)

_PICKLES = (
    "Workers that are started by spawn or forkserver receive the dataset, its transforms and the"
    " loader's functions by pickle. That is the default on macOS and Windows, and on Linux from"
    " Python 3.14 on. Leave handles out of what is pickled (__getstate__) and open them in the"
    " worker; use functions of a module or functools.partial instead of lambdas; put many small"
    " tensors into one. Or exclude 'pickles', if no worker is ever spawned"
)
_DESCRIPTORS = 1024
"""The usual soft limit: a dataset that needs more cannot be sent to workers on many machines."""

SHARING = (
    Check(
        "workers-agree",
        "N workers give the same samples as the main process",
        no_fault,
        options=TrialOptions(watch_files=True),
    ),
    Check(
        "used-before",
        "the same, after the main process has read a sample",
        no_fault,
        options=TrialOptions(touch=True, watch_files=True),
        advice=_USED_BEFORE,
    ),
    Check(
        "pickles",
        "the dataset can be sent to a spawned worker",
        no_fault,
        {"multiprocessing_context": "spawn", "num_workers": 1},
        options=TrialOptions(descriptors=_DESCRIPTORS),
        advice=_PICKLES,
    ),
)
