"""The demo as a user starts it: its output and its exit code."""

import inspect
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import data
import demo
import example_datasets
from pytest_dataloader_faults import check_dataset
from support.rows import rows
from support.waiting import allowed

CHECK = "workers-agree"
EXPECTED = demo.read_matrix(demo.EXPECTED.read_text())
GOOD = {"survived", "failed_cleanly", "-"}


@pytest.fixture(name="copied")
def _copied(examples):
    """A copy of the examples, beside a folder of its own for temporary files.

    Its path is short: what torch's workers share travels by sockets below it, whose paths may have
    107 bytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tmp").mkdir()
        yield Path(shutil.copytree(examples, Path(folder, "examples")))


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


def test_few_datasets(monkeypatch, capsys):
    """The demo asks one check only, which HandlesInInit fails."""
    monkeypatch.setattr(demo, "CHECKS", (CHECK,))
    assert demo.main([]) == 0

    *parts, verdict, footer = capsys.readouterr().out.split("\n\n")
    assert [part.splitlines()[0] for part in parts] == [demo.about(name) for name in demo.SHORT]
    for name, part in zip(demo.SHORT, parts, strict=True):
        assert part.splitlines()[1].startswith(f"{name}: 1 ")
    assert verdict == "The verdicts are the expected ones."
    assert footer == demo.NEXT.format(count=len(EXPECTED), checks=1, total=demo.TOTAL).lstrip()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_datasets(copied):
    process = _start(copied, "--all", timeout=840)

    assert (process.returncode, process.stderr) == (0, "")
    assert demo.EXPECTED.read_text() in process.stdout


def test_what_is_next_exists(examples):
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
    with pytest.raises(SystemExit) as raised:
        demo.main(arguments)

    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_unknown_dataset(capsys):
    with pytest.raises(SystemExit):
        demo.main(["--only", "Nobody"])

    error = capsys.readouterr().err
    assert [name for name in EXPECTED if name not in error] == []


def test_wrong_expectation(tmp_path, monkeypatch, capsys):
    table = tmp_path / "expected.txt"
    table.write_text("  Careful\nworkers-agree  hung\n")
    make = demo.examples(data.build(tmp_path))["Careful"]
    results = {"Careful": check_dataset(make, only="workers-agree")}
    monkeypatch.setattr(demo, "EXPECTED", table)
    monkeypatch.setattr(demo, "try_all", lambda *_: results)

    assert demo.main([]) == 1

    last_line = capsys.readouterr().out.splitlines()[-1]
    assert last_line == "Careful workers-agree: expected hung, found survived"


@rows("of", dict.fromkeys(name.partition("-")[0] for name in EXPECTED))
def test_docstring_tells_the_verdict(of):
    of_class = [cells for name, cells in EXPECTED.items() if name.partition("-")[0] == of]
    fails = not {cell for cells in of_class for cell in cells.values()} <= GOOD
    doc = inspect.getdoc(getattr(example_datasets, of))

    assert (fails, not fails) == ("\nFlaw: " in doc, "\nHealthy" in doc)


def test_matrix_holds_every_example():
    assert list(EXPECTED) == list(demo.examples(Path()))


def test_matrix_is_written_as_the_demo_prints_it():
    assert demo.table(EXPECTED) == demo.EXPECTED.read_text()
