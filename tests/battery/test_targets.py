"""The targets of a check are files of the run without a fault, and no others."""

from __future__ import annotations

import pytest

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery.targets import shortest_globs
from pytest_dataloader_faults.globs import GlobMatcher
from support.datasets import Records, write_records


@pytest.fixture(name="files")
def _files(records):
    """The paths of the records, in order."""
    return tuple(sorted(map(str, records.iterdir())))


def _meant(globs, files):
    return tuple(filter(GlobMatcher(globs), files))


def test_a_few_files_are_listed(files):
    """Up to two have their names in the reproducer."""
    assert shortest_globs(files[:2], set(files[:2]), ("*",)) == files[:2]


def test_each_of_several_folders_is_one_glob(tmp_path):
    """Files of other folders lie beside them, so that one glob for all would mean too much."""
    for folder in ("left", "right", "unread"):
        write_records(tmp_path / folder)
    files = [str(each) for name in ("left", "right") for each in (tmp_path / name).iterdir()]

    globs = shortest_globs(tuple(sorted(files)), set(files), ("*",))

    assert globs == (f"{tmp_path}/left/*.rec", f"{tmp_path}/right/*.rec")


def test_a_whole_folder_is_one_glob(files, records):
    """Many files that are all there is are meant by one glob."""
    assert shortest_globs(files, set(files), ("*",)) == (f"{records}/*.rec",)


def test_a_part_of_a_folder_is_listed(files):
    """A glob would mean files that exist beside the ones that were read."""
    assert shortest_globs(files[:10], set(files[:10]), ("*",)) == files[:10]


@pytest.mark.parametrize("name", ["deeper/90.rec", "other.rec"])
def test_files_that_nobody_read_are_not_meant(files, records, name):
    """One in a folder below would be meant by the folder's glob as well."""
    (records / "deeper").mkdir()
    (records / name).write_bytes(b"")
    assert shortest_globs(files, set(files), ("*",)) == files


def test_files_that_were_seen_and_are_gone_are_not_meant(files, records):
    """A temporary file of the dataset would come again."""
    assert shortest_globs(files, {*files, f"{records}/tmp.rec"}, ("*",)) == files


def test_globs_of_the_user_are_kept(files):
    """They are short, and mean what they were given for."""
    assert shortest_globs(files[:10], set(files), ("*/0?.rec",)) == ("*/0?.rec",)


def test_globs_of_the_user_that_mean_more_are_not_kept(files):
    """They mean a file that was opened, but not read, say."""
    assert shortest_globs(files[:9], set(files), ("*/0?.rec",)) == files[:9]


def test_names_are_escaped(tmp_path):
    """A name that looks like a glob means itself."""
    files = tuple(str(tmp_path / f"[{number}]*.bin") for number in range(6))
    globs = shortest_globs(files, {*files, str(tmp_path / "other.bin")}, ("*",))
    assert _meant(globs, (*files, str(tmp_path / "other.bin"), str(tmp_path / "0.bin"))) == files


def test_a_folder_too_large_to_look_through_is_not_meant(files, records):
    """Who else might be there is not known then."""
    for number in range(1100):
        (records / f"{number}.txt").touch()
    assert shortest_globs(files, set(files), ("*",)) == files


def test_many_files_that_were_asked_for_are_the_only_targets(records):
    """From eight files on, as before, no other file is hit."""
    globs = [f"*/{number:02}.rec" for number in range(8)]
    (result,) = check_dataset(
        lambda: Records(records), files=globs, only="open-error", loader={"batch_size": 1}
    )
    hit = {each.path for facts in result.outcome.faults for each in facts.firings}
    assert hit <= {str(records / f"{number:02}.rec") for number in range(8)}
    assert result.outcome.fired
