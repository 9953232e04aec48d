"""The CI files that users copy: in a repository with a package and a test, they do what they say.

The package has a build backend of its own, so that pip installs it without a network.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import types
import venv
from pathlib import Path

import pytest
import yaml

import pytest_dataloader_faults as package
from pytest_dataloader_faults._trial.resources import missing_accelerator
from pytest_dataloader_faults.battery.checks import CHECKS, GROUPS
from pytest_dataloader_faults.report.command import main
from support.rows import rows


def _make_environment(folder):
    """The python of an environment in *folder* in which all is installed that is installed here."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    places = [path for path in sys.path if path.endswith("-packages")]
    places.append(str(Path(package.__file__).parents[1]))
    (site / "installed_here.pth").write_text("\n".join(places), "utf-8")
    return folder / "bin/python"


ROOT = Path(__file__).resolve().parents[2] / "examples/ci"
GITHUB, GITLAB = ".github/workflows/dataloader-faults.yml", ".gitlab-ci.yml"
SCRIPT, TEST = "dataloader-faults.sh", "test_my_data.py"
CODE = "src/my_package.py"
READS = "        data = bytearray(path.read_bytes())\n"
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "my-package"
version = "1.0"
dependencies = ["torch"]
"""
BACKEND = """
import zipfile

ABOUT = "Metadata-Version: 2.1\\nName: my-package\\nVersion: 1.0\\nRequires-Dist: torch\\n"
WHEEL = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"


def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, about = "my_package-1.0-py3-none-any.whl", "my_package-1.0.dist-info"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.write("src/my_package.py", "my_package.py")
        wheel.writestr(f"{about}/METADATA", ABOUT)
        wheel.writestr(f"{about}/WHEEL", WHEEL)
        wheel.writestr(f"{about}/RECORD", "")
    return name
"""
SWALLOWS = f"""        try:
    {READS}        except OSError:
            data = bytearray(SIZE)
"""


def _of_github(job):
    """The commands of *job*, and its variables, for the first Python of a matrix."""
    definition = yaml.safe_load((ROOT / GITHUB).read_text("utf-8"))["jobs"][job]
    steps = [step["run"] for step in definition["steps"] if "run" in step]
    texts = {name: _with_matrix(text) for name, text in definition.get("env", {}).items()}
    assert not [each for each in steps if "${{" in each]
    return steps, texts


def _with_matrix(text):
    return re.sub(r"\$\{\{ matrix\.python \}\}", "3.11", text)


def _of_gitlab(job):
    """Likewise; what a job extends comes first."""
    jobs = yaml.safe_load((ROOT / GITLAB).read_text("utf-8"))
    definition = {**jobs.get(jobs[job].get("extends"), {}), **jobs[job]}
    texts = {"PYTHON": "3.11", **jobs["variables"], **definition.get("variables", {})}
    expanded = {name: str(text).replace("$PYTHON", "3.11") for name, text in texts.items()}
    return [*definition.get("before_script", ()), *definition["script"]], {
        **expanded,
        "PIP_CACHE_DIR": "",
    }


def _of_script(job):
    return [f"bash {SCRIPT} {job}"], {}


RUNNERS = {GITHUB: _of_github, GITLAB: _of_gitlab, SCRIPT: _of_script}


def _with_command(python):
    command = python.with_name("pytest-dataloader-faults")
    command.write_text(
        f"#!{python}\nfrom {main.__module__} import main\nraise SystemExit(main())\n"
    )
    command.chmod(0o755)
    return python


@pytest.fixture(name="python", scope="module")
def _python(tmp_path_factory):
    return _with_command(_make_environment(tmp_path_factory.mktemp("bare")))


@pytest.fixture(name="project")
def _project(tmp_path):
    """A repository with a package, whose dataset is in src, and one test."""
    imports, _, test = (ROOT / TEST).read_text("utf-8").partition("@pytest.fixture")
    texts = {
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND,
        CODE: imports.replace("import pytest\n", ""),
        f"tests/{TEST}": (
            "from array import array\nfrom pathlib import Path\n\nimport pytest\n"
            f"from my_package import Records\n\n\n@pytest.fixture{test}"
        ),
    }
    for name, text in texts.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path / "project"


def _run(runner, job, project, python):
    """Copy the file of *runner*, and run *job* step by step until one fails; the last result."""
    (project / runner).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / runner, project / runner)
    commands, variables = RUNNERS[runner](job)
    process = None
    for command in commands:
        process = _shell(command, project, python, variables)
        if process.returncode:
            break
    return process


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


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("runner", RUNNERS)
def test_push_asks_the_quick_checks(runner, project, python):
    process = _run(runner, "push", project, python)

    assert process.returncode == 0, process.stdout
    assert f"{len(GROUPS['quick'])} passed" in process.stdout
    name = "push" if runner == SCRIPT else "py3.11"
    suffixes = {GITHUB: [], GITLAB: [".xml"], SCRIPT: [".html", ".xml"]}[runner]
    assert _reports(project) == sorted(f"{name}{each}" for each in (".json", *suffixes))
    assert _checks(project / f"reports/{name}.json") == set(GROUPS["quick"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_reports_of_the_matrix_become_one_page(project, python):
    _run(GITHUB, "push", project, python)
    (project / "reports/py3.11.json").rename(project / "reports/py3.12.json")
    _break(project)
    failed = _run(GITHUB, "push", project, python)
    assert failed.returncode == 1, failed.stdout

    process = _run(GITHUB, "report", project, python)
    assert process.returncode == 0, process.stdout
    assert "2 reports: 16 items" in process.stdout
    assert (
        "py3.11: tests/test_my_data.py::test_robust" in (project / "merged/report.html").read_text()
    )
    assert "py3.12: " in (project / "summary.md").read_text("utf-8")


def _break(project):
    code = project / CODE
    code.write_text(code.read_text("utf-8").replace(READS, SWALLOWS), "utf-8")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_night_asks_all_checks(project, python):
    process = _run(SCRIPT, "nightly", project, python)

    assert process.returncode == 0, process.stdout
    lacking = {name for name, check in CHECKS.items() if check.scenario.uses_accelerator}
    assert _checks(project / "reports/nightly.json") == set(CHECKS) - lacking
    assert "nightly.html" in _reports(project)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_machine_without_a_gpu_fails_the_job_for_one(runner, project, python):
    process = _run(runner, "gpu", project, python)

    if missing_accelerator() is None:
        assert process.returncode == 0, process.stdout
    else:
        assert process.returncode == 1, process.stdout
        assert "--dataloader-faults-require-gpu: torch" in process.stdout


HERE, FORK = "us/data", "others/data"
EVENTS = [
    ("push", None, {"push", "report", "gpu"}),
    ("pull_request", HERE, {"push", "report", "gpu"}),
    ("pull_request", FORK, {"push", "report"}),
    ("schedule", None, {"nightly"}),
    ("workflow_dispatch", None, {"nightly"}),
]


def _holds(condition, **scope):
    """What a condition of a runner gives, as Python with the same operators."""
    text = condition.strip("${} ").replace("!c", "not c").replace("&&", "and").replace("||", "or")
    return bool(eval(text, {}, scope))  # noqa: S307  # of our own file


def _jobs_of_github(event, head, variable):
    jobs = yaml.safe_load((ROOT / GITHUB).read_text("utf-8"))["jobs"]
    pull_request = types.SimpleNamespace(
        head=types.SimpleNamespace(repo=types.SimpleNamespace(full_name=head))
    )
    scope = {
        "github": types.SimpleNamespace(
            event_name=event,
            repository=HERE,
            event=types.SimpleNamespace(pull_request=pull_request),
        ),
        "vars": types.SimpleNamespace(DATALOADER_FAULTS_GPU=variable),
        "cancelled": lambda: False,
    }
    started = set()
    for name, job in jobs.items():
        result = "success" if job.get("needs") in started else "skipped"
        needs = types.SimpleNamespace(push=types.SimpleNamespace(result=result))
        if _holds(" ".join(job["if"].split()), needs=needs, **scope):
            started.add(name)
    return started


@rows("event, head, expected", EVENTS)
def test_each_job_of_github_has_its_own_trigger(event, head, expected):
    assert _jobs_of_github(event, head, "true") == expected
    assert _jobs_of_github(event, head, "") == expected - {"gpu"}


def test_each_workflow_declares_permissions_and_triggers():
    workflow = yaml.safe_load((ROOT / GITHUB).read_text("utf-8"))
    events = workflow[True]  # YAML reads "on" so.
    assert events["push"] == {"branches": ["main"]}
    assert set(events) == {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert workflow["permissions"] == {"contents": "read"}
    assert {"github.event_name", "github.ref"} <= set(
        re.findall(r"github\.\w+", workflow["concurrency"]["group"])
    )
    assert (
        workflow["concurrency"]["cancel-in-progress"]
        == "${{ github.event_name == 'pull_request' }}"
    )


def test_packages_are_cached_once_for_what_they_are_for():
    """A key of the run would save them again each time, until GitHub drops what others cached."""
    (key,) = re.findall(r"key: (pip-.*)", (ROOT / GITHUB).read_text("utf-8"))
    assert "github.run_id" not in key
    for name in ("matrix.python", "requirements.txt", "pyproject.toml", "setup.py"):
        assert name in key


SOURCES = [
    ("push", "main", {"push", "report", "gpu"}),
    ("push", "topic", set()),
    ("merge_request_event", "", {"push", "report", "gpu"}),
    ("schedule", "main", {"nightly"}),
    ("web", "main", {"nightly"}),
]


def _jobs_of_gitlab(source, branch, variable):
    pipeline = yaml.safe_load((ROOT / GITLAB).read_text("utf-8"))
    values = {
        "CI_PIPELINE_SOURCE": source,
        "CI_COMMIT_BRANCH": branch,
        "CI_DEFAULT_BRANCH": "main",
        "DATALOADER_FAULTS_GPU": variable,
    }

    def is_one_true(rules):
        texts = [
            re.sub(r"\$(\w+)", lambda name: repr(values[name[1]]), rule["if"]) for rule in rules
        ]
        return any(map(_holds, texts))

    jobs = {name for name, job in pipeline.items() if "script" in job}
    assert all("rules" in pipeline[name] for name in jobs)
    is_started = is_one_true(pipeline["workflow"]["rules"])
    return {name for name in jobs if is_started and is_one_true(pipeline[name]["rules"])}


@rows("source, branch, expected", SOURCES)
def test_each_job_of_gitlab_has_its_own_trigger(source, branch, expected):
    assert _jobs_of_gitlab(source, branch, "true") == expected
    assert _jobs_of_gitlab(source, branch, "") == expected - {"gpu"}


@rows("runner", [GITHUB, GITLAB])
def test_reports_are_merged_without_torch(runner):
    commands, _ = RUNNERS[runner]("report")
    installed = [each for each in commands if "pip install" in each]
    assert "torch" not in " ".join(installed)
    assert "python -m pip install --no-deps pytest-dataloader-faults" in installed


def test_a_job_that_is_none_is_an_error(tmp_path):
    shutil.copy(ROOT / SCRIPT, tmp_path)
    process = _shell(f"bash {SCRIPT} nightli", tmp_path, sys.executable, {})

    assert process.returncode == 2
    assert "'nightli' is no job: push, nightly or gpu" in process.stdout


@pytest.mark.parametrize(
    ("schema", "path"), [("github-workflows", GITHUB), ("gitlab-ci", GITLAB)], ids=["hub", "lab"]
)
def test_keys_are_those_of_the_runner(schema, path):
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    process = subprocess.run([*check, ROOT / path], check=False, text=True, capture_output=True)
    assert process.returncode == 0, process.stdout


def test_both_have_the_same_jobs():
    github = yaml.safe_load((ROOT / GITHUB).read_text("utf-8"))["jobs"]
    assert set(github) < set(yaml.safe_load((ROOT / GITLAB).read_text("utf-8")))
