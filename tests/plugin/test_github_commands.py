"""In a job of GitHub Actions, no text of the user's data is read as a workflow command."""

import json
import re

import pytest

from pytest_dataloader_faults.exceptions import _escape_for_log
from pytest_dataloader_faults.report import ci, files
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.model import Report
from support.reports import failed
from support.rows import rows

pytestmark = pytest.mark.usefixtures("engine")

COMMANDS = "::stop-commands::x\n \t::add-mask::pass\n##[group]a\nb ##[error]c"
SUITE = f"""
import os

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


@pytest.mark.dataloader_faults(only="open-error")
def test_check(fault_check, records):
    fault_check(lambda: Prints(records))
"""


def _commands(text):
    """The lines of *text* that GitHub's runner reads as commands, without the plugin's own."""
    lines = re.split(r"[\r\n]", text)
    commands = [line for line in lines if line.lstrip().startswith("::") or "##[" in line]
    return [line for line in commands if not line.startswith("::error file=")]


def test_failures_issue_no_commands(suite, monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    text = suite.run(SUITE).stdout.str()
    assert _commands(text) == []
    assert "\n::error file=" in text
    assert "## [group]a" in text


def test_commands_of_reports_issue_no_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    hostile = failed(nodeid=COMMANDS, test=COMMANDS, sentence=COMMANDS, explanation=COMMANDS)
    hostile = Report(items=(hostile, failed(nodeid="##[group]", cause="::a::b")))
    paths = [str(tmp_path / name) for name in ("old.json", "new.json", "all.md")]
    files.write(Report(), paths[0])
    files.write(hostile, paths[1])
    assert main(["compare", *paths[:2]]) == 1
    assert main(["merge", *paths[:2], "-o", paths[2]]) == 0
    (tmp_path / "bad.json").write_text(json.dumps({"version": COMMANDS}))
    assert main(["merge", str(tmp_path / "bad.json"), "-o", paths[2]]) == 2
    printed = capsys.readouterr()
    page = (tmp_path / "all.md").read_text()
    texts = [printed.out, printed.err, ci.render(hostile), page]
    assert [_commands(each) for each in texts] == [[]] * 4


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
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert _escape_for_log(text) == shown
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert _escape_for_log(text) == text
