"""The findings can be seen without us: strace makes one system call fail, and the library errs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs/explanation/findings.md"
BLOCKS = re.findall(
    r"^```sh\n(.+?)^```\n\n```text\n(.+?)^```$",
    PAGE.read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)
INJECTING = [block for block in BLOCKS if "strace" in block[0]]
CUTTING = [block for block in BLOCKS if "strace" not in block[0]]


def _id(block):
    """The library's call, out of the last line of its script."""
    return re.findall(r"(\w+)\(", block[0])[-1]


@pytest.fixture(name="witness", scope="module")
def _witness():
    """Whether strace is there, and may trace."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    done = subprocess.run(
        [strace, "-o", os.devnull, sys.executable, "-c", ""], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"strace cannot trace here: {done.stderr.decode().strip()}")


def _printed(script, folder):
    """What *script* prints when it is run in *folder*, by this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shutil.which("bash"), "-euc", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "LC_ALL": "C"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("block", INJECTING, ids=_id)
@pytest.mark.usefixtures("witness")
def test_strace_shows_the_same(tmp_path, block):
    """Another injector of the same error leads to the same."""
    script, shown = block

    assert _printed(script, tmp_path) == shown
    assert "(INJECTED)" in (tmp_path / "trace.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", CUTTING, ids=_id)
def test_a_file_cut_by_hand_shows_the_same(tmp_path, block):
    """No injector is needed where a shorter file will do."""
    script, shown = block

    assert _printed(script, tmp_path) == shown


def test_every_script_of_the_page_is_run():
    """Each has its output right behind it."""
    assert len(BLOCKS) == PAGE.read_text(encoding="utf-8").count("```sh") == 10
