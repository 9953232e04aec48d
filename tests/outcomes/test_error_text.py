"""Which error messages explain a fault, for errors that were really raised."""

from __future__ import annotations

import errno
import io
import os
import re
import traceback

import h5py
import numpy as np
import pytest
from torch._utils import ExceptionWrapper

from pytest_dataloader_faults.faults import (
    ClosedDescriptor,
    ConnectionReset,
    CorruptedFile,
    DescriptorExhaustion,
    HungRead,
    OpenError,
    ReadError,
    ThreadExhaustion,
    TruncatedFile,
    WorkerKilled,
    WriteError,
)
from pytest_dataloader_faults.outcomes.chains import exception_lines
from pytest_dataloader_faults.outcomes.error_text import Occurrence, find_other_cause, mentions_path
from pytest_dataloader_faults.outcomes.libraries import LIBRARIES
from pytest_dataloader_faults.outcomes.text import without_binary
from support.clarity import explains
from support.readers import DECODING
from support.rows import rows
from support.specimens import UnbuildableError

PATH = "/data/0042.jpg"
PEER = "tcp://192.0.2.1:443"
EIO = ReadError()


def _os_error(number=errno.EIO, *arguments):
    raise OSError(number, os.strerror(number), *arguments)


def _with_cause():
    try:
        _os_error()
    except OSError as error:
        message = "bad sample"
        raise RuntimeError(message) from error


def _in_handler():
    try:
        _os_error()
    except OSError:
        message = "bad sample"
        raise RuntimeError(message)  # noqa: B904  # the implicit context is the subject


class _Substitutes:
    """Looks for another sample in the handler, and reaches one that does not exist."""

    def __init__(self, samples):
        self.samples = samples

    def __getitem__(self, index):
        sample = self.samples[index]
        try:
            return sample()
        except OSError:
            return self[index + 1]

    def forever(self):
        try:
            return self.samples[0]()
        except OSError:
            return self.forever()


def _with_substitute_index():
    return _Substitutes([_os_error] * 3)[0]


def _with_endless_substitutes():
    return _Substitutes([_os_error]).forever()


def _with_unbound_local():
    try:
        _os_error()
    except OSError:
        return sample  # noqa: F821  # that is the bug
    else:
        sample = 1
        return sample  # noqa: RET504  # a local variable is what this is about


def _with_missing_key():
    try:
        _os_error()
    except OSError:
        return {}["fallback"]


def _from_substitute():
    try:
        _with_substitute_index()
    except IndexError as error:
        message = "no sample could be had"
        raise RuntimeError(message) from error


def _meant_key_error():
    try:
        _os_error()
    except OSError:
        raise KeyError("sample 3")  # noqa: B904  # the implicit context is the subject


def _named_index_error():
    try:
        _os_error()
    except OSError:
        raise IndexError(f"{PATH} cannot be read")  # noqa: B904  # the implicit context is the subject


def _from_none(message="bad sample"):
    try:
        _os_error()
    except OSError:
        raise RuntimeError(message) from None


def _key_error():
    try:
        _os_error()
    except OSError as error:
        raise KeyError("k") from error


def _quoting_source():
    raise RuntimeError("bad sample")  # truncated, [Errno 5], Input/output error, /data/0042.jpg


def _unbuildable():
    raise UnbuildableError(7)


def _text(action):
    """How the error of *action* is printed."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  # whatever readers raise
        return "".join(traceback.format_exception(error))
    raise AssertionError("it raised nothing")


def _through_torch(action):
    """How the error is printed in the main process, after torch took it out of a worker."""

    def reraised():
        try:
            action()
        except Exception:  # noqa: BLE001  # whatever readers raise
            wrapper = ExceptionWrapper(where="in DataLoader worker process 0")
        wrapper.reraise()

    return _text(reraised)


BOTH_WAYS = rows("printed", [_text, _through_torch])


@BOTH_WAYS
@rows(
    "action",
    [
        _os_error,
        lambda: _os_error(errno.EIO, PATH),
        lambda: os.read(os.open("/nonexistent", os.O_RDONLY), 1),
        _with_cause,
        _in_handler,
        _key_error,
        _meant_key_error,
        _named_index_error,
        lambda: _from_none(f"cannot read {PATH}"),
        lambda: _from_none("cannot read 0042.jpg"),
        lambda: _from_none("read failed, errno = 5"),
        lambda: _from_none("could not read: INPUT/OUTPUT ERROR"),
    ],
)
def test_error_that_mentions_an_errno(action, printed):
    """The errno, its message or the path is enough, in the error or in its cause."""
    fault = OpenError(errno=errno.ENOENT) if "nonexistent" in _text(action) else EIO

    assert explains(printed(action), fault, PATH, "read")


@BOTH_WAYS
@rows("fault", [EIO, ClosedDescriptor(), TruncatedFile(), WorkerKilled()])
@rows("action", [_from_none, _quoting_source])
def test_error_that_explains_nothing(action, fault, printed):
    """An error without its cause is unclear, even if a source line of a frame mentions it."""
    assert not explains(printed(action), fault, PATH, "read")


@BOTH_WAYS
@pytest.mark.parametrize(
    "action",
    [
        _with_substitute_index,
        _with_endless_substitutes,
        _with_unbound_local,
        _with_missing_key,
        _from_substitute,
    ],
)
def test_bug_in_the_handler_explains_nothing(action, printed):
    """The handled error precedes it in the text, but the bug does not report it."""
    text = printed(action)

    assert "Input/output error" in text
    assert not explains(text, EIO, PATH, "read")


CLAIMS = [
    "FileNotFoundError: Image Not Found 0042.jpg",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/0042.jpg'",
    "RuntimeError: /data/0042.jpg not found",
    "ValueError: image file '/data/0042.jpg' does not exist",
    "PermissionError: [Errno 13] Permission denied: '/data/0042.jpg'",
    "OSError: [Errno 24] Too many open files: '/data/0042.jpg'",
]


@rows("text", CLAIMS)
@rows("fault", [EIO, ClosedDescriptor(), TruncatedFile()])
def test_error_that_names_another_cause_misleads(text, fault):
    """It names the file, but sends its reader looking for a different problem."""
    assert not explains(text, fault, PATH, "read")
    assert find_other_cause(text, [Occurrence(fault, PATH, "read")])


@rows(
    ("text", "number"),
    [
        *((text, errno.ENOENT) for text in CLAIMS[:4]),
        (CLAIMS[4], errno.EACCES),
        (CLAIMS[4], errno.EPERM),
        (CLAIMS[5], errno.EMFILE),
        ("RuntimeError: cannot read 0042.jpg", errno.EIO),
        ("FileNotFoundError: 0042.jpg\n\nOSError: [Errno 5] Input/output error", errno.EIO),
    ],
)
def test_error_that_names_its_own_cause_is_clear(text, number):
    """So is one that only names the file, or that is raised from its own cause."""
    assert explains(text, OpenError(errno=number), PATH, "openat")


@rows(
    ("text", "number"),
    [
        ("AssertionError: One or both of the .idx and .bin files cannot be found at x", "ENOENT"),
        ("FileNotFoundError: Directory x is neither a `Dataset` directory nor ...", "ENOENT"),
        ("RuntimeError: Dataset not found. You can set `download=True` to download it", "ENOENT"),
        ("zarr.errors.ArrayNotFoundError: No array found in store file:///x.zarr", "ENOENT"),
        ("PermissionError: no", "EACCES"),
        ("RuntimeError: the pool has too many open files", "EMFILE"),
    ],
)
def test_words_for_a_cause_explain_it_without_the_name_of_the_file(text, number):
    """A constructor looks for a prefix or a folder, and says that it does not exist."""
    happened = OpenError(errno=getattr(errno, number))

    assert explains(text, happened, PATH, "openat")
    assert not explains(text, OpenError(errno=errno.EIO), PATH, "openat")


def test_a_missing_module_is_not_a_missing_file():
    """Its class only looks like those of libraries."""
    text = "ModuleNotFoundError: No module named 'x'"

    assert not explains(text, OpenError(errno=errno.ENOENT), PATH, "openat")


def test_error_of_a_missing_file_that_is_chained_to_its_cause_is_clear():
    """The reader sees both errors."""

    def action():
        try:
            _os_error()
        except OSError as error:
            raise FileNotFoundError(PATH) from error

    assert explains(_through_torch(action), EIO, PATH, "read")


def _raised_in_handler(error):
    try:
        _os_error(errno.EIO, PATH)
    except OSError:
        raise error  # noqa: B904  # the implicit context is the subject


LIARS = [
    FileNotFoundError(PATH),
    PermissionError(PATH),
    TimeoutError(f"{PATH}: nothing came"),
    IsADirectoryError(PATH),
    NotADirectoryError(PATH),
    FileExistsError(PATH),
    ConnectionError(PATH),
    ConnectionResetError(PATH),
    BlockingIOError(PATH),
    InterruptedError(PATH),
    FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), PATH),
]


@BOTH_WAYS
@rows("error", LIARS, ids=repr)
@rows("fault", [EIO, TruncatedFile(), CorruptedFile()])
def test_class_that_claims_another_cause_misleads(error, fault, printed):
    """Code sees the class, not the error that was being handled."""
    text = printed(lambda: _raised_in_handler(error))
    assert not explains(text, fault, PATH, "read")
    assert find_other_cause(text, [Occurrence(fault, PATH, "read")])


@BOTH_WAYS
@rows(
    ("error", "fault", "call"),
    [
        (FileNotFoundError(PATH), OpenError(errno=errno.ENOENT), "openat"),
        (FileNotFoundError(PATH), OpenError(errno=errno.ESTALE), "openat"),
        (PermissionError(PATH), OpenError(errno=errno.EACCES), "openat"),
        (PermissionError(PATH), OpenError(errno=errno.EROFS), "openat"),
        (TimeoutError(PATH), ReadError(errno=errno.ETIMEDOUT), "read"),
        (TimeoutError(PATH), HungRead(), "read"),
        (IsADirectoryError(PATH), OpenError(errno=errno.EISDIR), "openat"),
        (NotADirectoryError(PATH), OpenError(errno=errno.ENOTDIR), "openat"),
        (ConnectionError(PEER), ConnectionReset(), "recvfrom"),
        (ConnectionResetError(PEER), ConnectionReset(), "recvfrom"),
        (TimeoutError(PEER), ConnectionReset(), "recvfrom"),
        (OSError(PATH), EIO, "read"),
        (ValueError(PATH), EIO, "read"),
        (FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/data/x.gz"), EIO, "read"),
    ],
    ids=repr,
)
def test_class_that_is_true_of_the_fault_is_clear(error, fault, call, printed):
    """So is one that claims nothing, or a system error about another file."""
    path = PEER if isinstance(fault, ConnectionReset) else PATH
    assert explains(printed(lambda: _raised_in_handler(error)), fault, path, call)


def _after_a_cache_miss(error):
    try:
        os.open("/nonexistent/cache.h5", os.O_RDONLY)
    except FileNotFoundError:
        raise error  # noqa: B904  # the implicit context is the subject


@BOTH_WAYS
@rows("fault", [EIO, TruncatedFile()])
def test_a_cache_miss_is_not_another_cause(fault, printed):
    """It was being handled when the file could not be read, and the message is about the file."""
    happened = [Occurrence(fault, PATH, "read")]
    with_path = printed(lambda: _after_a_cache_miss(ValueError(f"{PATH} cannot be loaded")))
    unnamed = printed(lambda: _after_a_cache_miss(ValueError("no sample")))

    assert "FileNotFoundError" in with_path
    assert explains(with_path, fault, PATH, "read")
    assert not explains(unnamed, fault, PATH, "read")
    assert (find_other_cause(with_path, happened), find_other_cause(unnamed, happened)) == ("", "")


@rows(
    "text", ["OSError: [Errno 55] x", "OSError: errno = 51", "OSError: [Errno 15] x", "KeyError: 5"]
)
def test_another_number_is_not_the_errno(text):
    """A number that only begins or ends like the errno does not count."""
    assert not explains(text, EIO, PATH, "read")


@rows(
    ("fault", "number"),
    [
        (ClosedDescriptor(), errno.EBADF),
        (DescriptorExhaustion(), errno.EMFILE),
        (OpenError(errno=errno.ESTALE), errno.ESTALE),
        (ReadError(errno=errno.ETIMEDOUT), errno.ETIMEDOUT),
    ],
)
def test_each_fault_has_its_errno(fault, number):
    expected, unrelated = (
        _text(lambda each=errno_: _os_error(each)) for errno_ in (number, errno.EPERM)
    )

    assert (explains(expected, fault, PATH, "read"), explains(unrelated, fault, PATH, "read")) == (
        True,
        False,
    )


@pytest.mark.parametrize("fault", [EIO, TruncatedFile()])
def test_exception_that_cannot_be_rebuilt_is_not_clear(fault):
    """A TypeError of the exception's own constructor says nothing about the file."""
    text = _through_torch(_unbuildable)

    assert exception_lines(text).startswith("TypeError: UnbuildableError")
    assert not explains(text, fault, PATH, "read")


@BOTH_WAYS
@pytest.mark.parametrize("keep", ["half", "nothing"])
@pytest.mark.parametrize("name", DECODING)
def test_decoding_error_explains_truncated_content(name, keep, printed, tmp_path):
    """The messages of readers about a truncated file are clear."""
    path, reader = tmp_path / "sample", DECODING[name]
    reader.write_as(path)
    reader.read(str(path))
    os.truncate(path, path.stat().st_size // 2 if keep == "half" else 0)

    text = printed(lambda: reader.read(str(path))).replace(str(path), "").replace(path.name, "")

    assert explains(text, TruncatedFile(), PATH, "open"), exception_lines(text)


@rows(
    "text",
    [
        "ValueError: This file contains pickled (object) data. If you trust the file you can load",
        "gzip.BadGzipFile: Not a gzipped file (b'\\x1f')",
        "OSError: Unable to synchronously open file (bad byte number in an address)",
        'KeyError: "Unable to synchronously open object (bad symbol table leaf node)"',
        "OSError: Unable to synchronously open file (bad 1/2 rank for btree internal nodes)",
        "ValueError: File format b'' not understood. Only 'RIFF' and 'RIFX' supported.",
        "ValueError: Size of available data is not a multiple of the data-type size.",
        "LibsndfileError: Error opening: Format not recognised.",
        "RuntimeError: Unsupported image file. Only jpeg, png and gif are currently supported.",
        "RuntimeError: Failed to read the record.",
        "ImageFileError: Cannot work out file type of the image",
    ],
)
def test_words_of_readers_for_a_file_that_is_cut_near_its_start(text):
    """NumPy, gzip, HDF5, SciPy and others have them for a file of only a few bytes."""
    assert explains(text, TruncatedFile(), PATH, "open")


_WORDS = [(library.name, *item) for library in LIBRARIES for item in library.words.items()]


@rows(("reader", "words", "message"), _WORDS)
def test_words_for_bad_content_match_the_messages_of_their_readers(reader, words, message):
    """Each pattern of the table matches its message, and the message is clear by itself."""
    assert re.search(words, message, re.IGNORECASE)
    assert explains(f"{reader}.Error: {message}", TruncatedFile(), PATH, "open")


def test_columns_that_a_truncated_text_lacks():
    """``np.loadtxt`` says that their number changed."""
    rows = io.StringIO("1 2 3\n" * 8 + "1\n")

    text = _text(lambda: np.loadtxt(rows))
    assert explains(text, TruncatedFile(), PATH, "open"), text


def test_a_filter_of_hdf5_that_fails(tmp_path):
    """HDF5 has no other message for a chunk of damaged bytes."""
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=np.arange(999), chunks=(999,), compression="gzip")
        place = dataset.id.get_chunk_info(0).byte_offset
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 64)

    def read():
        with h5py.File(path) as file:
            return file["x"][:]

    text = _text(read).replace(str(path), "")
    assert "filter returned failure" in text
    assert explains(text, CorruptedFile(), PATH, "open")


@rows(
    "text",
    [
        "RuntimeError: bad sample",
        "KeyError: 3",
        "TypeError: 'NoneType' object is not subscriptable",
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "AssertionError",
        "ZeroDivisionError: division by zero",
        "IndexError: list index out of range",
        "IndexError: index 7 is out of bounds for axis 0 with size 3",
        "TypeError: '<' not supported between instances of 'NoneType' and 'int'",
        "TypeError: unsupported operand type(s) for +: 'NoneType' and 'int'",
        "FileNotFoundError: no image",
    ],
)
def test_error_that_does_not_explain_truncated_content(text):
    """A follow-up error of bad content is not an error about bad content."""
    assert not explains(
        f"Traceback (most recent call last):\n{text}\n", TruncatedFile(), PATH, "open"
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("sqlite3.OperationalError: disk I/O error", EIO),
        ("OSError: Expected to be able to read 65608 bytes, got 32668", TruncatedFile()),
    ],
)
def test_words_of_libraries_explain_faults(text, fault):
    """SQLite has its own words for EIO, and Arrow for a truncated file."""
    assert explains(text, fault, PATH, "read")


KILLED = "DataLoader worker (pid 7) is killed by signal: {}. "


@rows(
    "text",
    [
        f"RuntimeError: {KILLED.format('Killed')}",
        "RuntimeError: DataLoader worker (pid(s) 7, 8) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid 7) exited unexpectedly with exit code 1.",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "EOFError",
    ],
)
def test_error_that_mentions_a_death(text):
    """The words of torch, and those of a broken queue, say that a worker has died."""
    assert explains(text, WorkerKilled(), None, "signal 9")


@rows(("call", "expected"), [("mmap", True), ("read", False)])
@rows("fault", [EIO, TruncatedFile()])
def test_bus_error_only_explains_a_mapping(fault, call, expected):
    """An unreadable mapped file ends the worker with SIGBUS; a failed read does not."""
    text = f"RuntimeError: {KILLED.format('Bus error')}"

    assert expected == explains(text, fault, None, call)


STALLED = HungRead("tcp://*")


@rows(
    ("text", "fault", "call", "expected"),
    [
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", STALLED, "recv", True),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", STALLED, "read", False),
        ("EOFError: the server closed the connection", STALLED, "recv", True),
        ("EOFError: the server closed the connection", HungRead("*"), "read", False),
        ("BlockingIOError: [Errno 11] Resource", ConnectionReset(), "recv", False),
    ],
)
def test_a_missing_response(text, fault, call, expected):
    """A socket timeout fails with EAGAIN, and a timer closes the connection."""
    assert expected == explains(text, fault, PEER, call)


@rows(
    ("text", "expected"),
    [
        ("RuntimeError: can't start new thread", True),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", True),
        ("RuntimeError: could not create a decoder thread", True),
        ("ValueError: failed to launch ffmpeg", True),
        ("AttributeError: 'DummyProcess' object has no attribute 'terminate'", True),
        ("RuntimeError: cannot join thread before it is started", True),
        ("RuntimeError: no sample", False),
        ("MemoryError", False),
    ],
)
def test_a_thread_that_does_not_start(text, expected):
    assert expected == explains(text, ThreadExhaustion(), None, "clone3")
    assert not explains("RuntimeError: can't start new thread", EIO, None, "read")


def test_messages_are_the_lines_of_exceptions():
    """Frames, and the sentences between chained tracebacks, are ignored."""
    assert exception_lines(_text(_with_cause)).splitlines() == [
        "OSError: [Errno 5] Input/output error",
        "RuntimeError: bad sample",
    ]


def test_messages_of_a_text_that_was_escaped():
    """The text of torch for a subclass of KeyError is one line; source lines in it do not count."""
    trace = 'Original Traceback (most recent call last):\n  File "x.py"\n    truncated()\n'
    caught = f"Caught K in worker 0.\n{trace}K: no record"
    text = f"K: {caught!r}\n"
    assert exception_lines(text) == "K: 'Caught K in worker 0.\nK: no record"


@rows(
    ("text", "path", "expected"),
    [
        ("cannot read /data/0042.jpg", PATH, True),
        ("cannot read 0042.jpg", PATH, True),
        ("cannot read 0043.jpg", PATH, False),
        ("anything", "", False),
        ("None", None, False),
        ("no answer of ('192.0.2.1', 443)", PEER, True),
        ("no answer of 192.0.2.1:443", PEER, True),
        ("Pool(host='192.0.2.1', port=443): no answer", PEER, True),
        ("no answer of ('192.0.2.1', 4431)", PEER, False),
        ("no answer of ('192.0.2.11', 443)", PEER, False),
        ("no answer of ('1.192.0.2.1', 443)", PEER, False),
        ("no answer of ('2001:db8::1', 443, 0, 0)", "tcp://[2001:db8::1]:443", True),
        ("no answer of ('db8::1', 443, 0, 0)", "tcp://[2001:db8::1]:443", False),
    ],
)
def test_names(text, path, expected):
    """A text names a path by all or the last part of it."""
    assert expected == mentions_path(text, path)


@rows(
    "text",
    [
        "OSError: 9999 requested and 0 written",
        "sqlite3.OperationalError: database or disk is full",
        "RuntimeError: could not write the cache",
        "OSError: [Errno 28] No space left on device",
        "OSError: Unable to synchronously create file: No space left on device",
    ],
)
def test_a_failed_write_has_many_messages(text):
    """They are those of NumPy, SQLite and h5py, and do not explain a failed read."""
    assert explains(text, WriteError(), PATH, "write")
    assert not explains(text, ReadError(), PATH, "read")


@rows("text", ["ValueError: bad", "KeyError: 'saved'", "OSError: unwritten"])
def test_other_words_do_not_explain_a_failed_write(text):
    """A message must mention writing, or disk space."""
    assert not explains(text, WriteError(), PATH, "write")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ValueError: /data: 15 files", True),
        ("ValueError: found 15 files, expected 16", True),
        ("ValueError: expected 16 images, got 15", True),
        ("ValueError: 15 images but 16 masks", True),
        ("RuntimeError: the list of files is incomplete", True),
        ("IndexError: list index out of range", False),
        ("ValueError: not enough values to unpack (expected 2, got 1)", False),
        ("ValueError: zip() argument 2 is longer than argument 1", False),
        ("RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0", False),
    ],
)
def test_words_for_a_file_that_is_not_listed(text, expected):
    """A dataset that counts its files knows the folder, and not which file is missing."""
    fault = OpenError(errno=errno.ENOENT)
    assert explains(text, fault, PATH, "getdents64") is expected
    assert not explains(text, fault, PATH, "openat")


def test_runs_of_bytes_are_not_shown():
    """An error may contain the response of a server."""
    text = "the server said no \\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x0e\x0f\x10"

    assert re.fullmatch(
        r"the server said no \.\.\. \d+ characters of binary \.\.\.", without_binary(text)
    )
    assert without_binary("sample \x00 is bad") == "sample \x00 is bad"
