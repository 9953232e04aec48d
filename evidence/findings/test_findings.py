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


def _shown(script):
    """What *script* says that it prints, in the comment at its end."""
    said = script.partition("\n# It prints:\n")[2]
    return re.sub(r"^# ", "", said, flags=re.MULTILINE)


def _missing(script):
    """The modules that *script* imports and that are not here; its own are beside it."""
    lines = re.findall(r"^(?:import|from) ([\w., ]+?)(?: import .*| as .*)?$", script, re.MULTILINE)
    names = {name.strip().partition(".")[0] for line in lines for name in line.split(",")}
    own = set(re.findall(r"cat > (\w+)\.py", script))
    return sorted(name for name in names - own if importlib.util.find_spec(name) is None)


def _require_libraries(script):
    if missing := _missing(script):
        pytest.skip(f"not installed: {', '.join(missing)}")


def _one_quick(names, quick):
    """*quick* is run each time, and the others of *names*, which are about libraries, are slow."""
    rest = [name for name in names if name != quick]
    return [quick, *(pytest.param(each, marks=pytest.mark.slow) for each in rest)]


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


@pytest.mark.parametrize("name", _one_quick(INJECTING, "numpy_fromfile"))
@pytest.mark.usefixtures("witness")
def test_strace_shows_the_same(tmp_path, name):
    """Another injector of the same error leads to the same."""
    script = SCRIPTS[name]
    _require_libraries(script)

    assert _printed(script, tmp_path) == _shown(script)
    trace = (tmp_path / "trace.txt").read_text(encoding="utf-8")
    assert "(INJECTED)" in trace or "killed by SIGKILL" in trace


@pytest.mark.parametrize("name", _one_quick(PLAIN, "gzip"))
def test_plain_code_shows_the_same(tmp_path, name):
    """No injector is needed where a shorter file, or plain Python, will do."""
    script = SCRIPTS[name]
    _require_libraries(script)

    assert _printed(script, tmp_path) == _shown(script)


def test_the_page_has_every_script():
    """And says of each whether it takes strace."""
    page = (ROOT / "docs/explanation/why.md").read_text(encoding="utf-8")
    linked = re.findall(r"\[([^]]+)\]\(\.\./\.\./evidence/findings/(\w+)\.sh\)", page)

    assert sorted(name for _, name in linked) == sorted(SCRIPTS)
    assert sorted(name for how, name in linked if how == "strace") == INJECTING
    assert all(_shown(script) for script in SCRIPTS.values())


def test_the_libraries_of_a_script_are_known():
    """A script whose library is missing is skipped for that, and not for a module of its own."""
    script = (
        "cat > own.py\nimport os, nowhere.at.all as x\nfrom nothing.here import y\nimport own\n"
    )
    assert _missing(script) == ["nothing", "nowhere"]
