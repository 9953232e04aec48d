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
from pytest_dataloader_faults._trial.process import clock
from pytest_dataloader_faults.outcomes import contract
from pytest_dataloader_faults.outcomes.contract import Cause
from support.causes import all_causes
from support.inner import start_python
from support.scripts import ROOT, load_script
from support.servers import http_server
from support.waiting import output_of

generate = load_script("docs/generate.py")
pages = load_script("docs/checks.py")
GUIDE = ROOT / contract.GUIDE
TEXTS = [path.read_text(encoding="utf-8") for path in (GUIDE, pages.MORE_EXAMPLES)]
MODULES = ("my_data", "my_ranks", "my_state")
"""What the examples share; the pages have them as files."""
MORE_SECONDS = 6.0
"""Beyond the deadline, for what sleeps or goes on."""
_MARK = re.compile(r"([\w-]+) (\w+)(?:, (.+?))??(?: \|(.*))?")


class Example(NamedTuple):
    """The change of one section; the fixed code may need other arguments of ``check_dataset``."""

    cause: str
    check: str
    verdict: str
    options: str
    options_of_fixed: str
    change: str

    def code(self, side: str) -> str:
        """The module before ("-") or after ("+") the change."""
        lines = (line for line in self.change.splitlines() if line[:1] in ("", " ", side))
        return "\n".join(line[1:] for line in lines) + "\n"

    def arguments(self, side: str, folder: Path) -> dict[str, Any]:
        options = self.options if side == "-" else self.options_of_fixed
        names = {"Contract": Contract, "folder": folder, "list": list, "dict": dict}
        return dict(eval(f"dict({options})", names))  # noqa: S307  # our own page


def _examples(text: str) -> list[Example]:
    found = []
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        for block in generate.blocks(section):
            if block.kind == "change":
                check, verdict, options, fixed = _MARK.fullmatch(block.argument).groups("")
                fixed = fixed.strip() if "|" in block.argument else options
                cause = section.partition("\n")[0]
                found.append(Example(cause, check, verdict, options, fixed, block.text))
    return found


EXAMPLES = [pytest.param(each, id=each.cause) for text in TEXTS for each in _examples(text)]
_HEADINGS = re.findall(r"^### (.+)$", TEXTS[0], re.MULTILINE)


def test_each_verdict_and_each_likely_cause_has_a_section():
    named = [*map(str, Verdict), *dict.fromkeys(cause.phrase for cause in all_causes())]
    assert sorted(_HEADINGS) == sorted(named)


def test_the_page_is_what_the_code_says():
    assert TEXTS[0] == pages.guide()


def test_a_cause_without_a_fix_has_no_anchor():
    assert Cause("its ranks do not agree").section == ""


def test_each_cause_has_the_anchor_of_its_heading():
    links = {heading: f"[x](#{Cause(heading, fix='x').section})" for heading in _HEADINGS}
    slugs = {h: re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in _HEADINGS}
    assert links == {heading: f"[x](#{slug})" for heading, slug in slugs.items()}


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """The data of the examples; the modules that they share can be imported."""
    home = tmp_path_factory.mktemp("examples")
    for text in TEXTS:
        for block in generate.blocks(text):
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
def _run(folder, monkeypatch):
    monkeypatch.setattr(clock, "MORE_SECONDS", MORE_SECONDS)

    def run(example: Example, side: str) -> tuple[str, str]:
        name = re.sub(r"\W+", "_", example.cause) + {"-": "_fails", "+": "_passes"}[side]
        code, options = example.code(side), example.arguments(side, folder)
        (folder.parent / f"{name}.py").write_text(code, encoding="utf-8")
        if "check_dataset(" in code:
            return _run_script(f"{name}.py", folder.parent)
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
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_fails_for_its_cause_and_passes_once_it_is_changed(example, run):
    assert run(example, "-") == (example.verdict, example.cause)
    assert run(example, "+") in [("survived", ""), ("failed_cleanly", "")]
