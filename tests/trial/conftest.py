"""What a trial could leave behind, told apart from what others on the machine do meanwhile."""

import contextlib
import os
import resource
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pytest_dataloader_faults._trial import take_reference
from pytest_dataloader_faults.outcomes import Reference
from support.datasets import Records, write_records
from support.waiting import until


class Traces:
    """Everything that was there before, and what is there besides it now.

    A process inherits the current folder of its parent, by fork and exec alike: the one of the test
    is the mark by which the trial's processes are found, wherever they went.
    """

    def __init__(self, home: Path, temporary: Path) -> None:
        self.home = home
        self.temporary = temporary
        self.before = self._lists()
        self.settings = _settings()

    def left(self) -> list[str]:
        """What is left behind. Shared memory of others is only seen to go away by itself."""
        leftovers = self._new()

        def settled() -> bool:
            still = self._new()
            leftovers[:] = [each for each in leftovers if not _is_shared(each) or each in still]
            return not any(map(_is_shared, leftovers))

        until(settled, 20)
        changed = _settings().items() - self.settings.items()
        return leftovers + [f"{name} is {value}" for name, value in changed]

    def _new(self) -> list[str]:
        new = sorted(set(self._lists()) - set(self.before))
        if not any(map(_is_shared, new)):
            return new
        mapped = _mapped_by_others(self.home)
        return [each for each in new if not (_is_shared(each) and each.split()[-1] in mapped)]

    def _lists(self) -> list[str]:
        return [
            *(f"descriptor {each}" for each in _descriptors()),
            *(f"shared memory {each}" for each in os.listdir("/dev/shm")),
            *(f"temporary file {each}" for each in os.listdir(self.temporary)),
            *(f"process {each}" for each in processes_in(self.home) if each != os.getpid()),
            *(f"child {each.pid}" for each in psutil.Process().children()),
            *(f"thread {each.name}" for each in threading.enumerate()),
        ]


def processes_in(folder: Path) -> list[int]:
    running = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(folder):
                running.append(process.pid)
    return running


def _is_shared(trace: str) -> bool:
    return trace.startswith("shared memory")


def _mapped_by_others(home: Path) -> str:
    ours = {os.getpid(), *processes_in(home)}
    texts = []
    for pid in set(psutil.pids()) - ours:
        with contextlib.suppress(OSError):  # It ended, or is not ours to look into.
            texts.append(Path(f"/proc/{pid}/maps").read_text("utf-8", "surrogateescape"))
    return "\n".join(texts)


def _descriptors() -> list[str]:
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # The one that listed the folder.
            descriptors.append(f"{name} ({os.readlink(f'/proc/self/fd/{name}')})")
    return descriptors


def _settings() -> dict[str, object]:
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    limits = {"limit of descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)}
    return {**{f"handler of {number}": each for number, each in handlers.items()}, **limits}


@pytest.fixture(name="reference", scope="session")
def _reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Of ``Records``, whose folders have the same content in all tests."""
    folder = write_records(tmp_path_factory.mktemp("reference") / "records")
    return take_reference(lambda: Records(folder))


@pytest.fixture(name="left_behind")
def _left_behind(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    """Call it at the end: all that the test has left behind, as a list of sentences."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    temporary = tmp_path_factory.mktemp("t")  # Short, since sockets are made in it.
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return Traces(home, temporary).left
