"""Folders that are listed in another order, cannot be listed, or lack an entry."""

import ctypes
import errno
import glob
import os
import pathlib

import pytest

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import ListingError, ListingOrder, MissingEntry, OpenError
from support.attempts import list_by_descriptor
from support.epochs import alone, epoch

pytestmark = pytest.mark.usefixtures("engine")

COUNT = 2200
"""Entries: a listing takes several calls."""
LOST = "0007.rec"


def _list_after_a_look(folder):
    """Like ``any(os.scandir(folder))``, which leaves a listing in the middle."""
    with os.scandir(folder) as entries:
        next(entries)
    return os.listdir(folder)


def _list_with_libc(folder):
    """By telldir(3) and seekdir(3), back to the middle: the entries from there, twice."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name in ("opendir", "readdir"):
        getattr(libc, name).restype = ctypes.c_void_p
    libc.telldir.restype = ctypes.c_long
    libc.telldir.argtypes = libc.readdir.argtypes = libc.closedir.argtypes = (ctypes.c_void_p,)
    libc.seekdir.argtypes = (ctypes.c_void_p, ctypes.c_long)
    stream = libc.opendir(os.fsencode(folder))
    names, middle = _read_names(libc, stream, COUNT // 2), libc.telldir(stream)
    rest = _read_names(libc, stream, COUNT)
    libc.seekdir(stream, middle)
    assert _read_names(libc, stream, COUNT) == rest
    libc.closedir(stream)
    return [name for name in (*names, *rest) if not name.startswith(".")]


def _read_names(libc, stream, count):
    names = []
    while len(names) < count and (entry := libc.readdir(stream)):
        names.append(os.fsdecode(ctypes.string_at(entry + 19)))
    return names


WAYS = {
    "os.listdir": os.listdir,
    "os.scandir": lambda folder: [entry.name for entry in os.scandir(folder)],
    "glob.glob": lambda folder: [*map(os.path.basename, glob.glob(f"{folder}/*"))],
    "pathlib": lambda folder: [path.name for path in pathlib.Path(folder).iterdir()],
    "descriptor": list_by_descriptor,
    "after a look": _list_after_a_look,
    "readdir": _list_with_libc,
}


class Listings:
    """Each sample is a listing, or the error that came of it."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __len__(self):
        return len(WAYS)

    def __getitem__(self, index):
        try:
            return [*WAYS.values()][index](self.folder)
        except OSError as error:
            return error.errno


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listed")
    for number in range(COUNT):
        (folder / f"{number:04d}.rec").write_bytes(b"x")
    return folder


def _samples(folder, *faults):
    with inject(*faults) as injection:
        read = epoch(alone(Listings(folder)))
    assert read.text == ""
    return dict(zip(WAYS, read.batches, strict=True)), injection


def test_a_reversed_folder_is_reversed_for_every_reader(folder):
    names = os.listdir(folder)
    samples, injection = _samples(folder, ListingOrder(folder))
    for way, listed in samples.items():
        assert listed == names[::-1], way
    assert {firing.path for firing in injection.faults[0].firings} == {str(folder)}
    assert {firing.call for firing in injection.faults[0].firings} == {"getdents64"}


def test_a_random_order_depends_on_the_seed_alone(folder):
    orders = []
    for seed in (0, 0, 1):
        samples, _ = _samples(folder, ListingOrder("*", "random", seed=seed))
        (order,) = {tuple(listed) for listed in samples.values()}
        assert sorted(order) == sorted(os.listdir(folder))
        orders.append(order)
    assert orders[0] == orders[1] != orders[2]


def test_another_folder_is_listed_as_it_is(folder, tmp_path):
    with inject(ListingOrder(f"{tmp_path}/*"), require_fired=False) as injection:
        read = epoch(alone(Listings(folder)))
    assert [os.listdir(folder)] * len(WAYS) == read.batches
    assert injection.fired == 0


def test_the_order_stays_when_faults_are_over_in_the_middle(folder):
    with inject(ListingOrder(folder)) as injection:
        iterator = iter(alone(Listings(folder)))
        next(iterator)
        injection._client.end_faults()
        later = list(iterator)
    assert later[-1] == os.listdir(folder)


def test_one_listing_counts_once(folder):
    samples, injection = _samples(folder, ListingError(folder, errno.ESTALE, nth=2, times=1))
    failed = [way for way, listed in samples.items() if listed == errno.ESTALE]
    assert failed == ["os.scandir"]
    assert injection.faults[0].matched == len(WAYS) + 3
    assert injection.fired == 1


MISSING = [MissingEntry(f"*/{LOST}"), OpenError(f"*/{LOST}", errno.ENOENT)]


@pytest.mark.parametrize("fault", MISSING, ids=repr)
def test_a_missing_file_is_missing_from_its_folder(folder, fault):
    samples, injection = _samples(folder, fault)
    expected = [name for name in os.listdir(folder) if name != LOST]
    for way, listed in samples.items():
        assert listed == expected, way
    assert {firing.path for firing in injection.faults[0].firings} == {str(folder / LOST)}


def test_a_folder_that_can_be_opened_is_listed(tmp_path):
    for name in ("inside", "target"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("target")
    (tmp_path / LOST).write_bytes(b"x")
    samples, _ = _samples(tmp_path, OpenError(f"{tmp_path}/*", errno.ENOENT))
    assert sorted(samples["os.scandir"]) == ["inside", "link", "target"]
    with inject(MissingEntry(f"{tmp_path}/*")):
        assert next(iter(alone(Listings(tmp_path)))) == []


def test_a_glob_may_name_the_folder_by_a_link(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    samples, injection = _samples(link, OpenError(link / LOST, errno.ENOENT))
    assert not any(LOST in listed for listed in samples.values())
    assert {firing.path for firing in injection.faults[0].firings} == {str(link / LOST)}


@pytest.mark.parametrize(
    "fault",
    [
        OpenError(f"*/{LOST}", errno.EACCES),
        *(OpenError(f"*/{LOST}", errno.ENOENT, **{name: 2}) for name in ("nth", "times", "every")),
        OpenError(f"*/{LOST}", errno.ENOENT, probability=0.5),
        OpenError(f"*/{LOST}", errno.ENOENT, workers=(1,)),
    ],
    ids=repr,
)
def test_a_file_that_some_opens_find_is_listed(folder, fault):
    with inject(fault, require_fired=False) as injection:
        read = epoch(alone(Listings(folder)))
    assert read.batches == [os.listdir(folder)] * len(WAYS)
    assert injection.matched == 0


CALLS = (
    lambda path: os.close(os.open(path, os.O_RDONLY)),
    os.stat,
    os.lstat,
    os.listxattr,
    lambda path: os.utime(path, (0, 0)),
    lambda path: os.chmod(path, 0o600),
    lambda path: os.access(path, os.R_OK) or os.stat(path),
)


def _finds(call, path):
    try:
        call(path)
    except FileNotFoundError:
        return False
    return True


class Named(Listings):
    """Whether calls that name a file find it."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        path = os.path.join(self.folder, LOST)
        return [_finds(call, path) for call in CALLS]


@pytest.mark.parametrize("fault", MISSING, ids=repr)
def test_a_missing_file_is_missing_for_calls_that_name_it(folder, fault):
    status = os.stat(folder / LOST)
    with inject(fault):
        (found,) = epoch(alone(Named(folder))).batches
    assert found == [False] * len(CALLS)
    assert os.stat(folder / LOST) == status
