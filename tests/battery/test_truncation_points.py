"""Where a file could end without looking shorter."""

from __future__ import annotations

import os
import tarfile

import numpy as np
import pytest
import torch

from pytest_dataloader_faults import check_dataset
from pytest_dataloader_faults.battery.targets import truncation_points
from support.corpus.streams import Shards
from support.datasets import Records


def _end(path):
    return dict(truncation_points([str(path)])).get(str(path))


def test_tar_ends_where_a_member_ends(tmp_path):
    """What is left is an archive of fewer members, and no reader objects."""
    (tmp_path / "member").write_bytes(bytes(700))
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(10):
            archive.add(tmp_path / "member", f"{number}")

    os.truncate(path, _end(path))

    with tarfile.open(path) as archive:
        assert [member.name for member in archive] == [str(number) for number in range(9)]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("letter", ["a", "é", "語"])
@pytest.mark.parametrize("count", [10, 100_000])
def test_text_ends_where_a_line_ends(newline, letter, count, tmp_path):
    """Also a long one, of which only a part is looked at, wherever that part begins."""
    path = tmp_path / "x.csv"
    path.write_bytes(f"{letter * 3},1{newline}".encode() * count)

    end = _end(path)

    assert 0.8 * path.stat().st_size <= end <= 0.9 * path.stat().st_size
    left = path.read_bytes()[:end].decode()
    assert left.endswith(newline)
    assert set(left.split(newline)) == {f"{letter * 3},1", ""}


@pytest.mark.parametrize(
    "content", [b"", b"no line", bytes(range(256)) * 10, b"\x00\n" * 10, b"\xff\xfe\n" * 50]
)
def test_file_that_is_neither_has_no_such_place(content, tmp_path):
    """Binary data may hold the byte of a newline anywhere."""
    path = tmp_path / "x"
    path.write_bytes(content)

    assert _end(path) is None
    assert truncation_points([str(tmp_path / "gone")]) == ()


def test_check_cuts_archives_there_and_other_files_anywhere(records):
    """Archives one by one, each at its own place."""
    shards, others = (
        check_dataset(lambda make=make: make(records), only="truncated-tail")[0]
        for make in (Shards, Records)
    )

    assert [each.keep % 1024 for each in shards.outcome.schedule] == [0, 0]
    assert [each.keep for each in others.outcome.schedule] == [0.9]


class Mapped(Records):
    """Maps its files."""

    def __getitem__(self, index):
        return torch.from_numpy(np.memmap(self.paths[index], np.uint8, "r").copy())


def test_what_is_mapped_cannot_be_read_short(records):
    """That is no failure of the dataset, and no proof of anything."""
    (result,) = check_dataset(lambda: Mapped(records), only="short-read")

    assert (result.verdict, result.applies, result.failed) == ("not_exercised", False, False)
    assert "its workers map their files" in result.explanation
