"""The search and the battery, over fake files."""

import functools
import sys
from pathlib import Path

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase

from pytest_dataloader_faults import Verdict, check_dataset, explore
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks.listings import LISTINGS
from pytest_dataloader_faults.battery.checks.network import NETWORK
from pytest_dataloader_faults.battery.checks.writes import write_error
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import TruncatedFile
from support.fake_datasets import COUNT, FOLDER, SIZE, FakeRecords, write_fake_records
from support.readers.libraries import builtin_open
from support.results import failure_of
from support.surveys import survey

TESTS = Path(__file__).resolve().parents[1]
NOT_OF_FAKE_FILES = {
    "copy-on-write": "only from 1,024 samples on",
    "memory-exhaustion": "allocate less than",
    "pin-memory": "finds no accelerator",
    write_error.name: "write no file",
    **dict.fromkeys((check.name for check in NETWORK), "no TCP connection"),
    **dict.fromkeys((check.name for check in LISTINGS), "needs real files"),
    **dict.fromkeys(
        (check.name for check in CHECKS.values() if check.scenario.ranks),
        "training with several processes",
    ),
    "resumes": "has no state_dict()",
    "file-locks": "needs real files",
    "thread-exhaustion": "start no thread",
}
"""Checks that do not apply to fake files, and what they say."""


def padded(path: str) -> bytes:
    """What is missing is made up: a file that is too short is not noticed."""
    return builtin_open(path).ljust(SIZE, b"\0")


def lines(path: str) -> bytes:
    """The lines of a text, which may end after any of them."""
    with open(path, encoding="ascii") as file:
        return b"".join(line.encode() for line in file).ljust(SIZE)


def test_the_survey_is_that_of_real_files(tmp_path):
    with FakeDatasetFs() as files:
        write_fake_records(files)
        contents = {path: builtin_open(path) for path in FakeRecords().paths}
        fake = survey(FakeRecords)
    for path, content in contents.items():
        (tmp_path / Path(path).name).write_bytes(content)
    real = survey(functools.partial(FakeRecords, str(tmp_path)))
    assert fake.files == real.files
    assert next(iter(fake.files.count("opens"))) == "*/00.rec"


def test_a_search_finds_what_is_wrong(files):
    exploration = explore(
        lambda: FakeRecords(read=padded),
        kinds=[TruncatedFile],
        loader={"num_workers": 1},
        max_epochs=1,
        max_examples=6,
        seed=1,
        database=None,
        on_fail=None,
    )
    assert exploration.verdict is Verdict.CORRUPTED
    (fault,) = exploration.outcome.schedule
    assert isinstance(fault, TruncatedFile)
    assert fault.path == "*/00.rec"


def test_examples_are_kept_on_the_disk(tmp_path, files):
    database = DirectoryBasedExampleDatabase(tmp_path / "examples")
    database.save(b"key", b"value")
    files.pause()
    assert list((tmp_path / "examples").rglob("*"))


@pytest.mark.slow
def test_the_whole_battery(files):
    two_batches = {"num_workers": 2, "batch_size": 2}
    results = check_dataset(FakeRecords, loader=two_batches, on_fail=None)
    assert not [each for each in results if each.failed]
    left_out = {each.check: each.explanation for each in results if not each.applies}
    assert {*left_out} <= {*NOT_OF_FAKE_FILES}
    wrong = {name: text for name, text in left_out.items() if NOT_OF_FAKE_FILES[name] not in text}
    assert not wrong


@pytest.mark.slow
def test_ends_of_lines_are_looked_for_in_fake_files(fake_dataset_fs):
    for number in range(COUNT):
        text = "".join(f"{number},{line}\n" for line in range(6))
        fake_dataset_fs.create_file(f"{FOLDER}/{number:02}.rec", contents=text)
    workload = Battery(lambda: FakeRecords(read=lines)).workload
    _, tails, *_ = CHECKS["truncated-file"].plan_scenarios(workload)
    assert {each.keep for each in tails.faults} == {20}
    assert failure_of(lambda: FakeRecords(read=lines), "truncated-file").verdict == "corrupted"


SUITE = """
import pytest
from support.fake_datasets import FakeRecords, write_fake_records

@pytest.mark.dataloader_faults(only=["workers-agree", "read-error"])
def test_it(fault_check, fake_dataset_fs):
    write_fake_records(fake_dataset_fs)
    fault_check(FakeRecords)
"""


def test_as_items_of_pytest(pytester, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(TESTS), *sys.path])
    pytester.makepyfile(SUITE)
    result = pytester.runpytest("-p", "dataloader_faults")
    result.assert_outcomes(passed=2)
