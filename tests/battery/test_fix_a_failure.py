"""The guide to failed checks: each verdict and cause has a section, and its examples are right."""

import functools
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from pytest_dataloader_faults import Contract, Verdict, check_dataset
from pytest_dataloader_faults._trial.process import deadline
from pytest_dataloader_faults.outcomes import contract
from pytest_dataloader_faults.outcomes.contract import Cause
from support.causes import all_causes
from support.inner import start_python
from support.rows import rows
from support.scripts import ROOT, load_script
from support.servers import http_server
from support.waiting import output_of

generate = load_script("docs/generate.py")
GUIDE = ROOT / contract.GUIDE
FAMILIES = sorted(GUIDE.with_suffix("").glob("*.md"))
MODULES = ("my_data", "my_ranks", "my_state")
"""What the examples share; the pages have them as files."""
NOT_RUN = (
    "hangs or crashes intermittently without a fault",
    "fails intermittently without a fault",
)
"""Their examples fail at random. test_confirmation.py has datasets that fail when it says so."""
MORE_SECONDS = 6.0
"""Beyond the deadline, for what sleeps or goes on."""
_FAILS = re.compile(r"^(?:Fails|Warns in) `([\w-]+)` with `(\w+)`(?:, because .+)?:$", re.MULTILINE)
_LINK = re.compile(r'^- <a id="(.+)"></a>\[(.+)\]\((.+)#(.+)\)$', re.MULTILINE)
_SAYS_WHAT_TO_DECLARE = re.compile(
    r"intentional|Contract\(|expected_failures=|exclude=|loader=|deadline=|files="
    r"|drop `|do not give it|compare its size|seed the generator"
)


class Example(NamedTuple):
    """The code of one side of a section, and the arguments of ``check_dataset`` for it."""

    code: str
    check: str
    options: str

    def arguments(self, folder: Path) -> dict[str, Any]:
        names = {"Contract": Contract, "folder": folder, "list": list, "dict": dict}
        return dict(eval(f"dict({self.options})", names))  # noqa: S307  # our own page


class Section(NamedTuple):
    """One likely cause."""

    page: Path
    cause: str
    text: str

    @property
    def examples(self) -> dict[str, Example]:
        found = [each for each in generate.blocks(self.text) if each.kind in ("fails", "passes")]
        marks = {each.kind: (each.text, each.argument.partition(", ")) for each in found}
        return {kind: Example(text, mark[0], mark[2]) for kind, (text, mark) in marks.items()}

    @property
    def module(self) -> str:
        return re.sub(r"\W+", "_", self.cause)


def _sections(page: Path) -> list[Section]:
    _, *parts = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [Section(page, *part.split("\n", 1)) for part in parts]


SECTIONS = {each.cause: each for page in FAMILIES for each in _sections(page)}
RUN = [pytest.param(each, id=each.cause) for each in SECTIONS.values() if each.cause not in NOT_RUN]


def test_each_likely_cause_has_a_section():
    assert SECTIONS.keys() == {cause.phrase for cause in all_causes()}
    assert sum(len(_sections(page)) for page in FAMILIES) == len(SECTIONS)


def test_each_verdict_has_a_section():
    headings = re.findall(r"^### (.+)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [str(each) for each in Verdict]


def test_the_guide_links_to_each_section():
    links = _LINK.findall(GUIDE.read_text(encoding="utf-8"))
    expected = [
        (Cause(each.cause, fix="x").section, each.cause, str(each.page.relative_to(GUIDE.parent)))
        for each in SECTIONS.values()
    ]
    assert sorted((anchor, cause, page) for anchor, cause, page, _ in links) == sorted(expected)
    assert [anchor for anchor, *_, target in links if anchor != target] == []


def test_what_has_no_section_has_no_anchor():
    assert Cause("its ranks do not agree").section == ""


@rows("section", SECTIONS.values(), ids=SECTIONS)
def test_each_section_is_complete(section):
    assert _SAYS_WHAT_TO_DECLARE.search(section.text)
    if section.cause in NOT_RUN:
        return
    examples = section.examples
    assert examples.keys() == {"fails", "passes"}
    ((check, verdict),) = _FAILS.findall(section.text)
    assert {check} == {each.check for each in examples.values()}
    assert verdict in set(map(str, Verdict))


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """The data of the examples; the modules that they share can be imported."""
    home = tmp_path_factory.mktemp("examples")
    for page in (GUIDE, *FAMILIES):
        for block in generate.blocks(page.read_text(encoding="utf-8")):
            if block.kind == "module":
                (home / block.argument).write_text(block.text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(home)
        data = home / "data"
        data.mkdir()
        importlib.import_module("my_data").write_data(data)
        yield data
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture(name="run")
def _run(folder, request, monkeypatch):
    """A function that runs the example of one side; the verdict and the cause."""
    monkeypatch.setattr(deadline, "MORE_SECONDS", MORE_SECONDS)

    def run(section: Section, side: str) -> tuple[str, str]:
        example = section.examples[side]
        if example.check == "pickles":
            request.getfixturevalue("hash_seeds")
        name = f"{section.module}_{side}"
        (folder.parent / f"{name}.py").write_text(example.code, encoding="utf-8")
        if "check_dataset(" in example.code:
            return _run_script(f"{name}.py", folder.parent)
        options = example.arguments(folder)
        make_dataset = _factory(importlib.import_module(name), folder, options)
        return _check(make_dataset, example.check, options)

    with http_server(folder) as url:
        monkeypatch.setenv("DATA_URL", url)
        yield run


def _factory(module: ModuleType, folder: Path, options: dict[str, Any]) -> Any:
    """What makes the dataset of a module: of the data, or of a copy that a trial makes of them."""
    make_dataset = getattr(module, "make_dataset", None) or module.MyDataset
    return make_dataset if "copy" in options else functools.partial(make_dataset, folder)


def _run_script(name: str, folder: Path) -> tuple[str, str]:
    """What a script prints that runs its check itself, as it must be the main module."""
    with start_python(name, cwd=folder) as process:
        printed, errors = output_of(process)
    assert process.returncode == 0, errors
    verdict, _, cause = printed.strip().partition(": ")
    return verdict.rstrip(":"), cause


def _check(make_dataset: Any, check: str, options: dict[str, Any]) -> tuple[str, str]:
    (result,) = check_dataset(make_dataset, only=check, on_fail=None, **options)
    assert result.applies, result.explanation
    return str(result.verdict), result.cause


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest_dataloader_faults.UnclearErrorWarning")
@pytest.mark.parametrize("section", RUN)
def test_the_examples_do_what_the_section_says(section, run):
    ((_, verdict),) = _FAILS.findall(section.text)

    assert run(section, "fails") == (verdict, section.cause)
    assert run(section, "passes") in [("survived", ""), ("failed_cleanly", "")]
