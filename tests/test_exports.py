"""The public names are there, and importing them costs nothing that is not needed."""

import importlib
import importlib.metadata
import inspect
import json
import subprocess
import sys

import pytest

import pytest_dataloader_faults as package
from pytest_dataloader_faults import check_dataset, inject, run_trial
from support.rows import rows
from support.waiting import allowed

FIXED = (
    "CheckResult inject run_trial check_dataset explore sweep faults strategies"
    " Outcome Verdict Contract exceptions part_of DatasetFactory"
    " check Finding NotApplicable Scenario UnclearErrorWarning"
).split()
PUBLIC = "exceptions fake_files faults injection outcomes search steps strategies".split()
HEAVY = {"torch", "hypothesis", "pyfakefs", "numpy", "psutil", "jinja2"}
NOT_IN_PYTEST = {"ctypes", "multiprocessing", "pytest_dataloader_faults.battery"}
NAME = "pytest_dataloader_faults"


def _modules_loaded_by(code: str) -> set[str]:
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=allowed(60),
    )
    return set(json.loads(process.stdout))


def test_root_exports_the_fixed_names():
    assert set(FIXED) == set(package.__all__)
    assert sorted(package.__all__) == list(package.__all__)


@rows("name", FIXED)
def test_root_name_is_what_it_stands_for(name):
    assert getattr(package, name) is not None
    assert name in dir(package)


def test_unknown_root_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = package.no_such_name


def test_version_is_the_distribution_s():
    assert importlib.metadata.version("pytest-dataloader-faults") == package.__version__


@rows("module", PUBLIC)
def test_all_is_complete(module):
    loaded = importlib.import_module(f"{NAME}.{module}")
    defined = {
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and f"{value.__module__}.".startswith(f"{loaded.__name__}.")
    }

    assert isinstance(loaded.__all__, tuple)
    assert sorted(loaded.__all__) == list(loaded.__all__)
    assert set(loaded.__all__) <= set(vars(loaded))
    assert set() == defined - set(loaded.__all__)


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (f"import {NAME}.faults, {NAME}.exceptions, {NAME}.outcomes", HEAVY | NOT_IN_PYTEST),
        (f"import {NAME}.plugin", HEAVY | NOT_IN_PYTEST),
        (
            f"import {NAME} as p; [getattr(p, each) for each in {{*p.__all__}} - {{'strategies'}}]",
            HEAVY | {"pytest", "_pytest"},
        ),
        (f"import {NAME}.search", HEAVY),
    ],
)
def test_importing_is_light(code, heavy):
    assert set() == _modules_loaded_by(code) & heavy


@rows(
    ("function", "expected"),
    [
        (
            run_trial,
            (
                "(make_dataset, *faults, loader=None, epochs=1, deadline=30.0, seed=0,"
                " before_init=False, copy=None, ranks=None, on_rank=None)"
            ),
        ),
        (inject, "(*faults, seed=0, require_fired=True)"),
        (
            check_dataset,
            (
                "(make_dataset, *, files=None, loader=None, contract=None, copy=None, only=None,"
                " exclude=(), expected_failures=None, deadline=None, seed=0,"
                " samples=64, ranks=None, on_fail='raise', flaky='warn')"
            ),
        ),
    ],
)
def test_signature(function, expected):
    signature = inspect.signature(function)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]

    assert expected == str(inspect.Signature(bare))
