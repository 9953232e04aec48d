"""Folders in another order, that cannot be listed, lack an entry, or have one too many."""

import ctypes
import errno
import functools
import os
import stat

import pytest

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._engine.kernel import caller
from pytest_dataloader_faults._engine.kernel.linux import raw_call
from pytest_dataloader_faults.faults import ListingError, ListingOrder, OpenError, StrayEntry
from support.attempts import errno_of
from support.contracts.listings import WAYS
from support.epochs import alone, epoch
from support.surroundings import refuse_duplicate
from support.tries import Reads

pytestmark = pytest.mark.usefixtures("engine")

COUNT = 1200
"""Entries: a listing takes several calls."""
LOST = "0007.rec"
HIDDEN, PART = ".DS_Store", "0000.rec.part"
CONTENT = b"0123456789" * 3


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listed")
    for number in range(COUNT):
        (folder / f"{number:04d}.rec").write_bytes(CONTENT)
    return folder


def _loader(folder, functions):
    return alone(Reads([*map(errno_of, functions)], lambda function: function(str(folder))))


def _attempt(folder, functions, *faults, **options):
    with inject(*faults, **options) as injection:
        results = epoch(_loader(folder, functions))
    assert results.text == ""
    return results.batches, injection


def _list_each_way(folder, *faults, **options):
    listings, injection = _attempt(folder, WAYS.values(), *faults, **options)
    return dict(zip(WAYS, listings, strict=True)), injection


def test_listings_are_right_where_a_container_forbids_duplicates(folder, monkeypatch):
    """Docker's profile refuses pidfd_getfd(2); the supervisor of a trial is forked from here."""
    monkeypatch.setattr(caller, "duplicate", refuse_duplicate)
    names = os.listdir(folder)[::-1]

    def require_reversed(list_folder):
        with os.scandir(folder) as entries:  # It is closed before it is at the end.
            assert next(entries).name == names[0]
        assert list_folder(str(folder)) == names
        return 0

    make_dataset = functools.partial(Reads, [*WAYS.values()], require_reversed)
    outcome = run_trial(make_dataset, ListingOrder(folder), loader={"num_workers": 1})

    assert outcome.exception is None
    assert outcome.fired == outcome.faults[0].matched > len(WAYS)


def test_a_random_order_depends_on_the_seed_alone(folder):
    orders = []
    for seed in (0, 0, 1):
        samples, _ = _list_each_way(folder, ListingOrder("*", "random", seed=seed))
        (order,) = {tuple(listed) for listed in samples.values()}
        assert sorted(order) == sorted(os.listdir(folder))
        orders.append(order)
    assert orders[0] == orders[1] != orders[2]


def test_one_listing_counts_once(folder):
    samples, injection = _list_each_way(folder, ListingError(folder, errno.ESTALE, nth=2, times=1))
    failed = [way for way, listed in samples.items() if listed == errno.ESTALE]
    assert failed == ["os.scandir"]
    assert injection.faults[0].matched == len(WAYS) + 4
    assert injection.fired == 1


def test_a_file_that_some_opens_find_is_listed(folder):
    missing = functools.partial(OpenError, f"*/{LOST}", errno.ENOENT)
    faults = [
        OpenError(f"*/{LOST}", errno.EACCES),
        *(missing(**{name: 2}) for name in ("nth", "times", "every")),
        missing(probability=0.5),
        missing(workers=(1,)),
    ]
    listings, injection = _attempt(folder, WAYS.values(), *faults, require_fired=False)
    assert listings == [os.listdir(folder)] * len(WAYS)
    assert injection.matched == 0


def _read(folder, name=PART):
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def _read_by_descriptor(folder):
    """By a path relative to a descriptor, and a name that leads there through the parent."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        name = os.path.join("..", os.path.basename(folder), PART)
        file = os.open(name, os.O_RDONLY, dir_fd=fd)
        size = os.stat(PART, dir_fd=fd).st_size, os.fstat(file).st_size
        content = os.pread(file, 100, 0), os.read(file, 100)
        os.close(file)
        return size, content
    finally:
        os.close(fd)


def _read_from_cwd(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        return _read(""), os.path.getsize(PART), os.path.abspath(PART)
    finally:
        os.chdir(before)


def _read_with_openat2(folder):
    how = bytes(24)
    fd = raw_call("openat2", -100, os.fsencode(f"{folder}/{PART}"), how, len(how))
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def _read_through_a_link(folder):
    link = f"{folder}.link"
    os.symlink(folder, link)
    try:
        return _read(link), os.lstat(f"{link}/{PART}").st_size
    finally:
        os.unlink(link)


def test_the_content_is_half_of_the_first_file_by_every_path(folder):
    ways = (_read, _read_by_descriptor, _read_from_cwd, _read_with_openat2, _read_through_a_link)
    results, _ = _attempt(folder, ways, StrayEntry(folder, "*.part"))
    half = CONTENT[:15]
    assert results == [
        half,
        ((15, 15), (half, half)),
        (half, 15, str(folder / PART)),
        half,
        (half, 15),
    ]


def _examine(folder):
    """What each call says of a hidden entry: its kind, its size, its inode and its rights."""
    path = os.path.join(folder, HIDDEN)
    (entry,) = (entry for entry in os.scandir(folder) if entry.name == HIDDEN)
    with open(path, "rb") as file:
        facts = [os.stat(path), os.lstat(path), entry.stat(), os.fstat(file.fileno())]
    assert len({(each.st_ino, each.st_dev, each.st_mtime_ns) for each in facts}) == 1
    assert entry.inode() == facts[0].st_ino
    modes = {(stat.S_IFMT(each.st_mode), each.st_size) for each in facts}
    rights = [os.access(path, mode) for mode in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)]
    follows = os.access(path, os.R_OK, follow_symlinks=False)
    return modes, rights, follows, _statx_size(path), entry.is_dir(), entry.is_symlink()


def _statx_size(path):
    everything, size_at, data = 0x7FF, 40, ctypes.create_string_buffer(256)
    raw_call("statx", -100, os.fsencode(path), 0, everything, data)
    return int.from_bytes(data.raw[size_at : size_at + 8], "little")


def test_calls_that_examine_the_entry_agree(folder):
    (facts,), injection = _attempt(folder, [_examine], StrayEntry(folder))
    rights = [True, True, True, False]
    assert facts == ({(stat.S_IFREG, 0)}, rights, True, 0, False, False)
    calls = {firing.call for firing in injection.faults[0].firings}
    assert {"getdents64", "openat", "newfstatat", "statx"} <= calls


def test_the_entry_is_no_folder(folder):
    ways = (
        lambda folder: os.listdir(f"{folder}/{HIDDEN}"),
        lambda folder: os.stat(f"{folder}/{HIDDEN}/"),
        lambda folder: open(f"{folder}/{HIDDEN}/0.rec"),
        lambda folder: os.stat(f"{folder}/{HIDDEN}/0.rec"),
        lambda folder: os.path.isdir(f"{folder}/{HIDDEN}"),
    )
    results, _ = _attempt(folder, ways, StrayEntry(folder))
    assert results == [*[errno.ENOTDIR] * 4, False]


def _write_and_rename(folder):
    """Like a dataset that writes its cache under the name of the entry first."""
    path = os.path.join(folder, HIDDEN)
    with open(path, "wb") as file:
        file.write(b"own")
    content = _read(folder, HIDDEN), os.listdir(folder).count(HIDDEN)
    os.rename(path, os.path.join(folder, "cache"))
    with open(os.path.join(folder, "cache"), "rb") as file:
        return content, file.read(), os.path.exists(path)


def test_a_file_that_the_dataset_creates_takes_its_place(tmp_path):
    (tmp_path / "0.rec").write_bytes(CONTENT)
    (results,), _ = _attempt(tmp_path, [_write_and_rename], StrayEntry(tmp_path))
    assert results == ((b"own", 1), b"own", True)
    assert sorted(os.listdir(tmp_path)) == ["0.rec", "cache"]


def test_a_real_file_of_that_name_wins(tmp_path):
    (tmp_path / HIDDEN).write_bytes(b"own")
    ways = (os.listdir, lambda folder: _read(folder, HIDDEN))
    results, injection = _attempt(tmp_path, ways, StrayEntry(tmp_path), require_fired=False)
    assert results == [[HIDDEN], b"own"]
    assert injection.fired == 0
    reason = f"no operation matched it: {tmp_path} already contains such an entry"
    assert reason in injection.explain_unfired()
