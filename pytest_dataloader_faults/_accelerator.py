"""Tells whether there is an accelerator that torch could use.

Some facts about asking. A build for CUDA asks the driver, and a process that has done so cannot
fork any more one that uses CUDA (torch/cuda/__init__.py, ``is_available``). Trials are forked. So a
child that is thrown away asks, when somebody needs to know.
"""

from __future__ import annotations

import os
from functools import cache
from typing import NoReturn

from pytest_dataloader_faults._engine import fork
from pytest_dataloader_faults.exceptions import InjectionError

_ANSWERS = {42: True, 43: False}


@cache
def missing_accelerator() -> str | None:
    """Why there is none; None if there is one."""
    import torch

    child = fork()
    if not child:
        _answer()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in _ANSWERS:
        message = f"torch could not be asked for an accelerator: the child ended with status {code}"
        raise InjectionError(message)
    return None if _ANSWERS[code] else f"torch {torch.__version__} finds no accelerator here"


def _answer() -> NoReturn:
    """End this process with a status that tells."""
    from pytest_dataloader_faults._trial._device import is_there

    code = 1
    try:
        found = is_there()
        code = next(code for code, answer in _ANSWERS.items() if answer == found)
    finally:
        os._exit(code)
