"""What cannot be pickled or imported on the way to a worker or back. Pure."""

from __future__ import annotations

import re

from pytest_dataloader_faults.outcomes import chains
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.judge.errors import dropped_batch_cause
from pytest_dataloader_faults.outcomes.records import TrialFacts

UNPICKLABLE = Cause(
    "cannot be pickled",
    "Workers started with spawn or forkserver receive the dataset, its transforms and the loader's"
    " functions through pickle. That is the default on macOS and Windows, and on Linux from Python"
    " 3.14 on. Exclude open handles from pickling (__getstate__) and open them in the worker; use"
    " module-level classes and functions instead of local ones and lambdas; merge many small"
    " tensors into one",
    fix="leave handles out of __getstate__, and avoid lambdas and local classes",
)
_UNPICKLED = UNPICKLABLE._replace(
    advice=f"{UNPICKLABLE.advice}. Or, if your own loader forks its workers, let this one fork them"
    " as well: loader={'multiprocessing_context': 'fork'}"
)
_PICKLE = re.compile(r"[Pp]ickl")
_SENDING = "ForkingPickler(file, protocol).dump(obj)"
"""A line of the traceback if multiprocessing cannot pickle what it sends to a new process."""
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NOT_IN_MAIN = re.compile(r"AttributeError: .*(module|attribute).*'__mp_main__'")
_DEFINED_BELOW_GUARD = Cause(
    "is defined where workers cannot import it",
    "A worker that is not forked imports the script without the part below"
    " if __name__ == '__main__': define the dataset and everything it needs above that line",
    overrides=True,
    fix="define the dataset in a module",
)
_NO_GUARD = "has imported the main module"
"""In the message of a trial that a worker refuses to run."""
_UNGUARDED = Cause(
    "runs a trial when its main module is imported",
    "Move the script's code below: if __name__ == '__main__':",
    overrides=True,
    fix="move the script's code below if __name__ == '__main__':",
)


def is_not_forked(outcome: TrialFacts) -> bool:
    """Whether workers are not forked, so that they import modules and unpickle the dataset."""
    return outcome.loader.start_method not in ("", "fork")


def start_cause(outcome: TrialFacts) -> Cause | None:
    """Why the dataset did not reach its workers, if they are not forked."""
    if outcome.exception is None or outcome.fired or not is_not_forked(outcome):
        return None
    text = f"{outcome.exception.text}\n{outcome.stderr}"
    if _NO_GUARD in text:
        return _UNGUARDED
    if _NOT_IN_MAIN.search(text):
        return _DEFINED_BELOW_GUARD
    if missing := _NO_MODULE.search(text):
        advice = (
            f"A worker that is not forked cannot import {missing[1]}, which defines the dataset or"
            " something that it needs. Define it in a module that Python can find, or set"
            " pythonpath in pytest's configuration: with --import-mode=importlib, workers cannot"
            " import test files"
        )
        return Cause(
            "is defined where workers cannot import it",
            advice,
            overrides=True,
            fix="define the dataset in a module",
        )
    return _unpickling_cause(outcome) or (_UNPICKLED if _failed_to_pickle(outcome) else None)


def _failed_to_pickle(outcome: TrialFacts) -> bool:
    """Whether the loader could not pickle what a worker needs, not a worker its result."""
    if outcome.exception is None or outcome.deaths:
        return False
    text = outcome.exception.text
    return _SENDING in text or bool(_PICKLE.search(chains.exception_lines(text)))


# Some facts about where torch pickles. A worker that is not forked unpickles the dataset in
# ``multiprocessing.spawn._main``. An error there ends the worker, and the loader only learns its
# exit status: the traceback is in the worker's output. On the way back, a thread of the worker's
# queue pickles samples and errors. It prints pickling errors and drops the batch, for which the
# loader waits forever.


_LOADING = re.compile(r'spawn\.py", line \d+, in _main\n.*pickle\.load\(')
_NO_UNPICKLING = "cannot be unpickled"
_DELEGATES = Cause(
    _NO_UNPICKLING,
    "pickle looks up __setstate__ on a new object before it has any attributes, and this"
    " __getattr__ reads one: make it raise AttributeError for names that start with '__'",
    overrides=True,
    fix="make pickle.loads(pickle.dumps(dataset)) work in a new process",
)
_SETS_STATE = Cause(
    _NO_UNPICKLING,
    "Its __setstate__ raises in the worker. Restore only what __getstate__ returned, and open files"
    " on first access",
    overrides=True,
    fix="make pickle.loads(pickle.dumps(dataset)) work in a new process",
)
_LOADED = Cause(
    _NO_UNPICKLING,
    "pickle.dumps accepts the dataset, but pickle.loads raises in the worker: try both in a fresh"
    " process",
    overrides=True,
    fix="make pickle.loads(pickle.dumps(dataset)) work in a new process",
)
_BY_PICKLE = (
    "numbers, strings, or instances of module-level classes. Lambdas, local classes, generators and"
    " open files cannot be sent"
)
_SAMPLES = Cause(
    "returns samples that cannot be pickled",
    f"Workers send samples through pickle: return tensors, arrays, {_BY_PICKLE}",
    overrides=True,
    fix="return tensors, arrays or plain data",
)
_ANSWERS = Cause(
    "sends an error or a sample that cannot be pickled",
    "Workers send both through pickle. Raise an error whose class is defined at module level, such"
    f" as OSError, and return tensors, arrays, {_BY_PICKLE}",
    overrides=True,
    fix="raise an error whose class is defined at module level",
)


def _unpickling_cause(outcome: TrialFacts) -> Cause | None:
    """The cause if a worker could not unpickle its dataset."""
    match = _LOADING.search(outcome.stderr)
    if match is None or not outcome.deaths:
        return None
    printed = outcome.stderr[match.end() :]
    if "in __getattr__" in printed:
        return _DELEGATES
    return _SETS_STATE if "in __setstate__" in printed else _LOADED


def sending_cause(outcome: TrialFacts) -> Cause | None:
    """The cause if the loader waits for a result that a worker could not pickle."""
    if not dropped_batch_cause(outcome):
        return None
    return _ANSWERS if outcome.fired else _SAMPLES
