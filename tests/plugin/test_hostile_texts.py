"""Whatever files, classes and errors are called, reports are printable and command no job."""

import json
import os
import re
import signal

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.exceptions import InvalidArgumentError, _escape_for_log
from pytest_dataloader_faults.report import ci, files
from pytest_dataloader_faults.report.command import main
from pytest_dataloader_faults.report.model import Report
from support.hostile import TEXT, Zeros, hostile_lines, write_hostile
from support.reports import failed
from support.rows import rows

pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
import pytest
from torch.utils.data import DataLoader
from pytest_dataloader_faults.faults import ReadError
from support.hostile import DATASETS, TEXT, Zeros, write_hostile

pytestmark = pytest.mark.dataloader_faults(only="read-error")

@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_hostile(tmp_path_factory.mktemp("data"))

@pytest.mark.parametrize("number", range(len(DATASETS)))
def test_check(fault_check, folder, number):
    fault_check(lambda: DATASETS[number](folder))

def test_parts(fault_check, folder):
    fault_check(lambda: {TEXT: Zeros(folder), f"other{TEXT}": Zeros(folder)})

def test_own_loop(fault_injector, folder):
    fault_injector.inject(ReadError(f"*/none{TEXT}"))
    list(DataLoader(Zeros(folder), num_workers=1))
"""


def test_a_report_is_of_printable_lines(suite):
    """Failures, their short form, set-up errors, parts, faults that never fired; JUnit, too."""
    result = suite.run(SUITE, "--junitxml=j.xml", "-rA", "-v")
    result.assert_outcomes(failed=5)
    assert hostile_lines(result.stdout.str()) == []
    assert hostile_lines((suite.path / "j.xml").read_text(encoding="utf-8")) == []


class Dies(Zeros):
    """Prints, and gets a signal, of which torch prints a text that ends in NUL."""

    def _substitute(self, path):
        os.write(2, f"\0{TEXT}\n".encode())
        os.kill(os.getpid(), signal.SIGBUS)


def test_what_workers_printed_is_of_printable_lines(tmp_path):
    folder = write_hostile(tmp_path)
    (result,) = check_dataset(lambda: Dies(folder), only="read-error", on_fail=None)

    assert hostile_lines(result.explanation) == []
    assert "x00" not in result.explanation
    assert "ERROR: Unexpected bus error" in result.explanation
    assert "\0" not in result.outcome.stderr


@rows(
    "arguments",
    [
        {"loader": {TEXT: 1}},
        {"files": f"*/none{TEXT}"},
        {"only": [f"check{TEXT}"]},
        {"expected_failures": {f"check{TEXT}": "a reason"}},
    ],
)
def test_an_argument_is_shown_in_printable_lines(tmp_path, arguments):
    folder = write_hostile(tmp_path / str(len(os.listdir(tmp_path))))
    with pytest.raises(InvalidArgumentError) as refused:
        check_dataset(lambda: Zeros(folder), **{"only": ["open-error"], **arguments})
    assert hostile_lines(str(refused.value)) == []


COMMANDS = "::stop-commands::x\n \t::add-mask::pass\n##[group]a\nb ##[error]c"
COMMANDS = f"""
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
    text = suite.run(COMMANDS).stdout.str()
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
    assert main(["merge", str(tmp_path / "bad.json"), "-o", paths[2]]) == 4
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
