"""The demo as a user starts it: its output and its exit code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import data
import demo
from pytest_dataloader_faults import check_dataset
from support.waiting import allowed

CHECK = "workers-agree"
EXPECTED = demo.read_matrix(demo.EXPECTED.read_text())


@pytest.fixture(name="copied")
def _copied(examples):
    """A copy of the examples, beside a folder of its own for temporary files.

    Its path is short: what torch's workers share travels by sockets below it, whose paths may have
    107 bytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tmp").mkdir()
        yield Path(shutil.copytree(examples, Path(folder, "examples")))


@pytest.fixture(name="one_check")
def _one_check(monkeypatch):
    """The demo asks one check only, which HandlesInInit fails."""
    monkeypatch.setattr(demo, "CHECKS", (CHECK,))


def _start(folder, *arguments, timeout=110):
    inherited = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    return subprocess.run(
        [sys.executable, str(folder / "demo.py"), *arguments],
        env=inherited | {"TMPDIR": str(folder.parent / "tmp")},
        capture_output=True,
        text=True,
        timeout=allowed(timeout),
        check=False,
    )


def test_few_datasets(one_check, capsys):
    """Without an option it says what each of three datasets is about, and what is next."""
    assert demo.main([]) == 0

    *parts, verdict, after = capsys.readouterr().out.split("\n\n")
    assert [part.splitlines()[0] for part in parts] == [demo.about(name) for name in demo.SHORT]
    for name, part in zip(demo.SHORT, parts, strict=True):
        assert part.splitlines()[1].startswith(f"{name}: 1 ")
    assert verdict == "The verdicts are the expected ones."
    assert after == demo.NEXT.format(count=len(EXPECTED)).lstrip()


def test_all_datasets_by_one_check(one_check, capsys):
    """--all tries every dataset, and prints a table of them all."""
    assert demo.main(["--all"]) == 0

    summaries, table = capsys.readouterr().out.partition(demo.LEGEND)[0].split("\n\n ", 1)
    assert all(f"\n{name}: 1 " in summaries for name in EXPECTED)
    assert demo.read_matrix(f" {table}") == {
        name: {CHECK: row[CHECK]} for name, row in EXPECTED.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_datasets(copied):
    """--all finds in each dataset what is written down."""
    done = _start(copied, "--all", timeout=840)

    assert (done.returncode, done.stderr) == (0, "")
    assert demo.EXPECTED.read_text() in done.stdout


def test_few_datasets_show_each_kind_of_finding():
    """One shares a handle, one gives wrong data and an unclear error, and one is healthy."""
    shared, silent, healthy = ({*EXPECTED[name].values()} for name in demo.SHORT)

    assert EXPECTED[demo.SHORT[0]]["workers-agree"] == "corrupted"
    assert "broken" in shared
    assert {"corrupted", "failed_unclearly"} <= silent
    assert healthy <= {"survived", "failed_cleanly"}


@pytest.mark.parametrize("name", demo.SHORT)
def test_what_a_dataset_is_about_is_one_line(name):
    """Each of the few is introduced by its name, what it does, and whether that is healthy."""
    line = demo.about(name)

    assert line.startswith(f"{name} ")
    assert ". Flaw: " in line or ". Healthy: " in line
    assert line.endswith(".")
    assert "\n" not in line


def test_what_is_next_exists(examples):
    """The page that the demo names is there."""
    pages = [word for word in demo.NEXT.split() if word.endswith(".md")]

    assert pages
    assert all((examples.parent / page).is_file() for page in pages)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only"], "expected one argument"),
        (["--all", "--only", "Careful"], "not allowed with"),
        (["--al"], "unrecognized arguments: --al"),
        (["Careful"], "unrecognized arguments: Careful"),
    ],
)
def test_bad_options(arguments, message, capsys):
    """Options that make no sense are refused with the reason, before anything is tried."""
    with pytest.raises(SystemExit) as raised:
        demo.main(arguments)

    assert raised.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_one_dataset(copied):
    """--only prints its summary and its table; the exit code is 0, and no file is left behind."""
    done = _start(copied, "--only", "Careful")

    assert (done.returncode, done.stderr) == (0, "")
    summary, _, rest = done.stdout.partition("\n\n")
    said, found = summary.splitlines()
    assert said == demo.about("Careful")
    assert found.startswith("Careful: 34 checks passed (23 failed_cleanly, 11 survived); ")
    table, _, verdict = rest.partition(demo.LEGEND)
    assert demo.read_matrix(table) == {"Careful": EXPECTED["Careful"]}
    assert verdict.strip() == "The verdicts are the expected ones."
    assert list((copied.parent / "tmp").iterdir()) == []


def test_wrong_expectation(tmp_path, monkeypatch, capsys):
    """A cell that is not as expected is named, and the exit code is 1."""
    table = tmp_path / "expected.txt"
    table.write_text("  Careful\nworkers-agree  hung\n")
    make = demo.examples(data.build(tmp_path))["Careful"]
    found = {"Careful": check_dataset(make, only="workers-agree")}
    monkeypatch.setattr(demo, "EXPECTED", table)
    monkeypatch.setattr(demo, "try_all", lambda *_: found)

    assert demo.main([]) == 1

    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Careful workers-agree: expected hung, found survived"


@pytest.mark.slow
def test_failures_and_evidence(copied):
    """What fails has its likely cause; --verbose adds how to reproduce each check that applies."""
    done = _start(copied, "--only", "FromFile", "--verbose")

    assert (done.returncode, done.stderr) == (0, "")
    group = "3 checks: accepts a truncated file: truncated-half, truncated-tail, truncated-at-rest"
    assert f"\n  {group}\n" in done.stdout
    reproduced = re.findall(
        r"^  reproduce: check_dataset\(.*\bonly='([\w-]+)'", done.stdout, re.MULTILINE
    )
    applied = {name for name, found in EXPECTED["FromFile"].items() if found != "-"}
    assert sorted(reproduced) == sorted(applied)
    assert {*demo.CHECKS} - applied == {"truncated-next-epoch"}


def test_unknown_dataset(copied):
    """A name that is no example's is refused with the names that are."""
    done = _start(copied, "--only", "Nobody")

    assert done.returncode == 2
    assert all(name in done.stderr for name in EXPECTED)
