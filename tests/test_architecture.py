"""What loads what, and how large a folder, a module and a function may get.

Which layer may import which is in ``pyproject.toml``, for import-linter.
"""

import ast
import dataclasses
import functools
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest_dataloader_faults
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes import Outcome
from support.rows import rows

NAME = "pytest_dataloader_faults"
ROOT = Path(pytest_dataloader_faults.__file__).parent
MOST_ENTRIES_OF_THE_ROOT, MOST_ENTRIES = 17, 16
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 500, 40
MOST_MODULES = 180
MOST_FIELDS_OF_AN_OUTCOME = 16


NINE_IN_TEN, HALF = 30, 10
NO_ENTRIES = {"__pycache__", "py.typed"}

_VOCABULARY = "_arguments _settings exceptions faults outcomes steps wire".split()
PURE = [*_VOCABULARY, "battery.checks", "outcomes.judge"]
ELSEWHERE = ["_trial.run", "_trial.warden", "_engine.supervisor.start"]
"""Run in a worker, a trial or a supervisor."""
JUDGE = "outcomes.judge"
READERS = ["open", "os.listdir", "os.readlink", "os.scandir", "glob.glob", "glob.iglob"]


STATE = {
    "_engine.fake.scopes_with_workers": "pyfakefs itself has one list of what it skips",
    "_engine.client._unreaped": "a supervisor may end after its scope",
    "_engine.system.processes._interrupted": "a signal handler is told nothing but the signal",
    "_engine.system.processes._own": "a signal handler is told nothing but the signal",
    "_trial.loaders._outer": "what a loop iterates in place of a loader, in the process of a trial",
    "_trial.loaders._running": "what would end pytest's workers if it were collected",
    "_trial.process.fork_server._started": "one process has torch, for all trials of this one",
    "battery.checks.CHECKS": "a run of pytest adds the user's checks, and removes them at its end",
    "faults.base.KINDS": "filled as the classes are made",
}
"""What changes at the level of a module, and why it is no argument."""
CHANGING = {"append", "add", "update", "remove", "pop", "clear", "extend", "discard", "setdefault"}


def _modules() -> dict[str, Path]:
    modules = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts).removesuffix("__init__").removesuffix(".")] = path
    return modules


MODULES = _modules()


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def _is_type_checking_block(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _walk(node: ast.AST, *, into_functions: bool) -> Iterator[ast.AST]:
    """*node* and what is in it, without what only type checkers see."""
    yield node
    for child in ast.iter_child_nodes(node):
        deferred = isinstance(child, (ast.FunctionDef, ast.Lambda)) and not into_functions
        if not (deferred or _is_type_checking_block(child)):
            yield from _walk(child, into_functions=into_functions)


@functools.cache
def _imported_names(module: str, *, into_functions: bool) -> set[str]:
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


def _own_modules(module: str, *, into_functions: bool) -> set[str]:
    imported = _imported_names(module, into_functions=into_functions)
    modules = {each.removeprefix(f"{NAME}.") for each in imported if each.startswith(f"{NAME}.")}
    return modules | {each.rpartition(".")[0] for each in modules} - {""}


def _third_party_modules(module: str, *, into_functions: bool) -> set[str]:
    tops = {
        name.partition(".")[0] for name in _imported_names(module, into_functions=into_functions)
    }
    return tops - {NAME, *sys.stdlib_module_names}


def _reachable(start: str, *, into_functions: bool) -> set[str]:
    """What is imported, directly or not, when *start* is; and, if asked, when it is run.

    ``Outcome.judge`` is for users: no trial calls it.
    """
    reached, waiting = set(), [start]
    while waiting:
        module = waiting.pop()
        if module not in reached and not (module == JUDGE and start != JUDGE):
            reached.add(module)
            waiting += _own_modules(module, into_functions=into_functions)
    return reached


def _packages_reachable(start: str, *, into_functions: bool) -> set[str]:
    modules = _reachable(start, into_functions=into_functions)
    return set().union(*(_third_party_modules(m, into_functions=into_functions) for m in modules))


def test_root_imports_nothing_until_requested():
    assert set() == _own_modules("", into_functions=False)


@rows("module", PURE)
def test_pure_modules_import_no_third_party(module):
    assert set() == _packages_reachable(module, into_functions=False)


IMPORT_CHECKS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("pytest_dataloader_faults._engine", "pytest_dataloader_faults._trial")):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes import Outcome
print(len(CHECKS))
"""


def test_the_checks_need_no_engine():
    """So they can be listed on every system, and read without a process that is started."""
    process = subprocess.run(
        [sys.executable, "-c", IMPORT_CHECKS], capture_output=True, text=True, check=False
    )

    assert (str(len(CHECKS)), "") == (process.stdout.strip(), process.stderr)


@rows("module", [*ELSEWHERE, *(each for each in MODULES if each.startswith("_engine"))])
def test_what_runs_elsewhere_reaches_no_judgement(module):
    """Code of workers and trials reaches neither pytest, nor Hypothesis, nor the judge."""
    reached = _reachable(module, into_functions=True)
    libraries = _packages_reachable(module, into_functions=True)

    assert [] == [each for each in reached if each.startswith((JUDGE, "battery", "plugin"))]
    assert set() == libraries & {"pytest", "_pytest", "hypothesis"}


def test_supervisor_starts_without_torch():
    """The process that answers calls is started often: it must be light."""
    assert set() == _packages_reachable("_engine.supervisor.start", into_functions=True)


def _reads_proc(node: ast.AST) -> bool:
    """Whether it lists or reads there; an open of a descriptor's link is no look at /proc."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in READERS or not node.args:
        return False
    return ast.unparse(node.args[0]).lstrip("frb").startswith(("'/proc", '"/proc'))


def test_one_module_reads_proc():
    assert ["_engine.system.proc"] == [
        module for module in MODULES if any(map(_reads_proc, ast.walk(_tree(module))))
    ]


def _changed_targets(node: ast.AST) -> Iterator[ast.expr]:
    """What *node* changes in place: it calls a method such as ``append``, or assigns a part."""
    if isinstance(node, ast.Global):
        yield from (ast.Name(name) for name in node.names)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from [node.func.value] if node.func.attr in CHANGING else []
    elif isinstance(node, (ast.Assign, ast.Delete)):
        yield from (each.value for each in node.targets if isinstance(each, ast.Subscript))


def _module_state(module: str) -> set[str]:
    """The names of *module* that its functions change."""
    targets = {
        ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        for node in _tree(module).body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
    }
    functions = (each for each in ast.walk(_tree(module)) if isinstance(each, ast.FunctionDef))
    nodes = (node for each in functions for node in ast.walk(each))
    return targets & {ast.unparse(each) for node in nodes for each in _changed_targets(node)}


def test_what_changes_is_an_argument():
    state = {f"{module}.{name}" for module in MODULES for name in _module_state(module)}

    assert state - STATE.keys() == set()


def test_folders_are_short():
    for folder in {path.parent for path in MODULES.values()}:
        entries = [each for each in folder.iterdir() if each.name not in NO_ENTRIES]
        limit = MOST_ENTRIES_OF_THE_ROOT if folder == ROOT else MOST_ENTRIES
        assert len(entries) <= limit, folder


def _outside_users(module: str) -> list[str]:
    folder = module.rpartition(".")[0]
    users = (user for user in MODULES if module in _own_modules(user, into_functions=True))
    return [user for user in users if user != folder and not user.startswith(f"{folder}.")]


def test_what_is_private_is_imported_in_its_folder_only():
    private = [each for each in MODULES if "." in each and each.rpartition(".")[2][0] == "_"]

    assert {module: _outside_users(module) for module in private if _outside_users(module)} == {}


def test_only_the_register_of_checks_imports_a_slice():
    """So a reader of the others needs to know nothing of it, and it can change alone."""
    slices = [name for name in MODULES if re.fullmatch(r"battery\.checks\.[a-z][a-z_]*", name)]
    assert slices
    for package in slices:
        users = [each for each in MODULES if package in _own_modules(each, into_functions=True)]
        outside = [each for each in users if not f"{each}.".startswith(f"{package}.")]
        assert outside == ["battery.checks"], package


def test_there_are_few_modules():
    """A subject is one module, so that its place is found from the listing alone."""
    assert len(MODULES) <= MOST_MODULES


def test_modules_are_short_and_say_what_they_are():
    lengths = {name: len(path.read_text("utf-8").splitlines()) for name, path in MODULES.items()}

    assert {name: lines for name, lines in lengths.items() if lines >= MOST_LINES} == {}
    assert [module for module in MODULES if not ast.get_docstring(_tree(module))] == []


def test_an_outcome_has_few_fields():
    """A further kind of pass is a phase, and the facts of one feature are notes."""
    assert len(dataclasses.fields(Outcome)) <= MOST_FIELDS_OF_AN_OUTCOME


def _lines(function: ast.FunctionDef) -> int:
    lines = (function.end_lineno or 0) - function.lineno + 1
    docstring = function.body[0]
    has_docstring = ast.get_docstring(function) is not None
    return lines - ((docstring.end_lineno or 0) - docstring.lineno + 1 if has_docstring else 0)


def test_functions_are_short():
    functions = {
        f"{module}.{node.name}:{node.lineno}": _lines(node)
        for module in MODULES
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.FunctionDef)
    }
    lengths = sorted(functions.values())

    assert {name: n for name, n in functions.items() if n > MOST_LINES_OF_A_FUNCTION} == {}
    assert statistics.quantiles(lengths, n=10)[-1] <= NINE_IN_TEN
    assert statistics.median(lengths) <= HALF
