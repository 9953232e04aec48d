"""What could not be pickled, or not be imported, on the way to a worker or back. Pure."""

from __future__ import annotations

import re

from pytest_dataloader_faults.outcomes import chains
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.judge.errors import dropped_batch_cause
from pytest_dataloader_faults.outcomes.records import TrialFacts

UNPICKLABLE = Cause(
    "cannot be pickled",
    "Workers that are started by spawn or forkserver receive the dataset, its transforms and the"
    " loader's functions by pickle. That is the default on macOS and Windows, and on Linux from"
    " Python 3.14 on. Leave handles out of what is pickled (__getstate__) and open them in the"
    " worker; use classes and functions of a module, not local ones and not lambdas; put many"
    " small tensors into one",
)
_UNPICKLED = UNPICKLABLE._replace(
    advice=f"{UNPICKLABLE.advice}. Or, if your own loader forks its workers, have this one do so:"
    " loader={'multiprocessing_context': 'fork'}"
)
_PICKLE = re.compile(r"[Pp]ickl")
_SENDING = "ForkingPickler(file, protocol).dump(obj)"
"""A line of the traceback where multiprocessing could not pickle what a new process is to get."""
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NOT_IN_MAIN = re.compile(r"AttributeError: .*(module|attribute).*'__mp_main__'")
_BELOW_GUARD = Cause(
    "is defined where workers cannot import it",
    "A worker that is not forked imports the script without what is below"
    " if __name__ == '__main__': define the dataset and what it needs above that",
    overrides=True,
)
_NO_GUARD = "has imported the main module"
"""From the message of the trial that a worker refuses to run."""
_UNGUARDED = Cause(
    "runs a trial as its main module is imported",
    "Put what the script does below: if __name__ == '__main__':",
    overrides=True,
)


def is_started_anew(outcome: TrialFacts) -> bool:
    """Whether workers are not forked, and so import modules again and get the dataset by pickle."""
    return outcome.start_method not in ("", "fork")


def cause_of_start(outcome: TrialFacts) -> Cause | None:
    """Why the dataset did not come to its workers, if they are not forked."""
    if outcome.exception is None or outcome.fired or not is_started_anew(outcome):
        return None
    text = f"{outcome.exception.text}\n{outcome.stderr}"
    if _NO_GUARD in text:
        return _UNGUARDED
    if _NOT_IN_MAIN.search(text):
        return _BELOW_GUARD
    if missing := _NO_MODULE.search(text):
        advice = (
            f"A worker that is not forked cannot import {missing[1]}, where something of the"
            " dataset is defined. Put that in a module that Python finds, or set pythonpath in"
            " pytest's configuration: --import-mode=importlib does not make test files such modules"
        )
        return Cause("is defined where workers cannot import it", advice, overrides=True)
    return _of_dataset(outcome) or (_UNPICKLED if _could_not_be_sent(outcome) else None)


def _could_not_be_sent(outcome: TrialFacts) -> bool:
    """Whether the loader could not pickle what a worker needs. What workers send is pickled too."""
    if outcome.exception is None or outcome.deaths:
        return False
    text = outcome.exception.text
    return _SENDING in text or bool(_PICKLE.search(chains.exception_lines(text)))


# Some facts about where torch pickles. A worker that is not forked loads the dataset by pickle, in
# ``multiprocessing.spawn._main``. An error there ends the worker, and the loader knows no more
# than its exit status: the traceback is what the worker printed. On the way back, a thread of the
# worker's queue pickles samples and errors. It prints an error of pickle and drops the batch, for
# which the loader waits forever.


_LOADING = re.compile(r'spawn\.py", line \d+, in _main\n.*pickle\.load\(')
_NO_UNPICKLING = "cannot be unpickled"
_DELEGATES = Cause(
    _NO_UNPICKLING,
    "pickle asks a new object for __setstate__ before it has any attribute, and this __getattr__"
    " looks into one: have it raise AttributeError for each name that begins with '__'",
    overrides=True,
)
_SETS_STATE = Cause(
    _NO_UNPICKLING,
    "Its __setstate__ raises in the worker. Restore there what __getstate__ gave, and open files"
    " for the first sample",
    overrides=True,
)
_LOADED = Cause(
    _NO_UNPICKLING,
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


def _of_dataset(outcome: TrialFacts) -> Cause | None:
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
