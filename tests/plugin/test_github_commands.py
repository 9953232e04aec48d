"""In a job of GitHub Actions, no text of the user's data is read as a workflow command."""

from __future__ import annotations

import json
import re

import pytest

from pytest_dataloader_faults.exceptions import _for_log
from pytest_dataloader_faults.report import ci, files
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.model import Report
from support.reports import failed
from support.rows import rows

pytestmark = pytest.mark.usefixtures("engine")

COMMANDS = "::stop-commands::x\n \t::add-mask::pass\n##[group]a\nb ##[error]c"
SUITE = f"""
import os
import sys
import warnings

import pytest
import torch
from torch.utils.data import Dataset

COMMANDS = {COMMANDS!r}


class Prints(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.iterdir())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        try:
            return torch.tensor(list(self.paths[index].read_bytes()))
        except OSError as error:
            os.write(2, f"{{COMMANDS}}\\n".encode())
            raise RuntimeError(COMMANDS) from None


@pytest.mark.dataloader_faults(only=["open-error", "read-error-first"])
def test_check(fault_check, records):
    print(COMMANDS)
    print(COMMANDS, file=sys.stderr)
    fault_check(lambda: Prints(records))


@pytest.mark.dataloader_faults
def test_own(dataloader_faults):
    print(COMMANDS)
    pytest.fail(COMMANDS, pytrace=False)


class Loud:
    def __repr__(self):
        return "\\n" + COMMANDS


@pytest.fixture
def loud():
    return Loud()


@pytest.mark.dataloader_faults
def test_shown(dataloader_faults, loud):
    local = loud
    assert not local


@pytest.mark.dataloader_faults
def test_skipped(dataloader_faults):
    pytest.skip(COMMANDS)


@pytest.mark.dataloader_faults
@pytest.mark.xfail(reason=COMMANDS)
def test_expected(dataloader_faults):
    raise ValueError(COMMANDS)
"""


def _commands(text):
    """The lines of *text* that GitHub's runner reads as commands, without the plugin's own."""
    lines = re.split(r"[\r\n]", text)
    found = [line for line in lines if line.lstrip().startswith("::") or "##[" in line]
    return [line for line in found if not line.startswith("::error file=")]


@pytest.mark.parametrize(
    "options",
    [
        ["-rA", "--showlocals"],
        pytest.param(["-v", "--tb=short"], marks=pytest.mark.slow),
        pytest.param(["-q", "--tb=native", "-rA"], marks=pytest.mark.slow),
        pytest.param(["--tb=line", "-rA"], marks=pytest.mark.slow),
        pytest.param(["-p", "xdist", "-n", "2", "-rA"], marks=pytest.mark.slow),
    ],
)
def test_failures_and_output_issue_no_commands(suite, monkeypatch, options):
    """The plugin's own commands do; what was printed is there."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    text = suite.run(SUITE, *options).stdout.str()
    assert _commands(text) == []
    assert "\n::error file=" in text
    assert "| ::stop-commands::x\n|  \t::add-mask::pass\n## [group]a\nb ## [error]c" in text


def test_elsewhere_texts_stay_as_they_are(light_suite, monkeypatch):
    """Only GitHub reads them as commands."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    source = f"def test_it(dataloader_faults): print({COMMANDS!r}); assert 0"
    assert COMMANDS in light_suite.run(source).stdout.str()


def test_a_known_failure_issues_no_command(light_suite, monkeypatch):
    """Its id is from a file."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    entry = {"id": "::error::x ##[group]", "check": "open-error", "verdict": "hung"}
    (light_suite.path / "known.json").write_text(json.dumps([entry]))
    known = "--dataloader-faults-known=known.json"
    text = light_suite.run("def test_plain(): pass", known).stdout.str()
    assert "|   ::error::x ## [group]" in text
    assert _commands(text) == []


def test_commands_of_reports_issue_no_command(tmp_path, monkeypatch, capsys):
    """Neither in what the command prints, nor in Markdown that a job prints."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    hostile = failed(nodeid=COMMANDS, test=COMMANDS, sentence=COMMANDS, explanation=COMMANDS)
    hostile = Report(engine=COMMANDS, items=(hostile, failed(nodeid="##[group]", cause="::a::b")))
    paths = [str(tmp_path / name) for name in ("old.json", "new.json", "c.md", "all.md")]
    files.write(Report(), paths[0])
    files.write(hostile, paths[1])
    assert main(["compare", *paths[:2], "-o", paths[2]]) == 1
    assert main(["merge", *paths[:2], "-o", paths[3]]) == 0
    (tmp_path / "bad.json").write_text(json.dumps({"version": COMMANDS}))
    assert main(["merge", str(tmp_path / "bad.json"), "-o", paths[3]]) == 2
    printed = capsys.readouterr()
    texts = [printed.out, printed.err, ci.render(hostile)]
    texts += [(tmp_path / name).read_text() for name in ("c.md", "all.md")]
    assert [_commands(each) for each in texts] == [[]] * 5


@rows(
    ("text", "shown"),
    [
        ("a::b", "a::b"),
        ("::a", "| ::a"),
        ("a\n\u3000::b\n", "a\n| \u3000::b\n"),
        ("a\r::b", "a\r| ::b"),
        ("\n\n::a", "\n\n| ::a"),
        ("a##[b", "a## [b"),
        ("##[##[", "## [## ["),
    ],
)
def test_where_a_command_begins(monkeypatch, text, shown):
    """Behind blanks at the start of a line, or anywhere in its older form."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert _for_log(text) == shown
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert _for_log(text) == text
