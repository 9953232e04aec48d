"""A copy that is too large for memory has no name, so that nobody has to remove it."""

from __future__ import annotations

import errno
import os

import pytest

from pytest_dataloader_faults._engine import file_copies
from pytest_dataloader_faults._engine.file_copies import FileEdit, altered_copy


class OldFileSystem:
    """The functions of ``os`` where a file cannot be made without a name."""

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, flags, mode=0o777):
        """Refuse a file without a name."""
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return os.open(path, flags, mode)


@pytest.mark.parametrize("system", [os, OldFileSystem()], ids=["new", "old"])
def test_a_large_copy_has_no_name(tmp_path, monkeypatch, system):
    """On file systems that have such files, and on others."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    original = tmp_path / "original"
    original.write_bytes(bytes(range(200)))
    monkeypatch.setattr(file_copies, "_IN_MEMORY", 0)
    monkeypatch.setattr(file_copies, "gettempdir", lambda: str(folder))
    copy = altered_copy(system, str(original), FileEdit(kept=100), os.O_RDONLY)
    assert os.listdir(folder) == []
    assert os.pread(copy, 300, 0) == bytes(range(100))
    assert os.fstat(copy).st_dev == folder.stat().st_dev
    os.close(copy)
