"""Stacks for readers: the user's frames first, and none of this package's."""

import os

import numpy as np
import torch

import pytest_dataloader_faults as package
from pytest_dataloader_faults.outcomes.text import crashed_files, limit_lines, sort_for_reader
from support.rows import rows

_TORCH, _NUMPY, _OURS = (os.path.dirname(each.__file__) for each in (torch, np, package))
USERS = [f'  File "/home/me/{name}.py", line 8 in make' for name in ("shop", "test_shop")]
LIBRARY = [f'  File "{_NUMPY}/core/{number}.py", line 1 in read' for number in range(30)]
OURS = [f'  File "{_OURS}/_trial/{name}.py", line 1 in run' for name in ("loaders", "run")]
LOADER = f'  File "{_TORCH}/utils/data/dataloader.py", line 1 in __next__'
STACK = [*LIBRARY, USERS[0], LOADER, OURS[0], USERS[1], *OURS]


def test_the_users_frames_come_first_and_ours_never():
    """That holds for each stack of faulthandler, whatever is printed around it."""
    fatal, thread = "Fatal Python error: Bus error", "Current thread 0x1 (most recent call first):"
    printed = ["hello", fatal, thread, *STACK, "", thread, *STACK]
    ordered = [thread, *USERS, *LIBRARY, LOADER]
    assert sort_for_reader(printed) == ["hello", fatal, *ordered, "", *ordered]


def test_a_traceback_keeps_its_order_without_our_frames():
    """Source lines stay with their frame."""
    ours = [f'  File "{_OURS}/_engine/x.py", line 1, in call', "    call()", "    ^^^^"]
    users = ['  File "/home/me/data.py", line 2, in read', "    raise OSError"]
    head, error = "Traceback (most recent call last):", "OSError: no"
    assert sort_for_reader([head, *ours, *users, error]) == [head, *users, error]


@rows("frames", [STACK, [*LIBRARY, *STACK], [*USERS, *LIBRARY]])
def test_no_frame_of_the_user_is_omitted(frames):
    """Only frames of libraries are omitted, and counted."""
    lines = limit_lines(sort_for_reader(frames), 12)
    assert lines[:2] == USERS
    assert sum(" lines omitted" in each for each in lines) == 1
    assert len(lines) == 13


def test_a_recursion_of_the_user_is_bounded():
    """Its first and last frames are shown."""
    frames = [f'  File "/home/me/data.py", line {number} in again' for number in range(500)]
    lines = limit_lines(sort_for_reader(frames), 12)
    assert (lines[0], lines[-1], len(lines)) == (frames[0], frames[-1], 13)


CRASH = """\
Fatal Python error: Segmentation fault

{header} (most recent call first):
  File "/venv/site-packages/h5py/dataset.py", line 3 in read
  File "/home/me/data.py", line 7 in __getitem__
  File "/venv/site-packages/torch/utils/data/_utils/fetch.py", line 50 in fetch

Extension modules: numpy, h5py (total: 2)
"""
OTHER_THREAD = """\
Thread 0x01 (most recent call first):
  File "/home/me/other.py", line 1 in run

"""


@rows(
    ("printed", "files"),
    [
        ("", []),
        (CRASH.format(header="Stack"), ["/venv/site-packages/h5py/dataset.py"]),
        (
            CRASH.format(header=f"{OTHER_THREAD}Current thread 0x02"),
            ["/venv/site-packages/h5py/dataset.py"],
        ),
        (
            2 * CRASH.format(header="Stack").replace("h5py/dataset", "torch/utils/data/dataset"),
            2 * ["/home/me/data.py"],
        ),
        ("Fatal Python error: Aborted\n\nStack (most recent call first):\n", [""]),
    ],
)
def test_the_file_of_a_crash_is_that_of_the_innermost_frame(printed, files):
    assert crashed_files(f"a line\n{printed}another line\n") == files
