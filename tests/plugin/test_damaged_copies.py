"""The fixture damaged_copy: where its copies are, and how long they stay."""

import errno

import pytest

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.faults import OpenError, ReadError, TruncatedFile

USED = """
import pytest
from pytest_dataloader_faults.faults import ReadError, TruncatedFile

copies = []


def test_reads(damaged_copy, records):
    copies.append(damaged_copy(records, TruncatedFile("*/00.rec")))
    assert (copies[0] / "00.rec").stat().st_size == 32
    assert (records / "00.rec").stat().st_size == 64


def test_copy_of_before_is_gone():
    assert not copies[0].exists()


def test_fails(damaged_copy, records):
    copies.append(damaged_copy(records, TruncatedFile("*/00.rec")))
    pytest.fail("as meant")


def test_copy_of_a_failed_test_is_gone():
    assert not copies[1].exists()


def test_never_calls_it(damaged_copy):
    pass


def test_asks_for_too_much(damaged_copy, records):
    damaged_copy(records, ReadError("*.rec"))


@pytest.fixture
def damaged(damaged_copy, records):
    return damaged_copy(records, TruncatedFile("*/00.rec"))


def test_by_a_fixture(damaged):
    assert (damaged / "00.rec").stat().st_size == 32
"""


def test_each_call_makes_a_copy_of_its_own(damaged_copy, records, tmp_path_factory):
    """The originals stay as they are, and the copies are among pytest's temporary folders."""
    shorter = damaged_copy(records, TruncatedFile("*.rec", keep=10))
    fewer = damaged_copy(records, OpenError("*/0*.rec", errno.ENOENT), links="symlink")
    assert {path.stat().st_size for path in shorter.iterdir()} == {10}
    assert len([*records.iterdir()]) - len([*fewer.iterdir()]) == 10
    assert shorter.parent != fewer.parent
    for copy in (shorter, fewer):
        assert copy.is_relative_to(tmp_path_factory.getbasetemp())


def test_tmp_path_can_be_copied(damaged_copy, tmp_path):
    """The copies are not in it, so that a second one has as many files as the first."""
    (tmp_path / "data.bin").write_bytes(b"data")
    copies = [damaged_copy(tmp_path, TruncatedFile("*.bin")) for _ in range(2)]
    assert [[each.name for each in copy.rglob("*")] for copy in copies] == [["data.bin"]] * 2
    assert [each.name for each in tmp_path.iterdir()] == ["data.bin"]


def test_the_folder_of_all_temporary_folders_cannot_be_copied(damaged_copy, tmp_path_factory):
    """The copy would be in it."""
    base = tmp_path_factory.getbasetemp()
    with pytest.raises(InvalidArgumentError, match="where copies are created"):
        damaged_copy(base, TruncatedFile("*"))


def test_arguments_are_looked_at(damaged_copy, records):
    with pytest.raises(InvalidArgumentError, match=r"ReadError\(path='\*.rec'\) affects a call"):
        damaged_copy(records, ReadError("*.rec"))


def test_copies_live_as_long_as_their_test(suite):
    result = suite.run(USED, "-rA")
    result.assert_outcomes(passed=4, failed=3)
    result.stdout.fnmatch_lines(["damaged_copy was never called, so nothing was damaged: call it*"])
    result.stdout.fnmatch_lines(["*InvalidArgumentError: ReadError(path='*.rec') affects a*"])
    assert "folder_copies.py" not in result.stdout.str()
    assert [*suite.path.rglob("pytest-dataloader-faults-*")] == []


def test_the_marker_selects_it(suite):
    result = suite.run(USED, "-m", "dataloader_faults", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["*5/7 tests collected*"])
