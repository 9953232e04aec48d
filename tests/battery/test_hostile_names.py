"""Files may have any name: bytes that are no text, newlines, escapes, what globs are made of."""

import mmap
import os

import pytest

from pytest_dataloader_faults import check_dataset, inject
from pytest_dataloader_faults._engine.system.proc import inherited_mappings
from pytest_dataloader_faults.exceptions import FaultNotFiredError, InvalidArgumentError
from pytest_dataloader_faults.faults import OpenError
from pytest_dataloader_faults.outcomes.error_text import mentions_path
from support.datasets import SIZE, Records
from support.epochs import alone, epoch
from support.rows import rows

NAMES = [
    b"\xff\xfe-bad.bin",
    b"two\nFAILED evil.py::test_it - hacked.bin",
    b"\x1b]0;owned\x07\x1b[2J\x1b[31m.bin",
    b"back\rto the start.bin",
    b"[0-9]*?[!x].bin",
    b'it\'s "quoted" \\012 \\n.bin',
    "\u2028line\u202eright to left\x85.bin".encode(),
    b"x" * 251 + b".bin",
]
FIRST = [os.fsdecode(name) for name in NAMES]


@pytest.fixture(name="hostile")
def _hostile(tmp_path):
    folder = tmp_path / "hostile"
    folder.mkdir()
    for number, name in enumerate(FIRST):
        (folder / name).write_bytes(bytes(range(number, number + SIZE)))
    return folder


def _can_be_shown(text):
    text.encode()
    return all(line.isprintable() for line in text.split("\n"))


CHECKS = ["open-error", "truncated-file", "corrupted-file", "read-error", "closed-descriptor"]


def test_checks_of_files_run_over_them(hostile):
    results = check_dataset(lambda: Records(hostile), only=CHECKS, on_fail=None)
    assert [(each.check, each.passed) for each in results] == [(name, True) for name in CHECKS]


def test_what_did_not_happen_can_be_printed(hostile):
    with pytest.raises(FaultNotFiredError) as raised, inject(OpenError("*/none")):
        epoch(alone(Records(hostile)))
    assert _can_be_shown(str(raised.value))
    with pytest.raises(InvalidArgumentError) as refused:
        check_dataset(lambda: Records(hostile), files="*/none", only=["open-error"])
    assert _can_be_shown(str(refused.value))


def test_mappings_of_them_are_seen(hostile):
    """The kernel escapes a newline in its list of mappings, and nothing else."""
    files = []
    for path in hostile.iterdir():
        with open(path, "rb") as file:
            files.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    mapped = {each.path for each in inherited_mappings(lambda _path: True)}
    assert {str(path) for path in hostile.iterdir()} <= mapped
    assert len(files) == len(NAMES)


@rows("name", FIRST)
def test_a_name_is_known_as_python_shows_it(name):
    assert mentions_path(str(OSError(5, "Input/output error", f"/data/{name}")), f"/data/{name}")
