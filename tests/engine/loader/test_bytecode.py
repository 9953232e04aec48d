"""The supervisor, a new interpreter, keeps to what the user says about files of bytecode."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_dataloader_faults as package

SCRIPT = """
import sys
import torch  # Its bytecode is where it always is.
sys.{} = {!r}
from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ReadError

with inject(ReadError("*.bin"), require_fired=False) as armed:
    print(armed.fired)
"""


@pytest.mark.parametrize(
    ("name", "value"), [("dont_write_bytecode", True), ("pycache_prefix", "elsewhere")]
)
def test_no_bytecode_beside_the_sources(tmp_path, engine, name, value):
    """Neither where it is forbidden, nor where it belongs into another folder."""
    copied = tmp_path / "site" / "pytest_dataloader_faults"
    source = Path(package.__file__).parent
    shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(copied.parent)}
    command = [sys.executable, "-c", SCRIPT.format(name, value)]
    printed = subprocess.check_output(command, env=environment, cwd=tmp_path)
    assert printed == b"0\n"
    assert list(copied.rglob("*.pyc")) == []
