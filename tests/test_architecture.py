"""Who may import whom, and how large a module and a function may get."""

from __future__ import annotations

import ast
import graphlib
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_dataloader_faults

NAME = "pytest_dataloader_faults"
ROOT = Path(pytest_dataloader_faults.__file__).parent
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 300, 40
NINE_IN_TEN, HALF = 30, 10

PACKAGE_IMPORTS = {
    "_accelerator": "_engine _trial._device exceptions",
    "_arguments": "exceptions verdicts",
    "_battery": (
        "_accelerator _arguments _checks _ends _engine _engine._paths _oracle _oracle._repeats "
        "_reproduce _results _trial _trial._ways _victims exceptions faults outcomes verdicts"
    ),
    "_checks": (
        "_checks._base _checks._epochs _checks._files _checks._growth _checks._hangs "
        "_checks._pinning _checks._sharing _checks._workers exceptions"
    ),
    "_checks._base": "faults outcomes verdicts",
    "_checks._epochs": "_checks._base faults outcomes verdicts",
    "_checks._files": "_checks._base faults outcomes",
    "_checks._growth": "_checks._base _epochs outcomes verdicts",
    "_checks._hangs": "_checks._base faults",
    "_checks._pinning": "_checks._base",
    "_checks._sharing": "_checks._base",
    "_checks._workers": "_checks._base _engine._paths faults outcomes",
    "_clarity": "_texts faults",
    "_deaths": "",
    "_ends": "",
    "_engine": "_engine._probe _fake._state exceptions",
    "_engine._alterations": "_engine._plan _engine._substitute faults",
    "_engine._announce": "",
    "_engine._answers": (
        "_engine._answers_to_reads _engine._bpf _engine._descriptor_budget _engine._linux "
        "_engine._paths _engine._sizes _engine._substitute _engine._target _engine._worker_state "
        "faults"
    ),
    "_engine._answers_to_reads": (
        "_engine._bpf _engine._deaths _engine._delays _engine._gates _engine._reads "
        "_engine._rendezvous _engine._substitute _engine._target _engine._worker_state faults"
    ),
    "_engine._arm": (
        "_engine _engine._announce _engine._armed _engine._filter _engine._posting "
        "_engine._python._worker exceptions"
    ),
    "_engine._armed": "_engine._channel _engine._linux _engine._sending",
    "_engine._bpf": "_engine._linux",
    "_engine._brought": "",
    "_engine._channel": "",
    "_engine._client": (
        "_engine._channel _engine._door _engine._plan _engine._posting _engine._process_state "
        "exceptions"
    ),
    "_engine._created": "",
    "_engine._deaths": "_engine._delays _engine._gates _engine._plan _engine._worker_state faults",
    "_engine._delays": "",
    "_engine._descriptions": "_engine._worker_state",
    "_engine._door": "",
    "_engine._events": "",
    "_engine._exhaustion": "_engine._plan _engine._target faults",
    "_engine._filter": (
        "_engine._armed _engine._bpf _engine._brought _engine._channel _engine._linux "
        "_engine._paths _engine._posting"
    ),
    "_engine._gates": "",
    "_engine._held": (
        "_engine._plan _engine._substitute _engine._target _engine._worker_state faults"
    ),
    "_engine._iterator": (
        "_engine._arm _engine._armed _engine._client _engine._exhaustion "
        "_engine._lost_lock _engine._pin_thread _engine._plan exceptions"
    ),
    "_engine._linux": "",
    "_engine._listener": "_engine._linux _engine._target",
    "_engine._lost_lock": "",
    "_engine._onset": (
        "_engine._deaths _engine._gates _engine._held _engine._plan _engine._target "
        "_engine._worker_state faults faults._workers"
    ),
    "_engine._paths": "",
    "_engine._pin_thread": "_engine._plan faults",
    "_engine._plan": "_engine._paths faults faults._workers",
    "_engine._posting": "_engine._channel _engine._plan",
    "_engine._probe": "_engine._bpf _engine._linux",
    "_engine._python": "",
    "_engine._python._acts": "_engine._substitute",
    "_engine._python._calls": "_engine._python._files",
    "_engine._python._files": "_engine._python._acts _engine._python._stand_in exceptions",
    "_engine._python._inherited": (
        "_engine._brought _engine._python._acts _engine._python._files _engine._python._stand_in"
    ),
    "_engine._python._objects": "_engine._python._calls _engine._python._files",
    "_engine._python._patch": (
        "_engine._python._acts _engine._python._calls _engine._python._files "
        "_engine._python._inherited _engine._python._objects _engine._python._sweep"
    ),
    "_engine._python._schedule": (
        "_engine._alterations _engine._paths _engine._plan _engine._python._acts faults"
    ),
    "_engine._python._stand_in": "_engine._substitute",
    "_engine._python._sweep": "",
    "_engine._python._worker": (
        "_engine._armed _engine._channel _engine._plan _engine._posting _engine._python._patch "
        "_engine._python._schedule _fake._faulted _fake._settled _fake._state"
    ),
    "_engine._reads": "_engine._linux _engine._target _engine._worker_state",
    "_engine._handshake": "_engine._channel _engine._events _engine._descriptor_budget",
    "_engine._rendezvous": "_engine._delays",
    "_engine._descriptor_budget": "",
    "_engine._sending": "",
    "_engine._sizes": "_engine._linux _engine._target",
    "_engine._standby": "_engine _engine._door _engine._supervisor_main",
    "_engine._substitute": "",
    "_engine._supervisor": (
        "_engine._answers _engine._answers_to_reads _engine._channel _engine._delays "
        "_engine._descriptions _engine._descriptor_budget _engine._events _engine._gates "
        "_engine._handshake _engine._held _engine._linux _engine._listener _engine._onset "
        "_engine._plan _engine._rendezvous _engine._substitute _engine._target _engine._told "
        "_engine._worker_state"
    ),
    "_engine._supervisor_main": "_engine._channel _engine._plan _engine._supervisor",
    "_engine._target": "_engine._linux",
    "_engine._told": "_engine._gates _engine._worker_state faults",
    "_engine._process_state": "",
    "_engine._worker_state": (
        "_engine._alterations _engine._channel _engine._created _engine._listener _engine._plan "
        "_engine._target"
    ),
    "_environment": "_engine exceptions",
    "_epochs": "",
    "_evidence": "_clarity _facts _oracle _texts outcomes verdicts",
    "_facts": "_clarity faults outcomes",
    "_fake": "",
    "_fake._faulted": (
        "_engine._python._acts _engine._python._calls _engine._python._files "
        "_engine._python._objects _engine._python._sweep _fake._system"
    ),
    "_fake._fixtures": "_fake._loaders _fake._state _fake._unseen fake_files",
    "_fake._loaders": "_engine._iterator _fake._parcel _fake._settled _fake._spared _fake._state",
    "_fake._parcel": "_fake._settled _fake._spared _fake._state",
    "_fake._refused": "exceptions faults",
    "_fake._settled": "_fake._state _fake._system _fake._unseen",
    "_fake._spared": "_fake._state exceptions",
    "_fake._state": "",
    "_fake._system": "",
    "_fake._unseen": "_fake._state",
    "_gpu": "_accelerator",
    "_injector": "_options exploring injection living",
    "_item": (
        "_engine _options _recall _refusals _results _steps _victims conformance exceptions "
        "sweeping verdicts"
    ),
    "_life_search": (
        "_evidence _oracle _oracle._life _programs _property _reproduce _search _trial exceptions "
        "lives outcomes surveys verdicts"
    ),
    "_options": "_arguments _engine exceptions",
    "_oracle": (
        "_clarity _deaths _oracle._allowed _oracle._content _oracle._deaths _oracle._growth "
        "_oracle._leaks "
        "_oracle._printed exceptions outcomes verdicts"
    ),
    "_oracle._allowed": "faults outcomes verdicts",
    "_oracle._content": "_oracle._allowed _oracle._rows outcomes verdicts",
    "_oracle._deaths": "faults outcomes",
    "_oracle._growth": "_epochs outcomes verdicts",
    "_oracle._leaks": "outcomes verdicts",
    "_oracle._life": "_clarity _oracle _oracle._printed lives outcomes verdicts",
    "_oracle._printed": "outcomes",
    "_oracle._repeats": "_facts _oracle outcomes",
    "_oracle._rows": "_oracle._allowed outcomes outcomes._parts",
    "_programs": "faults lives strategies surveys",
    "_property": (
        "_arguments _checks._workers _evidence _oracle _reproduce _unfired exceptions faults "
        "outcomes surveys verdicts"
    ),
    "_recall": "_battery _results verdicts",
    "_refusals": "exceptions",
    "_reproduce": "",
    "_results": (
        "_checks _evidence _oracle _oracle._repeats _texts exceptions faults outcomes verdicts"
    ),
    "_search": (
        "_oracle _property exceptions faults outcomes strategies strategies._of_files surveys "
        "verdicts"
    ),
    "_steps": "exceptions faults verdicts",
    "_texts": "",
    "_trial": (
        "_arguments _engine _environment _reproduce _trial._child _trial._clock _trial._job "
        "_trial._journal _trial._patience _trial._shortages _trial._ways exceptions faults "
        "injection lives outcomes"
    ),
    "_trial._child": (
        "_engine _engine._arm _engine._iterator _engine._linux _engine._standby _trial._root "
        "_trial._warden"
    ),
    "_trial._clock": "",
    "_trial._device": "exceptions",
    "_trial._digest": "_trial._leaves",
    "_trial._drive": (
        "_engine._client _trial._footprint _trial._journal _trial._loaders _trial._passes "
        "_trial._reference _trial._sigchld _trial._telling outcomes"
    ),
    "_trial._footprint": "_engine._announce _epochs _trial._device _trial._probes",
    "_trial._supervisor_watch": "_engine._process_state _trial._journal _trial._ready",
    "_trial._job": "_trial._ways faults lives",
    "_trial._journal": "_deaths _facts exceptions lives outcomes",
    "_trial._leaves": "",
    "_trial._life": (
        "_clarity _trial._drive _trial._journal _trial._loaders _trial._passes _trial._probes "
        "_trial._telling faults injection lives outcomes"
    ),
    "_trial._limits": "",
    "_trial._loaders": "_fake._unseen exceptions",
    "_trial._passes": "_engine._client _texts _trial._digest _trial._telling exceptions outcomes",
    "_trial._patience": "_engine._process_state _trial._journal _trial._ready",
    "_trial._probes": "",
    "_trial._ready": "",
    "_trial._reference": (
        "_engine._announce _trial._digest _trial._loaders _trial._telling _trial._ways exceptions "
        "outcomes"
    ),
    "_trial._root": (
        "_engine._announce _engine._client _environment _trial._device _trial._footprint "
        "_trial._job _trial._journal _trial._life _trial._limits _trial._loaders _trial._passes "
        "_trial._probes _trial._reference _trial._sigchld _trial._telling exceptions faults "
        "injection"
    ),
    "_trial._segments": "_trial._probes",
    "_trial._shortages": "_environment exceptions lives",
    "_trial._sigchld": "",
    "_trial._telling": "_trial._digest _trial._leaves _trial._ways exceptions outcomes._parts",
    "_trial._warden": (
        "_engine _engine._door _engine._linux _engine._process_state _texts _trial._clock "
        "_trial._journal _trial._probes _trial._ready _trial._segments _trial._supervisor_watch"
    ),
    "_trial._ways": "verdicts",
    "_unfired": "_facts _texts faults outcomes",
    "_victims": "_engine._paths _texts exceptions outcomes",
    "conformance": "_arguments _battery _checks _results _victims exceptions verdicts",
    "exceptions": "",
    "exploring": (
        "_arguments _property _search _victims exceptions faults outcomes strategies surveys "
        "verdicts"
    ),
    "fake_files": "_fake._loaders _fake._settled _fake._unseen",
    "faults": "faults._base faults._files faults._workers",
    "faults._base": "exceptions",
    "faults._files": "exceptions faults._base",
    "faults._workers": "faults._base",
    "injection": (
        "_arguments _engine _engine._client _engine._iterator _engine._plan _facts _fake._refused "
        "_fake._state _texts _trial _unfired exceptions faults outcomes"
    ),
    "lives": "exceptions faults outcomes",
    "living": (
        "_arguments _life_search _programs _property _trial _victims exceptions exploring faults "
        "lives surveys verdicts"
    ),
    "outcomes": "_oracle _reproduce faults outcomes._parts outcomes._reference verdicts",
    "outcomes._parts": "faults",
    "outcomes._reference": "outcomes._parts",
    "plugin": "_checks _engine _gpu _injector _item _options exceptions faults",
    "rehearsals": (
        "_engine._plan _engine._python._schedule _fake._faulted _fake._settled _fake._state "
        "exceptions faults"
    ),
    "strategies": (
        "strategies._loaders strategies._of_files strategies._of_workers strategies._schedules"
    ),
    "strategies._arguments": "faults._base",
    "strategies._loaders": "strategies._arguments strategies._victims surveys",
    "strategies._of_files": (
        "faults faults._files strategies._arguments strategies._variants strategies._victims "
        "surveys"
    ),
    "strategies._of_workers": (
        "faults faults._base strategies._arguments strategies._variants strategies._victims"
    ),
    "strategies._schedules": (
        "faults strategies._arguments strategies._of_files strategies._of_workers "
        "strategies._victims surveys"
    ),
    "strategies._variants": "",
    "strategies._victims": "_victims exceptions strategies._arguments surveys",
    "surveys": (
        "_arguments _engine _engine._paths _oracle _trial _trial._ways _victims exceptions faults "
        "outcomes verdicts"
    ),
    "sweeping": (
        "_arguments _battery _evidence _results _steps _victims exceptions faults verdicts"
    ),
    "verdicts": "_reproduce",
}
"""Each module, and those of this package that it imports, function-level imports too."""

THIRD_PARTY = {
    "_accelerator": "torch",
    "_engine._announce": "torch",
    "_engine._iterator": "torch",
    "_engine._pin_thread": "torch",
    "_fake._faulted": "pyfakefs",
    "_fake._fixtures": "pytest",
    "_fake._loaders": "torch",
    "_fake._parcel": "pyfakefs",
    "_fake._spared": "pyfakefs",
    "_fake._unseen": "torch",
    "_gpu": "pytest",
    "_item": "pytest",
    "_programs": "hypothesis",
    "_property": "hypothesis",
    "_refusals": "pytest",
    "_search": "hypothesis",
    "_trial": "torch",
    "_trial._sigchld": "torch",
    "_trial._device": "torch",
    "_trial._digest": "torch",
    "_trial._leaves": "torch",
    "_trial._loaders": "torch",
    "_trial._passes": "torch",
    "_trial._probes": "psutil",
    "_trial._root": "torch",
    "_trial._warden": "psutil",
    "exploring": "hypothesis",
    "fake_files": "pyfakefs torch",
    "plugin": "pytest",
    "strategies._arguments": "hypothesis",
    "strategies._loaders": "hypothesis torch",
    "strategies._of_files": "hypothesis",
    "strategies._of_workers": "hypothesis",
    "strategies._schedules": "hypothesis",
    "strategies._variants": "hypothesis",
    "strategies._victims": "hypothesis",
}
"""Modules that import what is neither ours nor the standard library's; all others do not."""

PURE = (
    "_arguments _checks _clarity _evidence _facts _oracle _reproduce _texts _trial._clock"
    " _unfired exceptions faults outcomes verdicts"
).split()
ELSEWHERE = ["_trial._root", "_trial._child", "_trial._warden"]
"""Run in a worker or a trial, as does all of ``_engine``."""
UPWARD = {("outcomes", "_oracle")}
"""``Outcome.judge`` is a convenience that users call, and no trial does."""


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix("__init__").removesuffix(".")] = path
    return found


MODULES = _modules()


def _tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _walk(node: ast.AST, *, into_functions: bool) -> Iterator[ast.AST]:
    """*node* and what is in it, without what only type checkers see."""
    yield node
    for child in ast.iter_child_nodes(node):
        deferred = isinstance(child, (ast.FunctionDef, ast.Lambda)) and not into_functions
        if not (deferred or _is_for_types(child)):
            yield from _walk(child, into_functions=into_functions)


def _imported(module: str, *, into_functions: bool = True) -> set[str]:
    """The full names of the modules that *module* imports."""
    names = set()
    for node in _walk(_tree(module), into_functions=into_functions):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            names |= {_module_of(str(node.module), alias.name) for alias in node.names}
    return names


def _module_of(module: str, name: str) -> str:
    """``from module import name``: a module's own name, or one that is in it."""
    return f"{module}.{name}" if f"{module}.{name}".removeprefix(f"{NAME}.") in MODULES else module


def _own(module: str, *, into_functions: bool = True) -> set[str]:
    imported = _imported(module, into_functions=into_functions)
    return {each.removeprefix(f"{NAME}.") for each in imported if each.startswith(f"{NAME}.")}


def _third_party(module: str) -> set[str]:
    tops = {each.partition(".")[0] for each in _imported(module)}
    return tops - {NAME, *sys.stdlib_module_names}


def _with_packages(modules: set[str], importer: str) -> set[str]:
    """*modules* and the packages they are in, whose ``__init__`` runs first; not *importer*'s."""
    packages = {each.rpartition(".")[0] for each in modules} - {importer.rpartition(".")[0]}
    return modules | (packages & set(MODULES) - {""})


def _reachable(start: str, *, into_functions: bool) -> set[str]:
    """What is imported, directly or not, when *start* is; and, if asked, when it is run."""
    seen, waiting = set(), [start]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            own = _with_packages(_own(module, into_functions=into_functions), module)
            waiting += [each for each in own if (module, each) not in UPWARD]
    return seen


def test_imports_are_as_in_the_table():
    """The table is the rule: a new dependency between modules is a decision to be seen."""
    expected = {module: set(names.split()) for module, names in PACKAGE_IMPORTS.items()}

    assert expected == {module: _own(module) for module in MODULES if module}


def test_third_party_imports_are_as_in_the_table():
    """Heavy libraries are imported in few places."""
    expected = {module: set(names.split()) for module, names in THIRD_PARTY.items()}

    assert expected == {module: found for module in MODULES if (found := _third_party(module))}


def test_root_imports_nothing_until_asked():
    """Importing the package loads none of its modules."""
    assert set() == _own("", into_functions=False)


def test_nothing_imports_the_plugin():
    """What pytest loads is at the top."""
    importers = {module for module in MODULES if {"plugin", "_item"} & _own(module)}

    assert importers <= {"plugin"}


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_no_third_party(module):
    """Vocabulary and judgement need nothing but the standard library."""
    assert set() == {
        each for one in _reachable(module, into_functions=False) for each in _third_party(one)
    }


@pytest.mark.parametrize(
    "module", [*ELSEWHERE, *(each for each in MODULES if each.startswith("_engine"))]
)
def test_what_runs_elsewhere_reaches_no_judgement(module):
    """Code of workers and trials reaches neither pytest, nor Hypothesis, nor the oracle."""
    reached = _reachable(module, into_functions=True)
    libraries = {each for one in reached for each in _third_party(one)}
    above = {"conformance", "plugin", "strategies", "report"}
    judging = {"_oracle", "_checks", "_battery", "_evidence", "_item", "_options"}

    assert set() == reached & (above | judging)
    assert set() == libraries & {"pytest", "_pytest", "hypothesis"}


def test_supervisor_starts_without_torch():
    """The process that answers calls is started often: it must be light."""
    reached = _reachable("_engine._supervisor_main", into_functions=True)

    assert set() == {each for module in reached for each in _third_party(module)}


def test_the_python_engine_needs_nothing_of_the_kernels():
    """Its worker loads no system call numbers, which not every machine has."""
    reached = _reachable("_engine._python._worker", into_functions=False)
    reached |= _reachable("_engine._arm", into_functions=False)

    assert set() == reached & {"_engine._linux", "_engine._bpf", "_engine._target"}


def test_imports_have_no_cycle():
    """Modules can be read from the bottom up; packages count as imported by what is in them."""
    graph = {
        module: _with_packages(_own(module, into_functions=False), module) - {module}
        for module in MODULES
    }

    assert set(MODULES) == set(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("module", MODULES)
def test_module_is_short(module):
    """A module is read in one sitting."""
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) < MOST_LINES


def _lines(function: ast.FunctionDef) -> int:
    """How long it is without its docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    told = ast.get_docstring(function) is not None
    return lines - ((first.end_lineno or 0) - first.lineno + 1 if told else 0)


def _functions() -> dict[str, int]:
    return {
        f"{module}.{node.name}:{node.lineno}": _lines(node)
        for module in MODULES
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.FunctionDef)
    }


def test_functions_are_short():
    """No function is over the limit, and most are far below it."""
    functions = _functions()
    lengths = sorted(functions.values())

    assert {name: n for name, n in functions.items() if n > MOST_LINES_OF_A_FUNCTION} == {}
    assert statistics.quantiles(lengths, n=10)[-1] <= NINE_IN_TEN
    assert statistics.median(lengths) <= HALF


def test_every_module_says_what_it_is():
    """A module begins with a sentence about its purpose."""
    assert [module for module in MODULES if not ast.get_docstring(_tree(module))] == []
