"""What the machine or the user lacks is told as that, and never as a verdict on the dataset."""

import contextlib
import errno
import functools
import hashlib
import os
import re
import resource
import socket
import stat
import tempfile
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._engine.file_copies import copy_folder
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults._trial.process.surroundings import FreeResources
from pytest_dataloader_faults.exceptions import InvalidArgumentError, UnusableEnvironmentError
from pytest_dataloader_faults.faults import OpenError, SlowRead
from pytest_dataloader_faults.outcomes.stages import DONE
from support.children import become_nobody
from support.datasets import Records, write_records
from support.refusals import missing_parts, refusal
from support.rows import rows
from support.surroundings import mount_tmpfs, mounts_are_refused, traceback_under, with_processes

SHORT = 4.0
TOO_LITTLE = "^too little shared memory: "
NO_ROOM = "unable to (allocate|open) shared memory|unable to write to file"
"""torch says the last of these before 2.10."""
LEAST = 6
"""A user's processes: the test's, the warden, the loader's, the supervisor, and two workers."""


@functools.cache
def _reason() -> str:
    return mounts_are_refused()


@pytest.fixture(name="mounts")
def _mounts():
    if _reason():
        pytest.skip(f"this needs a file system of its own: {_reason()}")


def _refusal(traceback: str) -> str:
    match = re.search(r"UnusableEnvironmentError: (.*)", traceback)
    return match[1] if match else f"no refusal, but: {traceback[-600:]}"


def _try(make_dataset, *faults, **options):
    return run_trial(make_dataset, *faults, **{"deadline": SHORT, **options})


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        ("size=48k", [TOO_LITTLE, "/dev/shm has 48 KiB", "--shm-size=1g"]),
        ("size=64k", [TOO_LITTLE, NO_ROOM, "--shm-size=1g"]),
        ("ro", ["no shared memory: /dev/shm is not writable"]),
    ],
)
def test_a_small_shared_memory_is_refused(records, mounts, options, phrases):
    """Before anything is tried, or when torch has met its end; the text says how to enlarge it."""
    body = functools.partial(_try, lambda: Records(records))
    text = _refusal(traceback_under(body, mount_tmpfs({"/dev/shm": options})))
    assert [phrase for phrase in phrases if not re.search(phrase, text)] == []


class Scribbles(Records):
    """Writes a temporary file for each sample, of 64 KiB."""

    def __getitem__(self, index):
        with tempfile.TemporaryFile() as file:
            file.write(bytes(1 << 16))
            file.flush()
        return super().__getitem__(index)


def _in(folder: Path, body, *, fill: bool = False) -> None:
    """Do *body* with temporary files in *folder*, which may be made full first."""
    tempfile.tempdir = str(folder)
    if fill:
        with pytest.raises(OSError, match="No space left"):
            _fill(folder / "filling")
    body()


def _fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def test_a_dataset_that_needs_room_in_a_full_folder_is_not_judged(
    tmp_path, tmp_path_factory, mounts
):
    records = write_records(tmp_path_factory.mktemp("beside") / "records")
    body = functools.partial(_in, tmp_path, lambda: _try(lambda: Scribbles(records)), fill=True)
    text = _refusal(traceback_under(body, mount_tmpfs({str(tmp_path): "size=256k"})))
    assert text.startswith("no disk space for temporary files: ")
    assert "No space left on device" in text


@pytest.mark.parametrize("free", [4, 24])
def test_a_low_limit_of_descriptors_is_refused(records, free):
    """Whether it is seen beforehand or met on the way, and in pytest's process or in another."""

    def body():
        resource.setrlimit(resource.RLIMIT_NOFILE, (_opened() + free, _hard()))
        _try(lambda: Records(records))

    text = _refusal(traceback_under(body, lambda: None))
    assert text.startswith("too few file descriptors: ")
    assert "ulimit -n 4096" in text


def _opened() -> int:
    return len(os.listdir("/proc/self/fd"))


def _hard() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_an_error_of_open_that_was_ordered_is_not_the_machine(records):
    def body():
        resource.setrlimit(resource.RLIMIT_NOFILE, (_opened() + 56, _hard()))
        outcome = _try(lambda: Records(records), OpenError("*.rec", errno.EMFILE), deadline=30)
        assert outcome.exception.type == "OSError"

    assert traceback_under(body, lambda: None) == ""


def _numbers():
    return TensorDataset(torch.arange(16))


@pytest.mark.parametrize("limit", [1, LEAST - 1])
def test_a_full_process_table_is_refused(limit):
    """Whichever process cannot be started, or thread."""
    if os.getuid():
        pytest.skip("this needs a user of its own, which only root can become")
    text = _refusal(traceback_under(lambda: _try(_numbers), with_processes(limit)))
    assert text.startswith("too few processes: ")
    assert "ulimit -u" in text


@pytest.fixture(name="long_path")
def _long_path(tmp_path, monkeypatch):
    """Temporary files are made in a folder whose path leaves no room for that of a socket."""
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.usefixtures("engine")
def test_a_long_path_for_temporary_files_hangs_no_loader(long_path, records):
    """The workers of torch alone cannot share a tensor there, and their loader waits forever."""
    outcome = run_trial(lambda: Records(records), deadline=SHORT)
    assert (outcome.phase, len(outcome.delivered)) == (DONE, 4)
    with inject(SlowRead("*.rec", seconds=0.001)):
        loader = DataLoader(Records(records), num_workers=1, batch_size=4, timeout=SHORT)
        assert len(list(loader)) == 4
    assert list(long_path.iterdir()) == []


def test_complete_texts(golden):
    page = resource.getpagesize()
    small = os.statvfs_result((page, page, 100, 2, 2, 100, 3, 3, 0, 255))
    free = {
        "descriptors": FreeResources(64, 60, None),
        "no shared memory": FreeResources(1024, 60, None),
        "little shared memory": FreeResources(1024, 60, small),
    }
    texts = {}
    for title, free_resources in free.items():
        with pytest.raises(UnusableEnvironmentError) as refused:
            free_resources.require_for(2)
        texts[title] = str(refused.value)
    golden("environment", texts)


MB = 1 << 20
ODD = os.fsdecode(b"caf\xe9.bin")
"""A name that is no text: Latin-1 on a system whose names are UTF-8."""


def _facts(path):
    status = os.lstat(path)
    content = Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else b""
    return status.st_mode, status.st_mtime_ns, status.st_nlink, hashlib.sha256(content).hexdigest()


def _folder_facts(folder):
    inside = (os.path.join(at, name) for at, *names in os.walk(folder) for name in chain(*names))
    return {os.path.relpath(path, folder): _facts(path) for path in [folder, *inside]}


@pytest.fixture(name="data")
def _data(tmp_path):
    """A folder with files in folders; no test may change it."""
    data = tmp_path / "data"
    (data / "train" / "deep").mkdir(parents=True)
    (data / "train" / "values.dat").write_bytes(bytes(range(256)) * 4096)
    (data / "labels.pkl").write_bytes(b"labels")
    (data / "train" / "deep" / "notes.txt").write_text("notes", encoding="utf-8")
    (data / ODD).write_bytes(bytes(100))
    for path in data.rglob("*"):
        os.utime(path, ns=(1, 987_654_321_123_456_789))
    facts = _folder_facts(data)
    yield data
    assert _folder_facts(data) == facts


def _copy(folder):
    copy = Path(tempfile.mkdtemp(dir=folder.parent)) / "copy"
    copy_folder(str(folder), str(copy))
    return copy


def _refusal_of_copy(folder):
    return refusal(InvalidArgumentError, _copy, folder)


def test_files_and_folders_are_copied_with_their_facts(data):
    facts = _folder_facts(data)
    copy = _copy(data)
    assert _folder_facts(copy) == facts
    (copy / "labels.pkl").write_bytes(b"overwritten")
    (copy / "new.bin").write_bytes(b"new")
    assert _folder_facts(data) == facts


def test_sparse_files_stay_sparse(tmp_path):
    sparse = tmp_path / "sparse"
    sparse.mkdir()
    with open(sparse / "data.bin", "wb") as file:
        file.truncate(64 * MB)
        file.write(b"begin")
    copy = _copy(sparse) / "data.bin"
    assert copy.stat().st_size == 64 * MB
    assert copy.stat().st_blocks * 512 < MB
    assert copy.read_bytes()[:6] == b"begin\0"


def test_links_are_replaced_by_what_they_lead_to(data):
    linked = data.parent / "linked"
    linked.mkdir()
    (linked / "labels").symlink_to(data / "labels.pkl")
    (linked / "train").symlink_to(data / "train")
    copy = _copy(linked)
    assert not any((copy / name).is_symlink() for name in ("labels", "train"))
    (copy / "labels").write_bytes(b"overwritten")
    (copy / "train" / "deep" / "notes.txt").write_bytes(b"overwritten")


@contextlib.contextmanager
def _link(path, target):
    status = os.stat(path.parent)
    path.symlink_to(target)
    try:
        yield path
    finally:
        path.unlink()
        os.utime(path.parent, ns=(status.st_atime_ns, status.st_mtime_ns))


@rows("target", ["nothing", "/nothing/at/all", "labels.pkl/nothing", "{outside}"])
def test_a_link_that_leads_nowhere_still_does(data, target):
    outside = data.parent / "outside.bin"
    with _link(data / "way.bin", target.format(outside=outside)) as way:
        copied_link = _copy(data) / way.name
    assert copied_link.is_symlink()
    for mode in ("rb", "wb"):
        with pytest.raises(FileNotFoundError):
            open(copied_link, mode)
    assert not outside.exists()


@rows("target", ["..", "{data}/train", "{data}", "."])
def test_a_loop_of_folders_is_one_in_the_copy(data, target):
    """A link to a folder around itself leads to the copy of that, and never out of it."""
    with _link(data / "train" / "way", target.format(data=data)):
        copy, original = _copy(data), (data / "train" / "way").resolve()
    leads_to = (copy / "train" / "way").resolve()
    assert leads_to == copy / original.relative_to(data)


def test_a_link_to_a_folder_with_the_folder_in_it_is_refused(data):
    with _link(data / "train" / "way", "../.."):
        text = _refusal_of_copy(data)
    assert (
        missing_parts(text, f"{data}/train/way is a link to {data.parent}", "Remove the link") == []
    )


def test_a_folder_with_the_place_for_copies_in_it_is_refused(data):
    """It would be changed by its own copy."""
    text = refusal(InvalidArgumentError, copy_folder, str(data.parent), str(data / "copy"))
    assert f"does not contain {str(data)!r}" in text


def _bind(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


@rows("make", [os.mkfifo, _bind])
def test_what_is_neither_a_file_nor_a_folder_is_refused(tmp_path, make, monkeypatch):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    monkeypatch.chdir(folder)
    (folder / "data.bin").write_bytes(b"data")
    make("odd")
    assert f"{folder}/odd is neither a file nor a folder" in _refusal_of_copy(folder)


def test_read_only_folders_are_removed_too():
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        os.chmod(shared, 0o777)  # noqa: S103  # another user writes there
        child = fork()
        if not child:
            _exit_after(lambda: _copy_a_read_only_folder(Path(shared)))
        assert os.waitpid(child, 0)[1] == 0


def _exit_after(act):
    """End this process: by 0 if *act* raises nothing."""
    status = 1
    try:
        if os.getuid() == 0:
            become_nobody()
        act()
        status = 0
    finally:
        os._exit(status)


def _copy_a_read_only_folder(shared):
    data = shared / "data"
    (data / "inner").mkdir(parents=True)
    (data / "inner" / "other.dat").write_bytes(bytes(100))
    (data / "inner" / "other.dat").chmod(0o444)
    for path in (data / "inner", data):
        path.chmod(0o555)
    copy = _copy(data)
    assert stat.S_IMODE((copy / "inner").stat().st_mode) == 0o555
    assert stat.S_IMODE((copy / "inner" / "other.dat").stat().st_mode) == 0o444
    with pytest.raises(PermissionError):
        (copy / "inner" / "new").write_bytes(b"")
    temporary.remove(str(copy))
    assert not copy.exists()
    for path in (data, data / "inner"):
        path.chmod(0o755)
