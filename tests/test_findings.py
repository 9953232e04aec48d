"""The findings can be seen without us: strace makes one system call fail, and the library errs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = "findings.md", "findings-datasets.md"
EXPLANATION = Path(__file__).resolve().parent.parent / "docs/explanation"
PAGES = {name: (EXPLANATION / name).read_text(encoding="utf-8") for name in NAMES}
BLOCKS = {
    name: re.findall(r"^```sh\n(.+?)^```\n\n```text\n(.+?)^```$", page, re.DOTALL | re.MULTILINE)
    for name, page in PAGES.items()
}
EVERY = [block for blocks in BLOCKS.values() for block in blocks]
INJECTING = [block for block in EVERY if "strace" in block[0]]
PLAIN = [block for block in EVERY if "strace" not in block[0]]


def _id(block):
    """The library's call, out of the last line of its script."""
    return re.findall(r"(\w+)\(", block[0])[-1]


def _missing(script):
    """The modules that *script* imports and that are not here; its own are beside it."""
    lines = re.findall(r"^(?:import|from) ([\w., ]+?)(?: import .*| as .*)?$", script, re.MULTILINE)
    names = {name.strip().partition(".")[0] for line in lines for name in line.split(",")}
    own = set(re.findall(r"cat > (\w+)\.py", script))
    return sorted(name for name in names - own if importlib.util.find_spec(name) is None)


def _require_libraries(script):
    if missing := _missing(script):
        pytest.skip(f"not installed: {', '.join(missing)}")


def _one_quick(blocks):
    """*blocks*; the first is run each time, and the others, which are about libraries, are slow."""
    first, *rest = blocks
    return [first, *(pytest.param(each, marks=pytest.mark.slow) for each in rest)]


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
        timeout=100,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("block", _one_quick(INJECTING), ids=_id)
@pytest.mark.usefixtures("witness")
def test_strace_shows_the_same(tmp_path, block):
    """Another injector of the same error leads to the same."""
    script, shown = block
    _require_libraries(script)

    assert _printed(script, tmp_path) == shown
    trace = (tmp_path / "trace.txt").read_text(encoding="utf-8")
    assert "(INJECTED)" in trace or "killed by SIGKILL" in trace


@pytest.mark.parametrize("block", _one_quick(PLAIN), ids=_id)
def test_plain_code_shows_the_same(tmp_path, block):
    """No injector is needed where a shorter file, or plain Python, will do."""
    script, shown = block
    _require_libraries(script)

    assert _printed(script, tmp_path) == shown


@pytest.mark.parametrize(("name", "count"), {"findings.md": 11, "findings-datasets.md": 15}.items())
def test_every_script_of_the_page_is_run(name, count):
    """Each has its output right behind it."""
    assert len(BLOCKS[name]) == PAGES[name].count("```sh") == count


def test_the_libraries_of_a_script_are_known():
    """A script whose library is missing is skipped for that, and not for a module of its own."""
    script = (
        "cat > own.py\nimport os, nowhere.at.all as x\nfrom nothing.here import y\nimport own\n"
    )
    assert _missing(script) == ["nothing", "nowhere"]
