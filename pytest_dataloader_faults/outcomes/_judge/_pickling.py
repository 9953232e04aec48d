"""What pickle refuses between a loader and its workers, as the likely cause. Pure.

Some facts about where torch pickles. A worker that is not forked loads the dataset by pickle, in
``multiprocessing.spawn._main``. An error there ends the worker, and the loader knows no more than
its exit status: the traceback is what the worker printed. On the way back, a thread of the worker's
queue pickles samples and errors. It prints an error of pickle and drops the batch, for which the
loader waits forever.
"""

from __future__ import annotations

import re

from pytest_dataloader_faults.outcomes._facts import TrialFacts
from pytest_dataloader_faults.outcomes._judge._errors import dropped_batch_cause
from pytest_dataloader_faults.outcomes._verdicts import Cause

_LOADING = re.compile(r'spawn\.py", line \d+, in _main\n.*pickle\.load\(')
_UNPICKLED = "cannot be unpickled"
_DELEGATES = Cause(
    _UNPICKLED,
    "pickle asks a new object for __setstate__ before it has any attribute, and this __getattr__"
    " looks into one: have it raise AttributeError for each name that begins with '__'",
    overrides=True,
)
_SETS_STATE = Cause(
    _UNPICKLED,
    "Its __setstate__ raises in the worker. Restore there what __getstate__ gave, and open files"
    " for the first sample",
    overrides=True,
)
_LOADED = Cause(
    _UNPICKLED,
    "pickle.dumps takes it, and pickle.loads raises in the worker: try both in a process that has"
    " just begun",
    overrides=True,
)
_BY_PICKLE = (
    "numbers, texts, and instances of classes that a module has under their names. Lambdas, local"
    " classes, generators and open files cannot be sent"
)
_SAMPLES = Cause(
    "gives samples that cannot be pickled",
    f"Workers send samples by pickle: give tensors, arrays, {_BY_PICKLE}",
    overrides=True,
)
_ANSWERS = Cause(
    "sends an error or a sample that cannot be pickled",
    "Workers send both by pickle. Raise an error of a class that a module has under its name, such"
    f" as OSError, and give tensors, arrays, {_BY_PICKLE}",
    overrides=True,
)


def of_dataset(outcome: TrialFacts) -> Cause | None:
    """The cause, where a worker could not load its dataset."""
    found = _LOADING.search(outcome.stderr)
    if found is None or not outcome.deaths:
        return None
    printed = outcome.stderr[found.end() :]
    if "in __getattr__" in printed:
        return _DELEGATES
    return _SETS_STATE if "in __setstate__" in printed else _LOADED


def of_answers(outcome: TrialFacts) -> Cause | None:
    """The cause, where the loader waits for what a worker could not pickle."""
    if not dropped_batch_cause(outcome):
        return None
    return _ANSWERS if outcome.fired else _SAMPLES
