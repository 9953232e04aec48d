"""The CI files that users copy: alone in a folder with one test, they do what they say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pytest_dataloader_faults._trial.accelerator import missing_accelerator
from pytest_dataloader_faults.battery.checks import CHECKS, GROUPS
from pytest_dataloader_faults.report.command import main
from support.environments import environment_for

ROOT = Path(__file__).resolve().parents[2] / "examples/ci"
GITHUB, GITLAB = ".github/workflows/dataloader-faults.yml", ".gitlab-ci.yml"
SCRIPT, TEST = "dataloader-faults.sh", "test_my_data.py"
PACKAGES = ("pip", "torch", "pytest-dataloader-faults", "pytest-xdist")
READS = "        data = bytearray(path.read_bytes())\n"
SWALLOWS = f"""        try:
    {READS}        except OSError:
            data = bytearray(SIZE)
"""


def _of_github(job):
    """The commands of *job*, and its variables, for the first Python of a matrix."""
    found = yaml.safe_load((ROOT / GITHUB).read_text("utf-8"))["jobs"][job]
    steps = [step["run"] for step in found["steps"] if "run" in step]
    texts = {name: _with_matrix(text) for name, text in found.get("env", {}).items()}
    assert not [each for each in steps if "${{" in each]
    return steps, texts


def _with_matrix(text):
    return re.sub(r"\$\{\{ matrix\.python \}\}", "3.11", text)


def _of_gitlab(job):
    """Likewise; what a job extends comes first."""
    jobs = yaml.safe_load((ROOT / GITLAB).read_text("utf-8"))
    found = {**jobs.get(jobs[job].get("extends"), {}), **jobs[job]}
    texts = {"PYTHON": "3.11", **jobs["variables"], **found.get("variables", {})}
    expanded = {name: str(text).replace("$PYTHON", "3.11") for name, text in texts.items()}
    return [*found.get("before_script", ()), *found["script"]], {**expanded, "PIP_CACHE_DIR": ""}


def _of_script(job):
    return [f"bash {SCRIPT} {job}"], {}


RUNNERS = {GITHUB: _of_github, GITLAB: _of_gitlab, SCRIPT: _of_script}


@pytest.fixture(name="python", scope="module")
def _python(tmp_path_factory):
    """Of an environment with what the files install, and nothing else."""
    python = environment_for(PACKAGES, tmp_path_factory.mktemp("bare"))
    command = python.with_name("pytest-dataloader-faults")
    command.write_text(
        f"#!{python}\nfrom {main.__module__} import main\nraise SystemExit(main())\n"
    )
    command.chmod(0o755)
    return python


@pytest.fixture(name="project")
def _project(tmp_path):
    """An empty repository with one test."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(ROOT / TEST, folder)
    return folder


def _run(runner, job, project, python):
    """Copy the file of *runner*, and run *job* step by step until one fails; the last result."""
    (project / runner).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / runner, project / runner)
    commands, variables = RUNNERS[runner](job)
    done = None
    for command in commands:
        done = _shell(command, project, python, variables)
        if done.returncode:
            break
    return done


def _shell(command, folder, python, variables):
    """With *python* first on the path. What is to be installed is there, and nothing is fetched."""
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    inherited = {name: each for name, each in os.environ.items() if not name.startswith("PYTEST_")}
    of_runner = {"CI": "true", "PATH": path, "PIP_NO_INDEX": "1"}
    summary = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return subprocess.run(
        [shutil.which("bash"), "-ec", command],
        cwd=folder,
        env={**inherited, **of_runner, **summary, **variables},
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _reports(project):
    return sorted(each.name for each in (project / "reports").iterdir())


def _checks(report):
    return {each["check"] for each in json.loads(report.read_text("utf-8"))["items"]}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runner", RUNNERS)
def test_push_asks_the_quick_checks(runner, project, python):
    """And leaves its reports where the runner looks for them."""
    done = _run(runner, "push", project, python)

    assert done.returncode == 0, done.stdout
    assert f"{len(GROUPS['quick'])} passed" in done.stdout
    name = "push" if runner == SCRIPT else "py3.11"
    others = {GITHUB: [], GITLAB: [".gitlab.json", ".xml"], SCRIPT: [".html", ".xml"]}[runner]
    assert _reports(project) == sorted(f"{name}{each}" for each in (".json", *others))
    assert _checks(project / f"reports/{name}.json") == set(GROUPS["quick"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("runner", [GITHUB, GITLAB])
def test_reports_of_the_matrix_become_one_page(runner, project, python):
    """A failure in one of them is there, under the name of that job."""
    test = project / TEST
    _run(runner, "push", project, python)
    (project / "reports/py3.11.json").rename(project / "reports/py3.12.json")
    test.write_text(test.read_text("utf-8").replace(READS, SWALLOWS), "utf-8")
    failed = _run(runner, "push", project, python)
    assert failed.returncode == 1, failed.stdout

    done = _run(runner, "report", project, python)
    assert done.returncode == 0, done.stdout
    assert "2 reports: 16 items" in done.stdout
    assert "py3.11: test_my_data.py::test_robust" in (project / "merged/report.html").read_text()
    assert (runner == GITHUB) == ("py3.12: " in _text(project / "summary.md"))


def _text(path):
    return path.read_text("utf-8") if path.exists() else ""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("runner", RUNNERS)
def test_night_asks_all_checks(runner, project, python):
    """Those that do not apply are in the report, too."""
    done = _run(runner, "nightly", project, python)

    assert done.returncode == 0, done.stdout
    lacking = {name for name, check in CHECKS.items() if check.gpu}
    assert _checks(project / "reports/nightly.json") == set(CHECKS) - lacking
    assert "nightly.html" in _reports(project)


SEARCH = """

def test_search(dataloader_faults, data_dir):
    dataloader_faults.explore(lambda: Records(data_dir), max_examples=20)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_night_searches_and_keeps_what_it_found(project, python):
    """In the folder that is cached: Hypothesis tries that first in the next night."""
    test = project / TEST
    test.write_text(test.read_text("utf-8").replace(READS, SWALLOWS) + SEARCH, "utf-8")
    done = _run(GITHUB, "nightly", project, python)

    assert done.returncode == 1, done.stdout
    assert "test_search" in done.stdout
    assert list((project / ".hypothesis/examples").rglob("*"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_machine_without_a_gpu_fails_the_job_for_one(runner, project, python):
    """It is not green because it skipped everything."""
    done = _run(runner, "gpu", project, python)

    if missing_accelerator() is None:
        assert done.returncode == 0, done.stdout
    else:
        assert done.returncode == 1, done.stdout
        assert "--dataloader-faults-require-gpu: torch" in done.stdout


def test_the_job_for_a_gpu_is_off_until_it_is_asked_for():
    """By a variable of the repository."""
    github = yaml.safe_load((ROOT / GITHUB).read_text("utf-8"))["jobs"]["gpu"]
    gitlab = yaml.safe_load((ROOT / GITLAB).read_text("utf-8"))["gpu"]

    assert github["if"] == "vars.DATALOADER_FAULTS_GPU == 'true'"
    assert gitlab["rules"] == [{"if": '$DATALOADER_FAULTS_GPU == "true"'}]


def test_a_job_that_is_none_is_an_error(project, python):
    """Of the script; the others know their jobs."""
    shutil.copy(ROOT / SCRIPT, project)
    done = _shell(f"bash {SCRIPT} nightli", project, python, {})

    assert done.returncode == 2
    assert "'nightli' is no job: push, nightly or gpu" in done.stdout


@pytest.mark.parametrize(
    ("schema", "path"), [("github-workflows", GITHUB), ("gitlab-ci", GITLAB)], ids=["hub", "lab"]
)
def test_keys_are_those_of_the_runner(schema, path):
    """By the schemas that come with check-jsonschema."""
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*check, ROOT / path], check=False, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout


def test_both_have_the_same_jobs():
    """A change of one needs the same change of the other."""
    github = yaml.safe_load((ROOT / GITHUB).read_text("utf-8"))["jobs"]
    assert set(github) < set(yaml.safe_load((ROOT / GITLAB).read_text("utf-8")))
