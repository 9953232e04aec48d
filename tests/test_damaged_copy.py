"""Damaged copies of a folder, for what a dataset opens in the test's own process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import multiprocessing.util
import os
import pickle
import re
import socket
import stat
import tempfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import Dataset

from pytest_dataloader_faults import damaged_copy, inject
from pytest_dataloader_faults._engine import folder_copies
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.fake_files import FakeDatasetFs
from pytest_dataloader_faults.faults import CorruptedFile, OpenError, ReadError, TruncatedFile
from support.epochs import alone, epoch
from support.nobody import become_nobody
from support.refusals import lacks, refusal
from support.rows import rows
from support.tries import Tries

MB = 1 << 20
MISSING = errno.ENOENT
ODD = os.fsdecode(b"caf\xe9.bin")
"""A name that is no text: Latin-1 on a system whose names are UTF-8."""


class Mapped(Dataset):
    """Maps its file, and unpickles its labels, in the constructor."""

    def __init__(self, folder):
        self.values = np.memmap(folder / "train" / "values.dat", np.uint8, "r", shape=(MB,))
        self.labels = pickle.loads((folder / "labels.pkl").read_bytes())  # noqa: S301  # our own

    def __getitem__(self, index):
        return int(self.values[index]), self.labels[index]

    def __len__(self):
        return len(self.labels)


def _facts(path):
    """What of a file would tell that something was done to it."""
    found = os.lstat(path)
    content = Path(path).read_bytes() if stat.S_ISREG(found.st_mode) else b""
    return found.st_mode, found.st_mtime_ns, found.st_nlink, hashlib.sha256(content).hexdigest()


def _everything(folder):
    """The facts of a folder, and of all that is in it, by relative names."""
    inside = (os.path.join(at, name) for at, *both in os.walk(folder) for name in chain(*both))
    return {os.path.relpath(path, folder): _facts(path) for path in [folder, *inside]}


@pytest.fixture(name="place", autouse=True)
def _place(tmp_path, monkeypatch):
    """A folder for temporary files, in which a test leaves nothing behind."""
    place = tmp_path / "temporary"
    place.mkdir()
    # multiprocessing makes a folder for the sockets of this process once, and keeps it.
    multiprocessing.util.get_temp_dir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert [*place.glob("pytest-dataloader-faults-*")] == []


@pytest.fixture(name="data")
def _data(tmp_path):
    """A folder with a mapped file, a pickle, and files in folders; no test may change it."""
    data = tmp_path / "data"
    (data / "train" / "deep").mkdir(parents=True)
    np.arange(MB, dtype=np.uint8).tofile(data / "train" / "values.dat")
    (data / "labels.pkl").write_bytes(pickle.dumps([f"label {n}" for n in range(100)]))
    (data / "train" / "deep" / "notes.txt").write_text("notes", encoding="utf-8")
    (data / ODD).write_bytes(bytes(100))
    for path in data.rglob("*"):
        os.utime(path, ns=(1, 987_654_321_123_456_789))
    before = _everything(data)
    yield data
    assert _everything(data) == before


def _differing(copy, original):
    pairs = zip(copy.read_bytes(), original.read_bytes(), strict=True)
    return [place for place, (one, other) in enumerate(pairs) if one != other]


def _refused(*arguments, **options):
    return refusal(InvalidArgumentError, damaged_copy, *arguments, **options)


@rows(
    ("fault", "error", "text"),
    [
        (TruncatedFile("*.dat"), ValueError, "mmap length is greater than file size"),
        (TruncatedFile("*.pkl", keep=0.9), pickle.UnpicklingError, "truncated"),
        (TruncatedFile("*.pkl", keep=0), EOFError, "Ran out of input"),
        (OpenError("*/train/*.dat", MISSING), FileNotFoundError, "values.dat"),
        (OpenError("*.pkl", MISSING), FileNotFoundError, "labels.pkl"),
    ],
)
def test_a_constructor_meets_the_fault(data, fault, error, text):
    """What fails is the constructor, in this process; in a copy damaged elsewhere it does not."""
    with damaged_copy(data, fault) as folder, pytest.raises(error, match=text):
        Mapped(folder)
    with damaged_copy(data, TruncatedFile("*.txt")) as folder:
        assert Mapped(folder)[7] == (7, "label 7")


def test_a_constructor_reads_corrupted_bytes(data):
    """It sees other values where the fault is, and the right ones where it is disarmed."""
    with damaged_copy(data, CorruptedFile("*.dat", flips=5)) as folder:
        assert np.count_nonzero(Mapped(folder).values != Mapped(data).values) == 5
    with damaged_copy(data, CorruptedFile("*.txt", flips=5)) as folder:
        assert np.array_equal(Mapped(folder).values, Mapped(data).values)


@pytest.mark.usefixtures("engine")
@rows(
    "faults",
    [
        [CorruptedFile("*.dat", 9, seed=4)],
        [TruncatedFile("*.dat", keep=1000)],
        [
            TruncatedFile("*.dat"),
            CorruptedFile("*/train/*", 20),
            CorruptedFile("*.dat", 20, seed=3),
        ],
    ],
)
def test_a_worker_would_read_the_same(data, faults):
    """Byte by byte, a copy is what the kernel engine gives to a worker."""
    path = str(data / "train" / "values.dat")
    with inject(*faults):
        (read,) = epoch(alone(Tries([path], lambda name: Path(name).read_bytes()))).batches
    with damaged_copy(data, *faults) as folder:
        assert (folder / "train" / "values.dat").read_bytes() == read.gave


def test_the_same_damage_twice_does_not_undo_itself(data):
    """Two faults that differ by their globs alone damage a file that both mean once."""
    faults = CorruptedFile("*/values.dat"), CorruptedFile(("*.dat", "*.txt"))
    with damaged_copy(data, *faults) as folder:
        assert len(_differing(folder / "train/values.dat", data / "train/values.dat")) == 1


def test_other_files_are_copied_with_their_facts(data):
    """Contents, times and modes, of folders as well; a write to them stays in the copy."""
    (data / "labels.pkl").chmod(0o640)
    before = _everything(data)
    with damaged_copy(data, TruncatedFile("*.txt")) as folder:
        found = _everything(folder)
        (folder / "labels.pkl").write_bytes(b"overwritten")
        (folder / "new.bin").write_bytes(b"new")
        assert before == _everything(data)
    changed = {name for name in before if before[name] != found[name]}
    assert changed == {"train/deep/notes.txt"}
    (data / "labels.pkl").chmod(0o644)


def test_the_copy_has_the_name_of_the_folder(data, place, monkeypatch):
    """As some datasets tell by it what is in them; a relative path is enough."""
    monkeypatch.chdir(data.parent)
    with damaged_copy("data/", TruncatedFile("*.pkl")) as folder:
        assert isinstance(folder, Path)
        assert folder.name == "data"
        assert folder.is_relative_to(place)


def test_an_error_in_the_body_removes_the_copy_too(data):
    """It comes through as it is."""
    with (
        pytest.raises(EOFError),
        damaged_copy(data, TruncatedFile("*.pkl", keep=0)) as folder,
    ):
        Mapped(folder)
    assert not folder.exists()


def test_a_copy_that_cannot_be_finished_is_removed(data, monkeypatch):
    """As where the disk is full; the error names what happened."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*_arguments):
        raise full

    monkeypatch.setattr(folder_copies, "copy_content", fail)
    with pytest.raises(OSError, match="No space left"), damaged_copy(data, TruncatedFile("*.pkl")):
        pytest.fail("not reached")


def test_names_that_are_no_text(data):
    """Such a file is copied, damaged, and named in errors."""
    with damaged_copy(data, TruncatedFile(f"*/{ODD}", keep=7)) as folder:
        assert (folder / ODD).stat().st_size == 7
        assert (folder / "labels.pkl").stat().st_size > 7
    assert "caf\\udce9.bin" in _refused(data, TruncatedFile("*.nothing"))


def test_a_large_file(data):
    """One of 20 MB is damaged where it should be, and nowhere else."""
    path = data.parent / "large" / "records.bin"
    path.parent.mkdir()
    path.write_bytes(bytes(range(256)) * (80 * 1024))
    with damaged_copy(path.parent, CorruptedFile("*.bin", 3)) as folder:
        assert len(_differing(folder / "records.bin", path)) == 3


def test_sparse_files_stay_sparse(data):
    """A hole takes no room in a copy, be the file altered or not."""
    for name in ("cut.bin", "whole.bin"):
        with open(data.parent / name, "wb") as file:
            file.truncate(64 * MB)
            file.write(b"begin")
    sparse = data.parent / "sparse"
    sparse.mkdir()
    for name in ("cut.bin", "whole.bin"):
        os.rename(data.parent / name, sparse / name)
    with damaged_copy(sparse, TruncatedFile("*/cut.bin")) as folder:
        cut, whole = (folder / name for name in ("cut.bin", "whole.bin"))
        assert (cut.stat().st_size, whole.stat().st_size) == (32 * MB, 64 * MB)
        assert max(cut.stat().st_blocks, whole.stat().st_blocks) * 512 < MB
        assert whole.read_bytes()[:6] == b"begin\0"


def test_a_file_system_that_shares_blocks_is_asked_for_it(data, monkeypatch):
    """By FICLONE, and nothing is copied then; altered files are copies."""
    asked = []

    def clone(copy, request, original):
        asked.append(request)
        os.sendfile(copy, original, 0, os.fstat(original).st_size)

    monkeypatch.setattr(fcntl, "ioctl", clone)
    with damaged_copy(data, TruncatedFile("*.dat")) as folder:
        assert (folder / "labels.pkl").read_bytes() == (data / "labels.pkl").read_bytes()
        assert (folder / "train" / "values.dat").stat().st_size == MB // 2
    assert asked == [0x40049409] * 3


def test_links_are_replaced_by_what_they_lead_to(data):
    """A write to the copy of a link, to a file or a folder outside, stays in the copy."""
    linked = data.parent / "linked"
    linked.mkdir()
    (linked / "labels").symlink_to(data / "labels.pkl")
    (linked / "train").symlink_to(data / "train")
    with damaged_copy(linked, TruncatedFile("*/train/*.dat")) as folder:
        assert not any((folder / name).is_symlink() for name in ("labels", "train"))
        assert (folder / "train" / "values.dat").stat().st_size == MB // 2
        (folder / "labels").write_bytes(b"overwritten")
        (folder / "train" / "deep" / "notes.txt").write_bytes(b"overwritten")


@rows("target", ["nothing", "/nothing/at/all", "labels.pkl/nothing", "{outside}"])
def test_a_link_that_leads_nowhere_still_does(data, target):
    """It is there, opening it fails, and a write creates no file, also where the link could."""
    outside = data.parent / "outside.bin"
    with _link(data / "way.bin", target.format(outside=outside)) as way:
        with damaged_copy(data, TruncatedFile("*.dat")) as folder:
            assert (folder / way.name).is_symlink()
            for mode in ("rb", "wb"):
                with pytest.raises(FileNotFoundError):
                    open(folder / way.name, mode)
        assert not outside.exists()


@contextlib.contextmanager
def _link(path, target):
    """A link for a while, after which the folder that it is in is as before."""
    before = os.stat(path.parent)
    path.symlink_to(target)
    try:
        yield path
    finally:
        path.unlink()
        os.utime(path.parent, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_link_to_itself_still_is_one(data):
    """Opening it fails as before."""
    with (
        _link(data / "way.bin", "way.bin"),
        damaged_copy(data, TruncatedFile("*.dat")) as folder,
        pytest.raises(OSError, match=re.escape(os.strerror(errno.ELOOP))),
    ):
        open(folder / "way.bin", "rb")


@rows("target", ["..", "{data}/train", "{data}", "."])
def test_a_loop_of_folders_is_one_in_the_copy(data, target):
    """A link to a folder around itself leads to the copy of that, and never out of it."""
    with (
        _link(data / "train" / "way", target.format(data=data)),
        damaged_copy(data, TruncatedFile("*.dat")) as folder,
    ):
        real = (folder / "train" / "way").resolve()
        assert real.is_relative_to(folder)
        assert real.name == (data / "train" / "way").resolve().name


def test_folders_that_lead_to_each_other(data):
    """Two folders with links to each other are copied, and the copy has an end."""
    for one, other in ("ab", "ba"):
        (data.parent / "rings" / one).mkdir(parents=True)
        (data.parent / "rings" / one / f"{one}.bin").write_bytes(b"data")
        (data.parent / "rings" / one / "way").symlink_to(f"../{other}")
    with damaged_copy(data.parent / "rings", TruncatedFile("*/a.bin")) as folder:
        assert (folder / "a" / "way" / "way").resolve() == folder / "a"
        for path in ("a/a.bin", "b/way/a.bin"):
            assert (folder / path).read_bytes() == b"da"


def test_a_link_to_a_folder_with_the_folder_in_it_is_refused(data):
    """The error names the link."""
    with _link(data / "train" / "way", "../.."):
        text = _refused(data, TruncatedFile("*.dat"))
    assert lacks(text, f"{data}/train/way is a link to {data.parent}", "Take the link away") == []


def test_links_in_place_of_copies(data):
    """Only what a fault means is copied, if that is asked for."""
    with damaged_copy(data, TruncatedFile("*.dat"), links="symlink") as folder:
        assert os.readlink(folder / "labels.pkl") == str(data / "labels.pkl")
        assert not (folder / "train").is_symlink()
        assert not (folder / "train" / "values.dat").is_symlink()
        with pytest.raises(ValueError, match="mmap length"):
            Mapped(folder)
    with damaged_copy(data, TruncatedFile("*.txt"), links="symlink") as folder:
        assert Mapped(folder)[7] == (7, "label 7")


def test_links_that_code_makes_are_not_followed(data):
    """The end of the scope removes a link to a folder, and leaves that as it is."""
    with damaged_copy(data, TruncatedFile("*.dat")) as folder:
        (folder / "way").symlink_to(data / "train")


@rows("links", ["copy", "symlink"])
def test_read_only_folders_are_removed_too(links):
    """Also by a user who is not root; what links lead to keeps its mode."""
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        os.chmod(shared, 0o777)  # noqa: S103  # another user writes there
        child = fork()
        if not child:
            _exit_after(lambda: _copy_a_read_only_folder(shared, links))
        assert os.waitpid(child, 0)[1] == 0


def _exit_after(act):
    """End this process: by 0 if *act* raises nothing."""
    status = 1
    try:
        if os.getuid() == 0:
            become_nobody(0)
        act()
        status = 0
    finally:
        os._exit(status)


def _copy_a_read_only_folder(shared, links):
    data, tempfile.tempdir = Path(shared) / "data", f"{shared}/temporary"
    os.mkdir(tempfile.tempdir)
    (data / "inner").mkdir(parents=True)
    for name in ("values.dat", "inner/other.dat", "inner/labels.pkl"):
        (data / name).write_bytes(bytes(100))
        (data / name).chmod(0o444)
    for each in (data / "inner", data):
        each.chmod(0o555)
    with damaged_copy(data, TruncatedFile("*.dat"), links=links) as folder:
        assert stat.S_IMODE((folder / "inner").stat().st_mode) == 0o555
        assert stat.S_IMODE((folder / "values.dat").stat().st_mode) == 0o444
        with pytest.raises(PermissionError):
            (folder / "inner" / "new").write_bytes(b"")
    assert os.listdir(tempfile.tempdir) == []
    assert stat.S_IMODE((data / "inner" / "labels.pkl").stat().st_mode) == 0o444
    for each in (data, data / "inner"):
        each.chmod(0o755)


@rows(
    ("fault", "parts"),
    [
        (ReadError("*.dat"), ["ReadError(path='*.dat')", "TruncatedFile, CorruptedFile", "inject"]),
        (OpenError("*.dat"), ["OpenError(path='*.dat')", "OpenError(..., errno=errno.ENOENT)"]),
        (OpenError("*.dat", MISSING, nth=2), ["nth=2", "leave out nth"]),
        (OpenError("*.dat", MISSING, probability=0.5), ["0.5", "leave out nth"]),
        (TruncatedFile("*.dat", workers=(1,)), ["workers=(1,)", "leave out workers"]),
        (OpenError("*.dat", MISSING, workers=(1,)), ["workers=(1,)", "leave out workers"]),
        (TruncatedFile, ["Call it: TruncatedFile()"]),
        ([TruncatedFile()], ["[TruncatedFile()] is no fault, but several things"]),
        ("*.dat", ["'*.dat' is no fault", "A copy can have TruncatedFile"]),
    ],
)
def test_what_no_copy_can_have_is_refused(data, fault, parts):
    """The error shows what was given, says what a copy can have, and what to do."""
    assert lacks(_refused(data, fault), *parts) == []


@rows(
    ("fault", "parts"),
    [
        (TruncatedFile("*.npy"), ["its globs match none", "It has 4 files: "]),
        (TruncatedFile("values.dat"), ["'*/values.dat' would match"]),
        (TruncatedFile("*.{dat,pkl}"), ["give a tuple of globs"]),
        (TruncatedFile("*.dat", keep=MB), [f"values.dat ({MB} bytes)", "keep less"]),
        (OpenError("*.npy", MISSING), ["its globs match none"]),
    ],
)
def test_a_fault_that_alters_nothing_is_refused(data, fault, parts):
    """Also beside one that does; the error names the fault, and the files that there are."""
    for faults in ([fault], [TruncatedFile("*.txt"), fault]):
        text = _refused(data, *faults)
        assert lacks(text, f"{fault} alters no file of {data}", "labels.pkl", *parts) == []


def test_a_fault_that_another_one_hides_is_refused(data):
    """A file that is missing is not shorter as well; bytes that are cut off do not differ."""
    hidden = CorruptedFile("*.dat", seed=1)
    assert "another fault leaves nothing" in _refused(data, OpenError("*.dat", MISSING), hidden)
    assert "another fault leaves nothing" in _refused(data, TruncatedFile("*.dat", 0), hidden)
    cuts = TruncatedFile("*.dat", 0.2), TruncatedFile("*.dat", 0.9)
    assert f"{cuts[1]} alters no file" in _refused(data, *cuts)


def test_empty_files_and_folders_have_nothing_to_alter(tmp_path):
    """No byte of an empty file can differ, and a folder may have no file."""
    (tmp_path / "empty").mkdir()
    assert "It has no file" in _refused(tmp_path / "empty", CorruptedFile("*"))
    (tmp_path / "empty" / "a.bin").touch()
    assert "a.bin (0 bytes)" in _refused(tmp_path / "empty", CorruptedFile("*"))


def test_code_is_left_alone_unless_it_is_named(tmp_path):
    """By the globs of workers' faults; it is copied."""
    (tmp_path / "code").mkdir()
    for name in ("model.py", "data.bin"):
        (tmp_path / "code" / name).write_bytes(b"1 + 1")
    with damaged_copy(tmp_path / "code", TruncatedFile("*")) as folder:
        assert [(folder / name).stat().st_size for name in ("model.py", "data.bin")] == [5, 2]
    literally = str(tmp_path / "code" / "model.py")
    text = _refused(tmp_path / "code", TruncatedFile("*.py"))
    assert f"left out unless a glob names them literally, as {literally!r}" in text
    with damaged_copy(tmp_path / "code", TruncatedFile(literally)) as folder:
        assert (folder / "model.py").stat().st_size == 2


@rows(
    ("folder", "told"),
    [
        (3, "folder=3 must be the path of a folder"),
        (None, "folder=None must be the path of a folder"),
        (b"/tmp", "folder=b'/tmp' must be the path of a folder, a str or a pathlib.Path"),
        ("", "folder='' must be a folder that exists (the current folder is "),
        ("/no/such", "folder='/no/such' must be a folder that exists"),
        ("a\0b", "folder='a\\x00b' must be a folder that exists"),
    ],
)
def test_what_is_no_folder_is_refused(folder, told):
    """The error shows it."""
    assert told in _refused(folder, TruncatedFile())


def test_a_file_is_no_folder(data):
    """The error names the folder that it is in."""
    text = _refused(data / "labels.pkl", TruncatedFile())
    assert f"a folder, and is a file: give {str(data)!r}" in text


def test_other_arguments_are_looked_at(data):
    """No fault at all, and a word that is no way to copy."""
    assert "no fault was given" in _refused(data)
    assert "links='hard' must be one of copy, symlink" in _refused(
        data, TruncatedFile("*.dat"), links="hard"
    )


def test_a_folder_with_the_place_for_copies_in_it_is_refused(data, place):
    """It would be changed by its own copy."""
    assert f"does not contain {str(place)!r}" in _refused(data.parent, TruncatedFile("*.dat"))


def _bind(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


@rows("make", [os.mkfifo, _bind])
def test_what_is_neither_a_file_nor_a_folder_is_refused(tmp_path, make, monkeypatch):
    """The error names it, and nothing waits for it."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    monkeypatch.chdir(folder)
    (folder / "data.bin").write_bytes(b"data")
    make("odd")
    assert f"{folder}/odd is neither a file nor a folder" in _refused(folder, TruncatedFile())


def test_fake_files_are_refused():
    """A copy would be of the real files, which code under pyfakefs does not see."""
    with FakeDatasetFs() as files:
        files.create_file("/data/0.bin", contents=b"data")
        assert "pyfakefs" in _refused("/data", TruncatedFile())
