"""What the machine or the user lacks is told as that, and never as a verdict on the dataset."""

import errno
import functools
import os
import re
import resource
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._engine.system import temporary
from pytest_dataloader_faults._trial.process.environment import FreeResources
from pytest_dataloader_faults.exceptions import UnusableEnvironmentError
from pytest_dataloader_faults.faults import (
    OpenError,
    SlowRead,
)
from pytest_dataloader_faults.outcomes.stages import DONE
from support.datasets import Records, write_records
from support.surroundings import (
    mount_tmpfs,
    mounts_are_refused,
    traceback_under,
    with_processes,
)

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
    """Skip, with the reason, where nobody may mount."""
    if _reason():
        pytest.skip(f"this needs a file system of its own: {_reason()}")


def _refusal(traceback: str) -> str:
    """The text of the refusal that ended a body, as its *traceback* shows it."""
    match = re.search(r"UnusableEnvironmentError: (.*)", traceback)
    return match[1] if match else f"no refusal, but: {traceback[-600:]}"


def _try(make_dataset, *faults, **options):
    return run_trial(make_dataset, *faults, **{"deadline": SHORT, **options})


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        ("size=48k", [TOO_LITTLE, "/dev/shm has 48 KiB", "--shm-size=1g"]),
        ("nr_inodes=9", [TOO_LITTLE, "8 files left", "--shm-size=1g"]),
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


def test_a_folder_for_temporary_files_without_inodes_is_refused(records, tmp_path, mounts):
    body = functools.partial(_in, tmp_path, lambda: _try(lambda: Records(records)))
    prepare = mount_tmpfs({str(tmp_path): "nr_inodes=5"})
    text = _refusal(traceback_under(body, prepare))
    assert text.startswith("no disk space for temporary files: ")
    assert str(tmp_path) in text
    assert "TMPDIR" in text


def test_a_dataset_that_needs_room_in_a_full_folder_is_not_judged(
    tmp_path, tmp_path_factory, mounts
):
    records = _written(tmp_path_factory)
    body = functools.partial(_in, tmp_path, lambda: _try(lambda: Scribbles(records)), fill=True)
    text = _refusal(traceback_under(body, mount_tmpfs({str(tmp_path): "size=256k"})))
    assert text.startswith("no disk space for temporary files: ")
    assert "No space left on device" in text


def _written(factory) -> Path:
    """Records in a folder beside those that others are mounted over."""
    return write_records(factory.mktemp("beside") / "records")


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


@pytest.mark.parametrize("limit", [1, 3, LEAST - 1])
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


def test_a_long_path_and_no_short_one_are_reported(long_path, records, monkeypatch):
    monkeypatch.setattr(temporary, "_SHORT", "/no/such/folder")
    with pytest.raises(UnusableEnvironmentError, match="Set TMPDIR to a folder with a shorter"):
        run_trial(lambda: Records(records), deadline=SHORT)


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


@pytest.fixture(name="path")
def _path():
    """A file that everybody may read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "x.bin").write_bytes(b"some bytes")
    yield folder / "x.bin"
    shutil.rmtree(folder)
