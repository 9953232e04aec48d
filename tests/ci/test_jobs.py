"""The CI jobs that users copy: their commands do what they say, their keys are known."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pytest_dataloader_faults._trial.accelerator import missing_accelerator
from support.environments import environment_for

ROOT = Path(__file__).resolve().parents[2] / "examples/ci"
GITHUB, GITLAB = ROOT / ".github/workflows/data.yml", ROOT / ".gitlab-ci.yml"
OF_A_RUNNER = {"CI": "true", "GROUP": "1", "CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "2"}
SHOWN = {
    "fast": (0, "1 passed, 8 deselected"),
    "faults": (0, "passed"),
    "gpu": (1, "--dataloader-faults-require-gpu: torch * finds no accelerator here"),
    "nightly": (0, "2 passed, 7 deselected"),
}
"""The exit status, and what is printed."""
READS = "        data = bytearray(path.read_bytes())\n"
SWALLOWS = f"""        try:
    {READS}        except OSError:
            data = bytearray(SIZE)
"""


def _of_github(job):
    jobs = yaml.safe_load(GITHUB.read_text(encoding="utf-8"))["jobs"]
    return [step["run"] for step in jobs[job]["steps"] if "run" in step]


def _of_gitlab(job):
    jobs = yaml.safe_load(GITLAB.read_text(encoding="utf-8"))
    return jobs["default"]["before_script"] + jobs[job]["script"]


def _jobs():
    """The commands of each job; once, where both runners have the same.

    tests/plugin has what the job for accelerators prints.
    """
    for job in SHOWN:
        yield pytest.param(job, _of_github(job), id=job)
        if _of_gitlab(job) != _of_github(job):
            yield pytest.param(job, _of_gitlab(job), id=f"{job}-gitlab")


@pytest.fixture(name="project")
def _project(tmp_path):
    """A copy, which the commands may write to."""
    return shutil.copytree(ROOT, tmp_path / "project")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("job", "commands"), list(_jobs()))
def test_commands_of_a_job(job, commands, project):
    """Each is run as it stands, in a copy of the project."""
    status, shown = SHOWN[job]
    if job == "gpu" and missing_accelerator() is None:
        status, shown = 0, "2 passed"
    *before, last = [_run(command, project) for command in commands]
    assert [each.returncode for each in before] == [0] * len(before), before
    assert last.returncode == status, last.stdout
    assert fnmatch.fnmatch(last.stdout, f"*{shown}*"), last.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_night_keeps_what_it_found(project):
    """In the folder that is cached: Hypothesis tries that first in the next night."""
    data = project / "my_data.py"
    sound = data.read_text(encoding="utf-8")
    data.write_text(sound.replace(READS, SWALLOWS), encoding="utf-8")
    assert sound != data.read_text(encoding="utf-8")
    *_, command = _of_github("nightly")
    found = _run(f"{command} -k test_survives_or_fails", project)

    assert found.returncode == 1, found.stdout
    assert list((project / ".hypothesis/examples").rglob("*"))


def _collected(project, options=""):
    """The node ids."""
    done = _run(f"python -m pytest -m dataloader_faults -q --collect-only {options}", project)
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.slow
def test_shards_have_every_item_once(project):
    """pytest-split gives each to one of the jobs, xdist then to one of its processes."""
    first, second = (_collected(project, f"--splits 2 --group {group}") for group in (1, 2))

    assert first
    assert second
    assert not first & second
    assert first | second == _collected(project)


@pytest.fixture(name="python", scope="module")
def _python(tmp_path_factory):
    """Of an environment with what the project asks for, and nothing else."""
    asked = (ROOT / "requirements-test.txt").read_text(encoding="utf-8").splitlines()
    return environment_for(asked, tmp_path_factory.mktemp("bare"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("job", ["fast", pytest.param("faults", marks=pytest.mark.slow)])
def test_what_the_project_asks_for_is_enough(job, project, python):
    """Each job passes where its requirements are installed, and nothing else is."""
    install, *commands = _of_github(job)
    assert install == "python -m pip install -r requirements-test.txt"
    done = [_run(command, project, python) for command in commands]
    assert [each.returncode for each in done] == [0], done
    assert SHOWN[job][1] in done[-1].stdout


def _run(command, folder, python=sys.executable):
    """With *python* first on the path, that of this very run, and nothing to be installed anew."""
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    inherited = {name: each for name, each in os.environ.items() if not name.startswith("PYTEST_")}
    env = {**inherited, **OF_A_RUNNER, "PATH": path, "PIP_NO_INDEX": "1"}
    return subprocess.run(
        [shutil.which("bash"), "-ec", command],
        cwd=folder,
        env=env,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.parametrize(
    ("schema", "path"), [("github-workflows", GITHUB), ("gitlab-ci", GITLAB)], ids=["hub", "lab"]
)
def test_keys_are_those_of_the_runner(schema, path):
    """By the schemas that come with check-jsonschema."""
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*check, path], check=False, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout


def test_both_have_the_same_jobs():
    """A change of one needs the same change of the other."""
    assert list(SHOWN) == list(yaml.safe_load(GITHUB.read_text(encoding="utf-8"))["jobs"])
    assert set(SHOWN) < set(yaml.safe_load(GITLAB.read_text(encoding="utf-8")))
