"""Damaged copies of a folder, for what a dataset opens in the test's own process."""

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
from support.refusals import missing_parts, refusal
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
    status = os.lstat(path)
    content = Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else b""
    return status.st_mode, status.st_mtime_ns, status.st_nlink, hashlib.sha256(content).hexdigest()


def _folder_facts(folder):
    """The facts of a folder, and of all that is in it, by relative names."""
    inside = (os.path.join(at, name) for at, *names in os.walk(folder) for name in chain(*names))
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
    facts = _folder_facts(data)
    yield data
    assert _folder_facts(data) == facts


def _differences(copy, original):
    copied, intact = (np.fromfile(path, np.uint8) for path in (copy, original))
    assert copied.shape == intact.shape
    return list(np.flatnonzero(copied != intact))


def _refusal(*arguments, **options):
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
    with damaged_copy(data, fault) as folder, pytest.raises(error, match=text):
        Mapped(folder)
    with damaged_copy(data, TruncatedFile("*.txt")) as folder:
        assert Mapped(folder)[7] == (7, "label 7")


def test_a_constructor_reads_corrupted_bytes(data):
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
    faults = CorruptedFile("*/values.dat"), CorruptedFile(("*.dat", "*.txt"))
    with damaged_copy(data, *faults) as folder:
        assert len(_differences(folder / "train/values.dat", data / "train/values.dat")) == 1


def test_other_files_are_copied_with_their_facts(data):
    (data / "labels.pkl").chmod(0o640)
    facts = _folder_facts(data)
    with damaged_copy(data, TruncatedFile("*.txt")) as folder:
        copied_facts = _folder_facts(folder)
        (folder / "labels.pkl").write_bytes(b"overwritten")
        (folder / "new.bin").write_bytes(b"new")
        assert facts == _folder_facts(data)
    changed = {name for name in facts if facts[name] != copied_facts[name]}
    assert changed == {"train/deep/notes.txt"}
    (data / "labels.pkl").chmod(0o644)


def test_the_copy_has_the_name_of_the_folder(data, place, monkeypatch):
    monkeypatch.chdir(data.parent)
    with damaged_copy("data/", TruncatedFile("*.pkl")) as folder:
        assert isinstance(folder, Path)
        assert folder.name == "data"
        assert folder.is_relative_to(place)


def test_an_error_in_the_body_removes_the_copy_too(data):
    with pytest.raises(EOFError), damaged_copy(data, TruncatedFile("*.pkl", keep=0)) as folder:
        Mapped(folder)
    assert not folder.exists()


def test_a_copy_that_cannot_be_finished_is_removed(data, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*_arguments):
        raise full

    monkeypatch.setattr(folder_copies, "copy_content", fail)
    with pytest.raises(OSError, match="No space left"), damaged_copy(data, TruncatedFile("*.pkl")):
        pytest.fail("not reached")


def test_names_that_are_no_text(data):
    with damaged_copy(data, TruncatedFile(f"*/{ODD}", keep=7)) as folder:
        assert (folder / ODD).stat().st_size == 7
        assert (folder / "labels.pkl").stat().st_size > 7
    assert "caf\\udce9.bin" in _refusal(data, TruncatedFile("*.nothing"))


def test_a_large_file(data):
    path = data.parent / "large" / "records.bin"
    path.parent.mkdir()
    path.write_bytes(bytes(range(256)) * (80 * 1024))
    with damaged_copy(path.parent, CorruptedFile("*.bin", 3)) as folder:
        assert len(_differences(folder / "records.bin", path)) == 3


def test_sparse_files_stay_sparse(data):
    for name in ("cut.bin", "whole.bin"):
        with open(data.parent / name, "wb") as file:
            file.truncate(64 * MB)
            file.write(b"begin")
    sparse = data.parent / "sparse"
    sparse.mkdir()
    for name in ("cut.bin", "whole.bin"):
        os.rename(data.parent / name, sparse / name)
    with damaged_copy(sparse, TruncatedFile("*/cut.bin")) as folder:
        truncated, intact = (folder / name for name in ("cut.bin", "whole.bin"))
        assert (truncated.stat().st_size, intact.stat().st_size) == (32 * MB, 64 * MB)
        assert max(truncated.stat().st_blocks, intact.stat().st_blocks) * 512 < MB
        assert intact.read_bytes()[:6] == b"begin\0"


def test_a_file_system_that_shares_blocks_is_requested(data, monkeypatch):
    requests = []

    def clone(copy, request, original):
        requests.append(request)
        os.sendfile(copy, original, 0, os.fstat(original).st_size)

    monkeypatch.setattr(fcntl, "ioctl", clone)
    with damaged_copy(data, TruncatedFile("*.dat")) as folder:
        assert (folder / "labels.pkl").read_bytes() == (data / "labels.pkl").read_bytes()
        assert (folder / "train" / "values.dat").stat().st_size == MB // 2
    assert requests == [0x40049409] * 3


def test_links_are_replaced_by_what_they_lead_to(data):
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
    status = os.stat(path.parent)
    path.symlink_to(target)
    try:
        yield path
    finally:
        path.unlink()
        os.utime(path.parent, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_link_to_itself_still_is_one(data):
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
    for name, target in ("ab", "ba"):
        (data.parent / "rings" / name).mkdir(parents=True)
        (data.parent / "rings" / name / f"{name}.bin").write_bytes(b"data")
        (data.parent / "rings" / name / "way").symlink_to(f"../{target}")
    with damaged_copy(data.parent / "rings", TruncatedFile("*/a.bin")) as folder:
        assert (folder / "a" / "way" / "way").resolve() == folder / "a"
        for path in ("a/a.bin", "b/way/a.bin"):
            assert (folder / path).read_bytes() == b"da"


def test_a_link_to_a_folder_with_the_folder_in_it_is_refused(data):
    with _link(data / "train" / "way", "../.."):
        text = _refusal(data, TruncatedFile("*.dat"))
    assert (
        missing_parts(text, f"{data}/train/way is a link to {data.parent}", "Remove the link") == []
    )


def test_links_in_place_of_copies(data):
    with damaged_copy(data, TruncatedFile("*.dat"), links="symlink") as folder:
        assert os.readlink(folder / "labels.pkl") == str(data / "labels.pkl")
        assert not (folder / "train").is_symlink()
        assert not (folder / "train" / "values.dat").is_symlink()
        with pytest.raises(ValueError, match="mmap length"):
            Mapped(folder)
    with damaged_copy(data, TruncatedFile("*.txt"), links="symlink") as folder:
        assert Mapped(folder)[7] == (7, "label 7")


def test_links_that_code_makes_are_not_followed(data):
    with damaged_copy(data, TruncatedFile("*.dat")) as folder:
        (folder / "way").symlink_to(data / "train")


@rows("links", ["copy", "symlink"])
def test_read_only_folders_are_removed_too(links):
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
    for path in (data / "inner", data):
        path.chmod(0o555)
    with damaged_copy(data, TruncatedFile("*.dat"), links=links) as folder:
        assert stat.S_IMODE((folder / "inner").stat().st_mode) == 0o555
        assert stat.S_IMODE((folder / "values.dat").stat().st_mode) == 0o444
        with pytest.raises(PermissionError):
            (folder / "inner" / "new").write_bytes(b"")
    assert os.listdir(tempfile.tempdir) == []
    assert stat.S_IMODE((data / "inner" / "labels.pkl").stat().st_mode) == 0o444
    for path in (data, data / "inner"):
        path.chmod(0o755)


@rows(
    ("fault", "parts"),
    [
        (ReadError("*.dat"), ["ReadError(path='*.dat')", "TruncatedFile, CorruptedFile", "inject"]),
        (OpenError("*.dat"), ["OpenError(path='*.dat')", "OpenError(..., errno=errno.ENOENT)"]),
        (OpenError("*.dat", MISSING, nth=2), ["nth=2", "remove nth"]),
        (OpenError("*.dat", MISSING, probability=0.5), ["0.5", "remove nth"]),
        (TruncatedFile("*.dat", workers=(1,)), ["workers=(1,)", "remove workers"]),
        (OpenError("*.dat", MISSING, workers=(1,)), ["workers=(1,)", "remove workers"]),
        (TruncatedFile, ["Call it: TruncatedFile()"]),
        ([TruncatedFile()], ["[TruncatedFile()] is a list, not a fault"]),
        ("*.dat", ["'*.dat' is not a fault", "damaged_copy() accepts TruncatedFile"]),
    ],
)
def test_what_no_copy_can_have_is_refused(data, fault, parts):
    assert missing_parts(_refusal(data, fault), *parts) == []


@rows(
    ("fault", "parts"),
    [
        (TruncatedFile("*.npy"), ["its globs match none", "contains 4 files: "]),
        (TruncatedFile("values.dat"), ["'*/values.dat' would match"]),
        (TruncatedFile("*.{dat,pkl}"), ["pass a tuple of globs"]),
        (TruncatedFile("*.dat", keep=MB), [f"values.dat ({MB} bytes)", "keep less"]),
        (OpenError("*.npy", MISSING), ["its globs match none"]),
    ],
)
def test_a_fault_that_alters_nothing_is_refused(data, fault, parts):
    for faults in ([fault], [TruncatedFile("*.txt"), fault]):
        text = _refusal(data, *faults)
        problem = f"{fault} does not change any file of {data}"
        assert missing_parts(text, problem, "labels.pkl", *parts) == []


def test_a_fault_that_another_one_hides_is_refused(data):
    hidden = CorruptedFile("*.dat", seed=1)
    assert "another fault removes" in _refusal(data, OpenError("*.dat", MISSING), hidden)
    assert "another fault removes" in _refusal(data, TruncatedFile("*.dat", 0), hidden)
    cuts = TruncatedFile("*.dat", 0.2), TruncatedFile("*.dat", 0.9)
    assert f"{cuts[1]} does not change any file" in _refusal(data, *cuts)


def test_empty_files_and_folders_have_nothing_to_alter(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "contains no files" in _refusal(tmp_path / "empty", CorruptedFile("*"))
    (tmp_path / "empty" / "a.bin").touch()
    assert "a.bin (0 bytes)" in _refusal(tmp_path / "empty", CorruptedFile("*"))


def test_code_is_left_alone_unless_it_is_named(tmp_path):
    (tmp_path / "code").mkdir()
    for name in ("model.py", "data.bin"):
        (tmp_path / "code" / name).write_bytes(b"1 + 1")
    with damaged_copy(tmp_path / "code", TruncatedFile("*")) as folder:
        assert [(folder / name).stat().st_size for name in ("model.py", "data.bin")] == [5, 2]
    literally = str(tmp_path / "code" / "model.py")
    text = _refusal(tmp_path / "code", TruncatedFile("*.py"))
    assert f"excluded unless a glob names them literally, such as {literally!r}" in text
    with damaged_copy(tmp_path / "code", TruncatedFile(literally)) as folder:
        assert (folder / "model.py").stat().st_size == 2


@rows(
    ("folder", "message"),
    [
        (3, "folder=3 must be the path of a folder"),
        (None, "folder=None must be the path of a folder"),
        (b"/tmp", "folder=b'/tmp' must be the path of a folder, a str or a pathlib.Path"),
        ("", "folder='' must be an existing folder (the current folder is "),
        ("/no/such", "folder='/no/such' must be an existing folder"),
        ("a\0b", "folder='a\\x00b' must be an existing folder"),
    ],
)
def test_what_is_no_folder_is_refused(folder, message):
    assert message in _refusal(folder, TruncatedFile())


def test_a_file_is_no_folder(data):
    text = _refusal(data / "labels.pkl", TruncatedFile())
    assert f"a folder, but is a file: pass {str(data)!r}" in text


def test_other_arguments_are_looked_at(data):
    assert "no fault was passed" in _refusal(data)
    assert "links='hard' must be one of copy, symlink" in _refusal(
        data, TruncatedFile("*.dat"), links="hard"
    )


def test_a_folder_with_the_place_for_copies_in_it_is_refused(data, place):
    """It would be changed by its own copy."""
    assert f"does not contain {str(place)!r}" in _refusal(data.parent, TruncatedFile("*.dat"))


def _bind(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


@rows("make", [os.mkfifo, _bind])
def test_what_is_neither_a_file_nor_a_folder_is_refused(tmp_path, make, monkeypatch):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    monkeypatch.chdir(folder)
    (folder / "data.bin").write_bytes(b"data")
    make("odd")
    assert f"{folder}/odd is neither a file nor a folder" in _refusal(folder, TruncatedFile())


def test_fake_files_are_refused():
    """A copy would be of the real files, which code under pyfakefs does not see."""
    with FakeDatasetFs() as files:
        files.create_file("/data/0.bin", contents=b"data")
        assert "pyfakefs" in _refusal("/data", TruncatedFile())


def test_complete_texts(data, golden):
    cuts = TruncatedFile("*.dat", 0.2), TruncatedFile("*.dat", 0.9)
    calls = {
        "no fault": (data,),
        "a fault of a call": (data, ReadError("*.dat")),
        "a condition": (data, OpenError("*.dat", MISSING, nth=2)),
        "workers": (data, TruncatedFile("*.dat", workers=(1,))),
        "no match": (data, TruncatedFile("*.npy")),
        "too short": (data, TruncatedFile("*.dat", keep=MB)),
        "hidden by another fault": (data, *cuts),
        "a number": (3, TruncatedFile()),
        "a file": (data / "labels.pkl", TruncatedFile()),
        "no such folder": ("/no/such", TruncatedFile()),
        "links": (data, TruncatedFile("*.dat")),
    }
    texts = {
        title: _refusal(*call, **({"links": "hard"} if title == "links" else {}))
        for title, call in calls.items()
    }
    for path, name in ((str(data), "FOLDER"), (os.getcwd(), "HERE")):
        texts = {title: text.replace(path, name) for title, text in texts.items()}
    golden("damaged_copy", texts)
