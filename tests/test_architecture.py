"""What loads what, and how large a folder, a module and a function may get.

Which layer may import which is in ``pyproject.toml``, for import-linter.
"""

from __future__ import annotations

import ast
import functools
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest_dataloader_faults
from pytest_dataloader_faults.battery.checks import CHECKS
from support.rows import rows

NAME = "pytest_dataloader_faults"
ROOT = Path(pytest_dataloader_faults.__file__).parent
MOST_ENTRIES_OF_THE_ROOT, MOST_ENTRIES = 16, 16
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 500, 40
MOST_MODULES = 173
NINE_IN_TEN, HALF = 30, 10
NO_ENTRIES = {"__pycache__", "py.typed"}

_VOCABULARY = "_arguments _settings exceptions faults globs outcomes".split()
PURE = [*_VOCABULARY, "battery.checks", "outcomes.judge", "_settings.jobs"]
ELSEWHERE = ["_trial.run", "_trial.child", "_trial.process.warden", "_engine.supervisor.server"]
"""Run in a worker, a trial or a supervisor."""
JUDGE = "outcomes.judge"
READERS = ["open", "os.listdir", "os.readlink", "os.scandir", "glob.glob", "glob.iglob"]


STATE = {
    "_engine.chosen": "a user calls inject(), and no one hands it what pytest reads afterwards",
    "_engine.fake.engine._patched": "a process is patched once, whoever asks",
    "_engine.loader.client._outliving": "a child is waited for by the process that started it",
    "_engine.system.processes._interrupted": "a signal handler is told nothing but the signal",
    "_trial.loaders._outer": "what a loop iterates in place of a loader, in the process of a trial",
    "_trial.loaders._running": "what would end pytest's workers if it were collected",
    "_trial.process.fork_server._started": "one process has torch, for all trials of this one",
    "battery.progress._stages": "what runs inside of what, over calls of the user's",
    "fake_files.transfer._kept": "a worker sees fake files until it ends",
    "fake_files.transfer._scopes": "pyfakefs itself has one list of what it skips",
    "faults.base.KINDS": "filled as the classes are made",
    "injection._noting": "a user calls inject(), and no one hands it what notes the calls",
    "plugin._fault_fixtures": "filled as the fixtures are made",
}
"""What changes at the level of a module, and why it is no argument."""
CHANGING = {"append", "add", "update", "remove", "pop", "clear", "extend", "discard", "setdefault"}


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix("__init__").removesuffix(".")] = path
    return found


MODULES = _modules()


@functools.cache
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


@functools.cache
def _imported(module: str, *, into_functions: bool) -> set[str]:
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


def _own(module: str, *, into_functions: bool) -> set[str]:
    """The modules of this package that *module* imports, and the packages they are in."""
    imported = _imported(module, into_functions=into_functions)
    own = {each.removeprefix(f"{NAME}.") for each in imported if each.startswith(f"{NAME}.")}
    return own | {each.rpartition(".")[0] for each in own} - {""}


def _third_party(module: str, *, into_functions: bool) -> set[str]:
    tops = {each.partition(".")[0] for each in _imported(module, into_functions=into_functions)}
    return tops - {NAME, *sys.stdlib_module_names}


def _reachable(start: str, *, into_functions: bool) -> set[str]:
    """What is imported, directly or not, when *start* is; and, if asked, when it is run.

    ``Outcome.judge`` is for users: no trial calls it.
    """
    seen, waiting = set(), [start]
    while waiting:
        module = waiting.pop()
        if module not in seen and not (module == JUDGE and start != JUDGE):
            seen.add(module)
            waiting += _own(module, into_functions=into_functions)
    return seen


def test_root_imports_nothing_until_asked():
    """Importing the package loads none of its modules."""
    assert set() == _own("", into_functions=False)


@rows("module", PURE)
def test_pure_modules_import_no_third_party(module):
    """Vocabulary and judgement need nothing but the standard library."""
    reached = _reachable(module, into_functions=False)

    assert set() == {name for each in reached for name in _third_party(each, into_functions=False)}


IMPORT_CHECKS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("pytest_dataloader_faults._engine", "pytest_dataloader_faults._trial")):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
from pytest_dataloader_faults.battery.checks import CHECKS
print(len(CHECKS))
"""


def test_the_checks_need_no_engine():
    """So they can be listed on every system, and read without a process that is started."""
    found = subprocess.run(
        [sys.executable, "-c", IMPORT_CHECKS], capture_output=True, text=True, check=False
    )

    assert (str(len(CHECKS)), "") == (found.stdout.strip(), found.stderr)


@rows("module", [*ELSEWHERE, *(each for each in MODULES if each.startswith("_engine"))])
def test_what_runs_elsewhere_reaches_no_judgement(module):
    """Code of workers and trials reaches neither pytest, nor Hypothesis, nor the judge."""
    reached = _reachable(module, into_functions=True)
    libraries = {name for each in reached for name in _third_party(each, into_functions=True)}

    assert [] == [each for each in reached if each.startswith((JUDGE, "battery", "plugin"))]
    assert set() == libraries & {"pytest", "_pytest", "hypothesis"}


def test_supervisor_starts_without_torch():
    """The process that answers calls is started often: it must be light."""
    reached = _reachable("_engine.supervisor.server", into_functions=True)

    assert set() == {name for each in reached for name in _third_party(each, into_functions=True)}


def test_the_python_engine_needs_nothing_of_the_kernels():
    """Its worker loads no system call numbers, which not every machine has."""
    reached = _reachable("_engine.worker.python_session", into_functions=False)
    reached |= _reachable("_engine.worker.arm", into_functions=False)

    assert [] == [each for each in reached if each.startswith("_engine.kernel.")]


def _reads_proc(node: ast.AST) -> bool:
    """Whether it lists or reads there; an open of a descriptor's link is no look at /proc."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in READERS or not node.args:
        return False
    return ast.unparse(node.args[0]).lstrip("frb").startswith(("'/proc", '"/proc'))


def test_one_module_reads_proc():
    """Who asks what we need of procfs, and in which form it is, has one module to read."""
    assert ["_engine.system.proc"] == [
        module for module in MODULES if any(map(_reads_proc, ast.walk(_tree(module))))
    ]


def _changed(node: ast.AST) -> Iterator[ast.expr]:
    """What *node* changes in place: it calls a method such as ``append``, or assigns a part."""
    if isinstance(node, ast.Global):
        yield from (ast.Name(name) for name in node.names)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from [node.func.value] if node.func.attr in CHANGING else []
    elif isinstance(node, (ast.Assign, ast.Delete)):
        yield from (each.value for each in node.targets if isinstance(each, ast.Subscript))


def _state(module: str) -> set[str]:
    """The names of *module* that its functions change."""
    made = [each for each in _tree(module).body if isinstance(each, (ast.Assign, ast.AnnAssign))]
    targets = {
        ast.unparse(each.targets[0] if isinstance(each, ast.Assign) else each.target)
        for each in made
    }
    functions = (each for each in ast.walk(_tree(module)) if isinstance(each, ast.FunctionDef))
    nodes = (node for each in functions for node in ast.walk(each))
    return targets & {ast.unparse(each) for node in nodes for each in _changed(node)}


def test_what_changes_is_an_argument():
    """Modules have no state but what is one for each process, for which the table has a reason."""
    found = {f"{module}.{name}" for module in MODULES for name in _state(module)}

    assert found - STATE.keys() == set()


def test_folders_are_short():
    """The listing of each folder can be taken in at a glance."""
    for folder in {path.parent for path in MODULES.values()}:
        entries = [each for each in folder.iterdir() if each.name not in NO_ENTRIES]
        most = MOST_ENTRIES_OF_THE_ROOT if folder == ROOT else MOST_ENTRIES
        assert len(entries) <= most, folder


def _strangers(module: str) -> list[str]:
    """The modules outside of the folder of *module* that import it."""
    folder = module.rpartition(".")[0]
    users = (user for user in MODULES if module in _own(user, into_functions=True))
    return [user for user in users if user != folder and not user.startswith(f"{folder}.")]


def test_what_is_private_is_imported_in_its_folder_only():
    """An underscore tells who reads a folder what they need not know."""
    private = [each for each in MODULES if "." in each and each.rpartition(".")[2][0] == "_"]

    assert {module: _strangers(module) for module in private if _strangers(module)} == {}


def test_there_are_few_modules():
    """A subject is one module, so that its place is found from the listing alone."""
    assert len(MODULES) <= MOST_MODULES


def test_modules_are_short_and_say_what_they_are():
    """A module is read in one sitting, and begins with a sentence about its purpose."""
    lengths = {name: len(path.read_text("utf-8").splitlines()) for name, path in MODULES.items()}

    assert {name: lines for name, lines in lengths.items() if lines >= MOST_LINES} == {}
    assert [module for module in MODULES if not ast.get_docstring(_tree(module))] == []


def _lines(function: ast.FunctionDef) -> int:
    """How long it is without its docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    has_docstring = ast.get_docstring(function) is not None
    return lines - ((first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0)


def test_functions_are_short():
    """No function is over the limit, and most are far below it."""
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
