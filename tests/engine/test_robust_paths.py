"""Faults find their file by whatever path a worker opens it, and spare all others."""

from __future__ import annotations

import errno
import glob
import os
from pathlib import Path

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ClosedDescriptor, OpenError, ReadError, TruncatedFile
from support.attempts import CONTENT, attempt, undisturbed
from support.epochs import alone, epoch
from support.tries import ENOUGH, WAYS, Tries, pread

EIO = os.strerror(errno.EIO)


def test_a_worker_that_goes_elsewhere(records):
    """Its init function changes the folder; from then on all paths are relative."""
    names = sorted(os.listdir(records))
    gave, injection = attempt(
        names, WAYS["read"], ReadError("*/03.rec"), worker_init_fn=lambda _: os.chdir(records)
    )
    assert [3] == [place for place, each in enumerate(gave) if isinstance(each, str)]
    assert str(records / "03.rec") == injection.faults[0].firings[0].path


def test_a_folder_that_was_open_before_the_fork(records):
    """Names relative to its descriptor are found, and one of them fails."""
    folder = os.open(records, os.O_RDONLY)

    def read(name):
        fd = os.open(name, os.O_RDONLY, dir_fd=folder)
        try:
            return os.read(fd, ENOUGH)
        finally:
            os.close(fd)

    names = sorted(os.listdir(records))
    gave, injection = attempt(names, read, OpenError("*/records/03.rec"))
    os.close(folder)
    assert [3] == [place for place, each in enumerate(gave) if isinstance(each, str)]
    assert str(records / "03.rec") == injection.faults[0].firings[0].path


@pytest.fixture(name="link")
def _link(path, tmp_path):
    """A link to the file, of a name and folder of its own."""
    link = tmp_path / "links" / "alias.lnk"
    link.parent.mkdir()
    link.symlink_to(path)
    return str(link)


@pytest.mark.parametrize("kind", [OpenError, ReadError, TruncatedFile, ClosedDescriptor])
def test_the_name_of_a_link_is_what_globs_match(link, kind):
    """The path that is opened is meant, not the file that it leads to."""
    (gave,), injection = attempt([link], WAYS["read"], kind("*.lnk"))
    assert CONTENT != gave
    assert {link} == {firing.path for firing in injection.faults[0].firings}


@pytest.mark.parametrize("kind", [OpenError, ReadError, TruncatedFile, ClosedDescriptor])
def test_the_name_of_a_links_target_is_not(link, kind):
    """A file that is opened by a link of another name is not reached."""
    with inject(kind("*.rec"), require_fired=False) as injection:
        (result,) = epoch(alone(Tries([link], WAYS["read"]))).batches
    assert (CONTENT, 0) == (result.gave, injection.reached)


def test_a_linked_folder_goes_by_its_real_name_once_entered(path, tmp_path):
    """By chdir(2) or a descriptor of it, since the kernel knows no other name then."""
    folder = tmp_path / "shortcut"
    folder.symlink_to(os.path.dirname(path))
    through = str(folder / "file.rec")
    for way in ("relative path", "dir_fd"):
        (gave,), injection = attempt([through], WAYS[way], ReadError("*/data/*"))
        assert EIO in gave
        assert {path} == {firing.path for firing in injection.faults[0].firings}


NAMES = [
    b"with a space .rec",
    b" [1-2]?*{x}.rec",
    b"two\nlines.rec",
    b"carriage\rreturn\ttab.rec",
    b"back\\slash.rec",
    b"latin \xe9\xff.rec",
    "\N{SNOWMAN} \N{GRINNING FACE}.rec".encode(),
    b"x" * 251 + b".rec",
]


@pytest.fixture(name="odd", params=NAMES, ids=repr)
def _odd(request, tmp_path):
    """The path of a file of an odd name; another one lies beside it."""
    (tmp_path / "other.rec").write_bytes(b"other")
    path = os.path.join(tmp_path, os.fsdecode(request.param))
    Path(path).write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("kind", [OpenError, ReadError, TruncatedFile, ClosedDescriptor])
def test_odd_names_are_matched_and_told(odd, kind):
    """glob.escape makes a glob of any path; bytes that are no UTF-8 come as os.fsdecode has it."""
    other = os.path.join(os.path.dirname(odd), "other.rec")
    gave, injection = attempt([odd, other], WAYS["pread"], kind(glob.escape(odd)))
    assert CONTENT != gave[0]
    assert b"other" == gave[1]
    assert {odd} == {firing.path for firing in injection.faults[0].firings}


def test_odd_names_are_read_rightly(odd):
    """When nothing is due, by bytes as by text."""
    gave, injection = undisturbed([odd, os.fsencode(odd)], WAYS["pread"], "*.rec")
    assert [CONTENT] * 2 == gave
    assert 0 < injection.faults[0].reached


def test_a_descriptor_of_an_odd_name_that_is_inherited(odd):
    """It is found by its name too, when it was opened before the fork."""
    with open(odd, "rb") as file:
        (gave,), _ = attempt([file.fileno()], pread, TruncatedFile("*.rec", keep=50))
    assert CONTENT[:50] == gave
