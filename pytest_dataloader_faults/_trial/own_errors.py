"""Errors of this package's own code, which show nothing about the dataset [in a trial].

Some facts about whose an error is. Code of ours runs within the user's loader, and the user's
within ours, so an error of either may come out of the other. The innermost frame of a traceback is
of the code that raised it. An error of a worker comes with its traceback as text, and the error
that was raised from another one comes with both. But C has no frames: what a list, a file or an
extension module raises has the frame of its caller, which may be ours.
"""

from __future__ import annotations

import os
import traceback

from pytest_dataloader_faults._engine.system.processes import end_if_interrupted
from pytest_dataloader_faults.exceptions import DataLoaderFaultsError, InjectionError
from pytest_dataloader_faults.outcomes.chains import innermost_frames

_PACKAGE = f"{os.path.dirname(os.path.dirname(__file__))}/"
_CALLING_USERS_CODE = (
    *("_engine/fake/", "_engine/python/", "fake_files/"),
    *("_engine/loader/own_faults.py", "_engine/worker/fetch_hooks.py"),
    *("_trial/accelerator.py", "_trial/factory.py", "_trial/loader_state.py", "_trial/loaders.py"),
    *("_trial/process/sigchld.py", "_trial/process_group.py", "_trial/samplers.py"),
    *("_trial/samples/draws.py", "_trial/samples/fingerprint.py", "_trial/samples/reference.py"),
)
"""Code of ours that calls the user's or raises errors in place of torch's or the kernel's."""
_FUNCTIONS_CALLING = {
    *(("_trial/driver.py", name) for name in ("start", "_start_iterator", "take", "_take_in_step")),
    ("_trial/run.py", "_touch"),
}
_WORKER_INIT_FN = "__call__"
"""Ours call the user's own."""


def require_users(error: BaseException) -> None:
    """Raise *error* again if this package is to blame for it, and not the user's code.

    Raises:
        InjectionError: Our own code failed, perhaps in a worker.
        DataLoaderFaultsError: Our own code says what this machine or this test lacks.
    """
    end_if_interrupted(error)
    if isinstance(error, InjectionError):
        raise error
    text = "".join(traceback.format_exception(error))
    if not any(_is_own(*each) for each in innermost_frames(text)):
        return
    if isinstance(error, DataLoaderFaultsError):
        raise error
    message = f"this package's own code failed, which shows nothing about the dataset:\n{text}"
    raise InjectionError(message) from error


def _is_own(file: str, function: str) -> bool:
    """Whether an error that was raised there cannot have come out of the user's code."""
    if not file.startswith(_PACKAGE) or function == _WORKER_INIT_FN:
        return False
    inner = file.removeprefix(_PACKAGE)
    return not inner.startswith(_CALLING_USERS_CODE) and (inner, function) not in _FUNCTIONS_CALLING
