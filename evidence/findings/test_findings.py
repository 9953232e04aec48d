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

from paths import ROOT

HERE = Path(__file__).resolve().parent
SCRIPTS = {path.stem: path.read_text(encoding="utf-8") for path in HERE.glob("*.sh")}
INJECTING = sorted(name for name, script in SCRIPTS.items() if "-e inject=" in script)
PLAIN = sorted(SCRIPTS.keys() - INJECTING)


def _expected_output(script):
    """What *script* says that it prints, in the comment at its end."""
    output = script.partition("\n# It prints:\n")[2]
    return re.sub(r"^# ", "", output, flags=re.MULTILINE)


def _missing_modules(script):
    """The modules that *script* imports and that are not here; its own are beside it."""
    lines = re.findall(r"^(?:import|from) ([\w., ]+?)(?: import .*| as .*)?$", script, re.MULTILINE)
    names = {name.strip().partition(".")[0] for line in lines for name in line.split(",")}
    modules = set(re.findall(r"cat > (\w+)\.py", script))
    return sorted(name for name in names - modules if importlib.util.find_spec(name) is None)


def _require_libraries(script):
    if missing := _missing_modules(script):
        pytest.skip(f"not installed: {', '.join(missing)}")


def _mark_slow(names, quick):
    """*quick* is run each time, and the others of *names*, which are about libraries, are slow."""
    slow_names = [name for name in names if name != quick]
    return [quick, *(pytest.param(each, marks=pytest.mark.slow) for each in slow_names)]


@pytest.fixture(name="witness", scope="module")
def _witness():
    """Whether strace is there, and may trace."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    process = subprocess.run(
        [strace, "-o", os.devnull, sys.executable, "-c", ""], capture_output=True, check=False
    )
    if process.returncode:
        pytest.skip(f"strace cannot trace here: {process.stderr.decode().strip()}")


def _run_script(script, folder):
    """What *script* prints when it is run in *folder*, by this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        [shutil.which("bash"), "-euc", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "LC_ALL": "C"},
        capture_output=True,
        check=False,
        timeout=100,
    )
    return process.stdout.decode()


@pytest.mark.parametrize("name", _mark_slow(INJECTING, "numpy_fromfile"))
@pytest.mark.usefixtures("witness")
def test_strace_shows_the_same(tmp_path, name):
    """Another injector of the same error leads to the same."""
    script = SCRIPTS[name]
    _require_libraries(script)

    assert _run_script(script, tmp_path) == _expected_output(script)
    trace = (tmp_path / "trace.txt").read_text(encoding="utf-8")
    assert "(INJECTED)" in trace or "killed by SIGKILL" in trace


@pytest.mark.parametrize("name", _mark_slow(PLAIN, "gzip"))
def test_plain_code_shows_the_same(tmp_path, name):
    """No injector is needed where a shorter file, or plain Python, will do."""
    script = SCRIPTS[name]
    _require_libraries(script)

    assert _run_script(script, tmp_path) == _expected_output(script)


def test_the_page_has_every_script():
    """And says of each whether it takes strace."""
    page = (ROOT / "docs/explanation/why.md").read_text(encoding="utf-8")
    linked = re.findall(r"\[([^]]+)\]\(\.\./\.\./evidence/findings/(\w+)\.sh\)", page)

    assert sorted(name for _, name in linked) == sorted(SCRIPTS)
    assert sorted(name for tool, name in linked if tool == "strace") == INJECTING
    assert all(_expected_output(script) for script in SCRIPTS.values())


def test_the_libraries_of_a_script_are_known():
    """A script whose library is missing is skipped for that, and not for a module of its own."""
    script = (
        "cat > own.py\nimport os, nowhere.at.all as x\nfrom nothing.here import y\nimport own\n"
    )
    assert _missing_modules(script) == ["nothing", "nowhere"]
