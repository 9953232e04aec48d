"""The documentation is true: its examples run, its output is real, and it names what there is."""

import argparse
import ast
import doctest
import errno
import importlib
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import pytest_dataloader_faults as package
from pytest_dataloader_faults import faults as vocabulary
from pytest_dataloader_faults import plugin
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.plugin import _options
from support.old_names import OLD_NAMES
from support.pages import PAGES, TEXTS, check_examples, generate, pages_with_examples
from support.rows import rows
from support.scripts import ROOT, load_script

REFERENCE = "\n".join(text for page, text in TEXTS.items() if "reference" in page.parts)


each_page = rows("page", PAGES, ids=str)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", pages_with_examples(how_to=False), ids=str)
def test_examples_run_and_print_what_the_page_shows(page, tmp_path):
    check_examples(page, tmp_path)


@each_page
def test_what_examples_import_is_there(page):
    package_name = package.__name__
    for block in generate.blocks(TEXTS[page]):
        runs = block.language == "python" and block.kind != "fragment"
        nodes = ast.walk(ast.parse(block.text)) if runs else ()
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(package_name):
                scope: dict[str, object] = {}
                exec(ast.unparse(node), scope)  # noqa: S102  # an import of our own page


@each_page
def test_every_comment_before_a_block_is_understood(page):
    """A misspelt comment would leave its block out without a word."""
    comments = len(re.findall(r"^<!--", TEXTS[page], re.MULTILINE))
    marked = sum(bool(block.kind) for block in generate.blocks(TEXTS[page]))
    assert marked == comments


@each_page
def test_console_blocks_are_generated(page):
    kinds = [b.kind for b in generate.blocks(TEXTS[page]) if b.language == "console"]
    assert kinds == ["output"] * len(kinds)


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", TEXTS[page]):
        path, _, anchor = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        assert linked.exists(), target
        if anchor:
            assert anchor in _anchors(linked.read_text(encoding="utf-8")), target


def _anchors(text):
    """The anchors of a page's headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_cookbook_lists_its_sections():
    text = TEXTS[Path("docs/how-to/cookbook.md")]
    table = re.findall(r"\]\((#[^)]+)\) \|$", text, re.MULTILINE)
    *titles, last = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert last == "Short recipes"
    assert table == [f"#{anchor}" for title in titles for anchor in _anchors(f"## {title}")]


@each_page
def test_options_are_code(page):
    text = re.sub(r"<!--.*?-->|`[^`]+`", "", _without_blocks(TEXTS[page]), flags=re.DOTALL)
    assert re.findall(r"(?<![-|])--\w+", text) == []


@each_page
def test_functions_of_the_package_exist(page):
    references = re.findall(r"`([\w/]+\.py):([A-Za-z_][\w.]*)`", TEXTS[page])
    for path, name in references:
        text = (Path(package.__file__).parent / path).read_text(encoding="utf-8")
        scope: ast.AST | None = ast.parse(text)
        for part in name.split("."):
            scope = {n: node for node in scope.body for n in _names_bound_by(node)}.get(part)
            assert scope, f"{path}: {name}"


def _names_bound_by(node):
    """The names that a statement gives: of a function, a class, or what is assigned."""
    if isinstance(node, ast.Assign):
        return [ast.unparse(each) for each in node.targets]
    return [node.name] if hasattr(node, "name") else []


def test_every_page_is_in_the_index():
    index = TEXTS[Path("docs/index.md")]
    pages = {str(page.relative_to("docs")) for page in PAGES if page.parts[0] == "docs"}
    assert {page for page in pages if page not in index} == {"index.md"}


def _fixtures():
    definitions = [(name, ast.unparse(node)) for name, node in _definitions_of(plugin)]
    names = [name for name, code in definitions if code.startswith("@pytest.fixture\n")]
    return [*names, *plugin._FAULT_FIXTURES]


def _definitions_of(module):
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield ast.unparse(node.targets[0]), node


class _Declared:
    """The options and the ini keys that the plugin declares to a parser of pytest."""

    def __init__(self):
        self.options: list[str] = []
        self.ini_keys: list[str] = []
        _options.add_options(self)

    def getgroup(self, *_):
        return self

    def addoption(self, name, help, **_):  # noqa: A002  # its name in pytest
        if help != argparse.SUPPRESS:
            self.options.append(name)

    def addini(self, name, *_, **__):
        self.ini_keys.append(name)


_DECLARED = _Declared()


def _names():
    kinds = vocabulary.KINDS
    return {
        "fault": kinds,
        "argument of a fault": {field.name for kind in kinds.values() for field in fields(kind)},
        "name in faults": vocabulary.__all__,
        "fixture": _fixtures(),
        "option": _DECLARED.options,
        "ini key": _DECLARED.ini_keys,
        "marker argument": _options.ARGUMENTS,
        "check": CHECKS,
        "verdict": [each.value for each in package.Verdict],
    }


@rows("kind", _names())
def test_the_reference_names_all_there_is(kind):
    code = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`[^`]+`", _without_blocks(REFERENCE)))))
    code |= set(
        re.findall(r"\w+", " ".join(re.findall(r"```text\n(.+?)```", REFERENCE, re.DOTALL)))
    )
    names = list(_names()[kind])
    assert names
    assert [name for name in names if name not in code] == []


def _without_blocks(text):
    return re.sub(r"^```.+?^```", "", text, flags=re.DOTALL | re.MULTILINE)


MODULES = "exceptions fake_files faults injection outcomes search steps strategies"
_PUBLIC = [package, *(importlib.import_module(f"{package.__name__}.{m}") for m in MODULES.split())]
API = TEXTS[Path("docs/reference/python-api.md")]


@rows("module", _PUBLIC, ids=lambda module: module.__name__)
def test_the_api_reference_has_each_public_name(module):
    documented = set(re.findall(r"(?:auto|py:)(?:class|data|function):: (?:[\w.]+\.)?(\w+)", API))
    if re.search(rf"automodule:: {module.__name__}\n   :members:", API):
        return
    modules = {"exceptions", "faults", "strategies"}  # Each has a page.
    documented |= set(vars(package.exceptions))
    assert set(module.__all__) - modules - documented == set()


def _documented_definitions():
    """The public functions, and the public classes that have fields."""
    public = {getattr(module, name) for module in _PUBLIC for name in module.__all__}
    documented = [each for each in public if inspect.isfunction(each) or is_dataclass(each)]
    return sorted(documented, key=lambda definition: definition.__qualname__)


@rows("definition", _documented_definitions(), ids=lambda definition: definition.__name__)
def test_docstrings_name_each_argument(definition):
    homes = (package.faults, package.strategies)
    home = next((m for m in homes if definition.__module__.startswith(m.__name__)), None)
    bases = definition.__mro__ if inspect.isclass(definition) else (definition,)
    text = "\n".join(str(inspect.getdoc(each)) for each in (*bases, home))
    code = r"``(\w+)(?:=[^`]*)?``"  # It may have an example of a value.
    mentions = re.findall(rf"^ +([*\w, ]+): |[*](\w+)[*]|{code}", text, re.MULTILINE)
    words = set(re.findall(r"\w+", str(mentions)))
    assert [name for name in inspect.signature(definition).parameters if name not in words] == []


_WITH_EXAMPLES = [
    path
    for path in Path(package.__file__).parent.rglob("*.py")
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("path", _WITH_EXAMPLES, ids=lambda path: path.stem)
def test_examples_in_docstrings_give_what_they_show(path):
    parts = path.relative_to(Path(package.__file__).parents[1]).with_suffix("").parts
    module = importlib.import_module(".".join(each for each in parts if each != "__init__"))
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed


def test_the_page_of_the_checks_is_what_the_code_says():
    text = TEXTS[Path("docs/reference/checks.md")]
    assert list(CHECKS) == re.findall(r"^### ([\w-]+)$", text, re.MULTILINE)
    assert text == load_script("docs/checks.py").page()


def test_the_reference_gives_each_fault_its_arguments():
    page = TEXTS[Path("docs/reference/faults.md")]
    for name, kind in vocabulary.KINDS.items():
        signature = re.search(rf"^## {name}\n\n`({name}\(.*\))`$", page, re.MULTILINE)[1]
        scope = {**vars(errno), name: kind, "SIGKILL": 9}
        assert eval(signature.replace(" *,", ""), scope) == kind()  # noqa: S307  # our own page
        parameters = inspect.signature(kind).parameters.values()
        assert re.findall(r"(\w+)=", signature) == [each.name for each in parameters]
        by_keyword = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        assert re.findall(r"(\w+)=", signature.partition(" *, ")[2]) == by_keyword


def test_the_reference_gives_the_options_their_defaults():
    page = TEXTS[Path("docs/reference/options.md")]
    rows = re.findall(r"^\| `(--[\w-]+)`<br>`\w+` \| `([^`]+)`", page, re.MULTILINE)
    options = _options._SETTINGS.items()
    assert rows == [(_options.flag(name), str(option.default)) for name, option in options]


def test_no_page_names_an_option_that_is_not_there():
    of_junit = {"dataloader_faults_verdict", "dataloader_faults_check"}
    text = "\n".join(TEXTS.values())
    named = set(re.findall(r"(?<!pytest_)dataloader_faults_\w+", text))
    assert named == of_junit | set(_DECLARED.ini_keys)
    assert set(re.findall(r"--dataloader-faults-[a-z-]*[a-z]", text)) == set(_DECLARED.options)


@each_page
def test_no_page_names_a_check_that_was_renamed(page):
    code = re.findall(r"`([\w-]+)`", TEXTS[page])
    assert {*code} & {*OLD_NAMES} == set()


def test_checks_in_ini_examples_exist():
    examples = re.findall(r"^addopts = --dataloader-faults-exclude=(.+)$", REFERENCE, re.MULTILINE)
    named = {name for example in examples for name in example.split(",")}
    assert named
    assert named <= {*CHECKS}


def test_each_fault_has_a_fixture():
    declared = plugin._FAULT_FIXTURES.items()
    page = TEXTS[Path("docs/reference/faults.md")]
    shown = re.findall(r"^\| `(\w+)` \| .* \| `(\w+)\(", page, re.MULTILINE)
    assert sorted(kind for _, kind in declared) == sorted(vocabulary.KINDS)
    assert sorted((fixture, kind) for kind, fixture in shown) == sorted(declared)


def test_tables_of_faults_and_verdicts_are_complete():
    verdicts = [each.value for each in package.Verdict]
    faults = TEXTS[Path("docs/reference/faults.md")].partition("## Triggers")[0]
    assert re.findall(r"^\| `(\w+)` \|", TEXTS[Path("README.md")], re.MULTILINE) == verdicts
    shown = re.findall(r"^\| `(\w+)` \|", faults, re.MULTILINE)
    assert sorted(shown) == sorted(vocabulary.KINDS)


def test_readme_is_short_and_has_the_command_of_the_tests():
    readme = TEXTS[Path("README.md")]
    assert len(readme.splitlines()) <= 150
    assert ".venv/bin/tox -e tests\n" in readme
    assert ".venv/bin/tox -e tests" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_the_citation_names_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {package.__version__}\n" in citation


def test_an_index_page_has_no_link_that_leads_nowhere():
    tomllib = pytest.importorskip("tomllib", reason="new in Python 3.11")
    read = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    text = (ROOT / "README.md").read_text("utf-8")
    for substitution in read["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"][
        "substitutions"
    ]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    assert re.findall(r"\]\((?!https?:)", text) == []
    assert text.endswith("is in the source distribution, from `docs/index.md` on.\n")
