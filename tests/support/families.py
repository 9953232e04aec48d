"""Reading in processes and threads that a worker starts itself."""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.tries import ENOUGH

THREADS = 8


def in_a_child(read: Callable[[], Any], meanwhile: Callable[[], object] = lambda: None) -> Any:
    """What *read* gives, or raises, in a fork of this process, which does *meanwhile*."""
    source, sink = os.pipe()
    pid = _fork()
    if not pid:
        _tell(sink, read)
    os.close(sink)
    meanwhile()
    with open(source, "rb") as pipe:
        gave = pickle.loads(pipe.read())  # noqa: S301  # our own child wrote it
    os.waitpid(pid, 0)
    if isinstance(gave, OSError):
        raise gave
    return gave


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: threads, torch's.
        return os.fork()


def _tell(sink: int, read: Callable[[], Any]) -> None:
    """Write what *read* gives, and end this process."""
    try:
        gave = read()
    except OSError as error:
        gave = error
    os.write(sink, pickle.dumps(gave))
    os._exit(0)


def child(path: str) -> bytes:
    """A fork opens and reads it."""
    return in_a_child(lambda: Path(path).read_bytes())


def grandchild(path: str) -> bytes:
    """A fork of a fork does."""
    return in_a_child(lambda: child(path))


def child_elsewhere(path: str) -> bytes:
    """A fork that has gone to a folder of its own opens it by its name alone."""
    folder, name = os.path.split(path)

    def read() -> bytes:
        os.chdir(folder)
        return Path(name).read_bytes()

    return in_a_child(read)


def child_of_descriptor(path: str) -> bytes:
    """The worker opens it, a fork reads it."""
    with open(path, "rb", buffering=0) as file:
        return in_a_child(file.read)


def program(path: str) -> bytes:
    """Another program opens and reads it."""
    return _output(["cat", path])


def shell(path: str) -> bytes:
    """So does a program's own child."""
    return _output(["sh", "-c", 'cat "$0"; true', path])


def inherited_descriptor(path: str) -> bytes:
    """Another program reads what the worker has opened, by the descriptor's number."""
    with open(path, "rb") as file:
        fd = file.fileno()
        code = f"import os, sys; sys.stdout.buffer.write(os.read({fd}, {ENOUGH}))"
        return _output(["python3", "-S", "-E", "-c", code], pass_fds=[fd])


def standard_input(path: str) -> bytes:
    """Another program reads it at number 0, where dup2(2) has put it."""
    with open(path, "rb") as file:
        return _output(["cat"], stdin=file)


def _output(command: list[str], **options: Any) -> bytes:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, check=False, env=environment, **options)
    if done.stderr:
        raise ChildProcessError(done.stderr.decode(errors="replace"))
    return done.stdout


def in_threads(paths: list[str]) -> list[bytes | str]:
    """What eight threads at once get out of these files, in their order."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(_bytes_or_error, paths))


def _bytes_or_error(path: str) -> bytes | str:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        return str(error)


def direct(path: str) -> bytes:
    """Past the page cache, into a buffer that is aligned."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, ENOUGH) as buffer:
            return buffer[: os.preadv(fd, [buffer], 0)]
    finally:
        os.close(fd)


FAMILIES: dict[str, Callable[[str], bytes]] = {
    way.__name__: way
    for way in (
        child,
        grandchild,
        child_elsewhere,
        child_of_descriptor,
        program,
        shell,
        inherited_descriptor,
    )
}
