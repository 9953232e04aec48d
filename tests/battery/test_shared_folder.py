"""Ranks that prepare files in one folder: what one does to another shows in each run."""

from __future__ import annotations

import os

import pytest

from pytest_dataloader_faults import check_dataset
from support.corpus.shared_folders import Downloads
from support.datasets import Records

CHECK = "ranks-share-folder"


def _check(make_dataset, *only):
    return check_dataset(make_dataset, only=only or CHECK, ranks=2, on_fail=None)


@pytest.mark.slow
def test_in_the_other_checks_each_rank_has_its_own_folder(records):
    (result,) = _check(lambda folder: Downloads(records, folder), "ranks-agree")

    assert result.verdict == "survived"


def test_without_a_folder_there_is_nothing_to_share(records):
    (result,) = _check(lambda: Records(records))

    assert not result.applies
    assert "let it take one, as in lambda folder: MyDataset(data, cache=folder)" in result.sentence


def test_ranks_get_one_copy_of_a_folder(records):
    folders = records.parent / "folders"

    class Notes(Records):
        def __init__(self, folder):
            super().__init__(folder)
            rank = os.environ.get("RANK", "-")
            with open(folders, "a") as notes:
                notes.write(f"{rank} {folder}\n")

    (result,) = check_dataset(Notes, only=CHECK, ranks=2, on_fail=None, copy=records)
    lines = [line.split() for line in folders.read_text().splitlines()]

    assert result.verdict == "survived"
    assert "tried: new files (survived); new folders (survived)" in result.explanation
    assert len({folder for _, folder in lines[-2:]}) == 1
    assert not any(os.path.exists(folder) for _, folder in lines)
