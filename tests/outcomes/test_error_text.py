"""Which error messages explain a fault, for errors that were really raised."""

import errno
import os
import re
import traceback

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
from pytest_dataloader_faults.outcomes.text import without_binary
from support.judging import explains
from support.readers import DECODING
from support.rows import rows

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


def _with_substitute_index():
    return _Substitutes([_os_error] * 3)[0]


def _with_unbound_local():
    try:
        _os_error()
    except OSError:
        return sample  # noqa: F821  # that is the bug
    else:
        sample = 1
        return sample  # noqa: RET504  # a local variable is what this is about


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


def _text(action):
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
@rows("action", [_with_substitute_index, _with_unbound_local, _from_substitute])
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


_BAD_CONTENT = [
    "Pillow.Error: image file is truncated (165 bytes not processed)",
    "Pillow.Error: broken data stream when reading image file",
    "Pillow.Error: cannot identify image file '0042.jpg'",
    "tarfile.Error: unexpected end of data",
    "Arrow.Error: error stat()ing file",
    "Arrow.Error: Expected to be able to read 65608 bytes, got 32668",
    "Arrow.Error: Parquet magic bytes not found in footer",
    "NumPy.Error: the magic string is not correct; expected b'NUMPY', got b''",
    "NumPy.Error: No data left in file",
    "NumPy.Error: (file seems not fully written?)",
    "NumPy.Error: This file contains pickled (object) data",
    "NumPy.Error: cannot reshape array of size 0 into shape (64,64)",
    "NumPy.Error: mmap length is greater than file size",
    "NumPy.Error: Size of available data is not a multiple of the data-type size",
    "NumPy.Error: the number of columns changed from 3 to 1 at row 151",
    "a dataset.Error: 12 bytes, expected 64",
    "a dataset.Error: record 3 is too short",
    "a dataset.Error: version 0 of the format is not supported",
    "HDF5.Error: bad byte 3",
    "HDF5.Error: Unable to open file (file signature not found)",
    "HDF5.Error: Can't read data (filter returned failure during read)",
    "LMDB.Error: MDB_CORRUPTED: Located page was wrong type",
    "libjpeg.Error: Premature end of JPEG file",
    "array_record.Error: ArrayRecord file should be at least 64KB big",
    "SciPy.Error: File format b'' not understood",
    "SQLite.Error: database disk image is malformed",
    "tfrecord.Error: Failed to read the record.",
    "safetensors.Error: deserializing header: header too small",
    "nibabel.Error: Cannot work out file type of the image",
    "torchvision.Error: Unsupported image file. Only jpeg, png and gif are",
    "gzip.Error: unexpected end of stream",
    "gzip.Error: Not a gzipped file (b'')",
    "bz2.Error: Compressed data ended before the end-of-stream marker was reached",
    "zlib.Error: Error -5 while decompressing data: incomplete or truncated stream",
    "zipfile.Error: File is not a zip file",
    "zipfile.Error: Bad CRC-32 for file '42.rec'",
    "zipfile.Error: There is no item named '42.rec' in the archive",
    "pickle.Error: Ran out of input",
    "struct.Error: unpack requires a buffer of 16384 bytes",
    "Python.Error: not enough values to unpack (expected 2, got 1)",
    "mmap.Error: cannot mmap an empty file",
    "json.Error: json.decoder.JSONDecodeError: Expecting value: line 1 column 1",
    "FFmpeg.Error: Invalid data found when processing input",
    "Megatron.Error: Index file doesn't match expected format",
    "Zstandard.Error: Restored data doesn't match checksum",
]


@rows("text", _BAD_CONTENT)
def test_messages_of_readers_about_bad_content_are_clear(text):
    assert explains(text, TruncatedFile(), PATH, "open")


KILLED = "DataLoader worker (pid 7) is killed by signal: {}. "
BUS = f"RuntimeError: {KILLED.format('Bus error')}"
AGAIN = "BlockingIOError: [Errno 11] Resource temporarily unavailable"
CLOSED = "EOFError: the server closed the connection"
STALLED, UNLISTED = HungRead("tcp://*"), OpenError(errno=errno.ENOENT)
NO_THREAD = "RuntimeError: can't start new thread"
UNWRITTEN = [
    "OSError: 9999 requested and 0 written",
    "sqlite3.OperationalError: database or disk is full",
    "RuntimeError: could not write the cache",
    "OSError: [Errno 28] No space left on device",
]
"""The messages of NumPy, SQLite and others."""
COUNTED = [
    "ValueError: /data: 15 files",
    "ValueError: found 15 files, expected 16",
    "ValueError: expected 16 images, got 15",
    "ValueError: 15 images but 16 masks",
    "RuntimeError: the list of files is incomplete",
]
"""A dataset that counts its files knows the folder, and not which file is missing."""
CLEAR = [
    (ClosedDescriptor(), "read", [_text(lambda: _os_error(errno.EBADF))]),
    (DescriptorExhaustion(), "openat", [_text(lambda: _os_error(errno.EMFILE))]),
    (EIO, "read", ["sqlite3.OperationalError: disk I/O error"]),
    (
        TruncatedFile(),
        "open",
        [
            "OSError: Unable to synchronously open file (bad byte number in an address)",
            'KeyError: "Unable to synchronously open object (bad symbol table leaf node)"',
            "OSError: Unable to synchronously open file (bad 1/2 rank for btree internal nodes)",
            "LibsndfileError: Error opening: Format not recognised.",
        ],
    ),
    (CorruptedFile(), "open", ["OSError: Can't synchronously read data (filter returned failure)"]),
    (
        WorkerKilled(),
        "signal 9",
        [
            f"RuntimeError: {KILLED.format('Killed')}",
            "RuntimeError: DataLoader worker (pid(s) 7, 8) exited unexpectedly",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "EOFError",
        ],
    ),
    # An unreadable mapped file ends the worker with SIGBUS; a failed read does not.
    *((fault, "mmap", [BUS]) for fault in (EIO, TruncatedFile())),
    # A socket timeout fails with EAGAIN, and a timer closes the connection.
    (STALLED, "recv", [AGAIN, CLOSED]),
    (
        ThreadExhaustion(),
        "clone3",
        [
            NO_THREAD,
            AGAIN,
            "RuntimeError: could not create a decoder thread",
            "ValueError: failed to launch ffmpeg",
            "AttributeError: 'DummyProcess' object has no attribute 'terminate'",
            "RuntimeError: cannot join thread before it is started",
        ],
    ),
    (WriteError(), "write", UNWRITTEN),
    (UNLISTED, "getdents64", COUNTED),
]
UNCLEAR = [
    (EIO, "read", ["OSError: [Errno 55] x", "OSError: errno = 51", "OSError: [Errno 15] x"]),
    (EIO, "read", ["KeyError: 5", "BlockingIOError: [Errno 11] Resource", NO_THREAD, *UNWRITTEN]),
    (
        TruncatedFile(),
        "open",
        [
            "RuntimeError: bad sample",
            "KeyError: 3",
            "TypeError: 'NoneType' object is not subscriptable",
            "AttributeError: 'NoneType' object has no attribute 'shape'",
            "AssertionError",
            "IndexError: index 7 is out of bounds for axis 0 with size 3",
            "TypeError: '<' not supported between instances of 'NoneType' and 'int'",
            "FileNotFoundError: no image",
        ],
    ),
    *((fault, "read", [BUS]) for fault in (EIO, TruncatedFile())),
    (STALLED, "read", [AGAIN]),
    (HungRead("*"), "read", [CLOSED]),
    (ConnectionReset(), "recv", [AGAIN]),
    (ThreadExhaustion(), "clone3", ["RuntimeError: no sample", "MemoryError"]),
    (WriteError(), "write", ["ValueError: bad", "KeyError: 'saved'", "OSError: unwritten"]),
    (UNLISTED, "openat", COUNTED),
    (
        UNLISTED,
        "getdents64",
        [
            "IndexError: list index out of range",
            "ValueError: not enough values to unpack (expected 2, got 1)",
            "ValueError: zip() argument 2 is longer than argument 1",
            "RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0",
        ],
    ),
]


def _each_text(table):
    return [(fault, call, text) for fault, call, texts in table for text in texts]


@rows(("fault", "call", "text"), _each_text(CLEAR))
def test_words_for_a_fault_explain_it(fault, call, text):
    """Libraries have words of their own, and torch those for the death of a worker."""
    assert explains(text, fault, PEER if call == "recv" else PATH, call)


@rows(("fault", "call", "text"), _each_text(UNCLEAR))
def test_other_words_do_not_explain_it(fault, call, text):
    """A follow-up error, a number that only ends like the errno, or words for another fault."""
    text = f"Traceback (most recent call last):\n{text}\n"
    assert not explains(text, fault, PEER if call == "recv" else PATH, call)


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


def test_runs_of_bytes_are_not_shown():
    """An error may contain the response of a server."""
    text = "the server said no \\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x0e\x0f\x10"

    assert re.fullmatch(
        r"the server said no \.\.\. \d+ characters of binary \.\.\.", without_binary(text)
    )
    assert without_binary("sample \x00 is bad") == "sample \x00 is bad"
