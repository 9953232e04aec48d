"""A user who installed this package, and nothing else, can do what the documentation shows."""

import re
import subprocess
from pathlib import Path

import pytest

from pytest_dataloader_faults._engine import explain_missing_engine
from support.environments import OURS, environment_for, find_requirements
from support.scripts import load_script

generate = load_script("docs/generate.py")


PAGES = ["README.md", "docs/tutorial/first_fault.md", "docs/how-to/inject-into-my-own-loop.md"]


def _without_warning(ran):
    """What a page shows of *ran*; torch says once in each process that it has found no NumPy."""
    text = re.sub(
        r"=+ warnings summary =+\n.*?\n-- Docs: .*?\n", "", generate.body(ran), flags=re.DOTALL
    )
    text = re.sub(r", 1 warning\b", "", text)
    warning = r"(.*: UserWarning: Failed to initialize NumPy.*\n(  .*\n)?)+"
    return re.sub(rf"(-+ Captured stderr call -+\n)?{warning}", "", text)


@pytest.fixture(name="python", scope="module")
def _python(tmp_path_factory):
    return environment_for([OURS], tmp_path_factory.mktemp("bare"))


def test_there_is_nothing_else(python):
    script = (
        "import importlib.util as i, pytest, torch, hypothesis, pyfakefs, psutil;"
        "import pytest_dataloader_faults.plugin;"
        "print([each for each in ('numpy', 'PIL', 'h5py', 'xdist') if i.find_spec(each)])"
    )
    process = subprocess.run(
        [python, "-I", "-W", "ignore", "-c", script], check=True, capture_output=True, text=True
    )
    assert process.stdout == "[]\n"
    assert {"torch", "pytest", "psutil"} < find_requirements([OURS])


@pytest.mark.slow
@pytest.mark.timeout(300)  # As of tests/test_docs.py.
@pytest.mark.parametrize("page", [Path(each) for each in PAGES], ids=str)
def test_examples_run_with_nothing_else_installed(page, python, tmp_path):
    if reason := explain_missing_engine():
        pytest.skip(f"no engine can run here: {reason}")
    for ran in generate.run_page(page, tmp_path, str(python)):
        if ran.block is None:
            assert ran.status == 0, f"{ran.command}:\n{ran.output}"
        else:
            assert generate.same(ran.block.text) == generate.same(_without_warning(ran))
