"""What an inner pytest needs to find: tests/support, and the very package that is under test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest_dataloader_faults as package

PYTHONPATH = os.pathsep.join(
    str(Path(file).resolve().parents[1]) for file in (__file__, package.__file__)
)
