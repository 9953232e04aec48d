"""The search and the battery, over fake files."""

import functools
import sys
from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase

from pytest_dataloader_faults import Verdict, explore
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import TruncatedFile
from support.fake_datasets import SIZE, FakeRecords, write_fake_records
from support.readers.libraries import builtin_open
from support.surveys import survey

TESTS = Path(__file__).resolve().parents[1]


def padded(path: str) -> bytes:
    """What is missing is made up: a file that is too short is not noticed."""
    return builtin_open(path).ljust(SIZE, b"\0")


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
