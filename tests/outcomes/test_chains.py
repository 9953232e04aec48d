"""What is kept of the text of a long chain of exceptions, over chains that were really raised."""

from __future__ import annotations

import errno
import os
import re
import traceback

import pytest
from torch._utils import ExceptionWrapper

from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes.chains import (
    MOST,
    MOST_LINKS,
    error_line,
    exception_lines,
    related_lines,
    shortened,
)
from pytest_dataloader_faults.outcomes.records import Raised
from support.clarity import explains
from support.rows import rows

PATH = "/data/0042.jpg"
HOW = "During handling of the above exception, another exception occurred:"


class _Substitutes:
    """Looks for another sample in the handler, and comes to one that is not there."""

    def __init__(self, errors):
        self.errors = errors

    def __getitem__(self, index):
        error = self.errors[index]
        try:
            raise error
        except Exception:  # noqa: BLE001  # as datasets do
            return self[index + 1]


class _Forever:
    """Looks for another one until Python has no more room for calls."""

    def __getitem__(self, index):
        try:
            raise OSError(errno.EIO, os.strerror(errno.EIO), PATH)
        except Exception:  # noqa: BLE001  # as datasets do
            return self.another(index)

    def another(self, index):
        return self[index + 1]


class _Meant:
    """Raises a KeyError, deep below the handler of an error."""

    def __getitem__(self, index):
        try:
            raise OSError(errno.EIO, os.strerror(errno.EIO), PATH)
        except OSError:
            return self.deep(400)

    def deep(self, depth):
        if not depth:
            raise KeyError("sample 3")
        return self.deeper(depth - 1)

    def deeper(self, depth):
        return self.deep(depth)


def _wide(text):
    """*text* as if the lines of code were longer."""
    return text.replace("    ", " " * 200)


def _text(samples):
    try:
        samples[0]
    except Exception as error:  # noqa: BLE001  # whatever it is
        return "".join(traceback.format_exception(error))
    raise AssertionError("it raised nothing")


def _through_torch(samples):
    try:
        samples[0]
    except Exception:  # noqa: BLE001  # whatever it is
        wrapper = ExceptionWrapper(where="in DataLoader worker process 0")
    return _text(_Reraised(wrapper))


class _Reraised:
    def __init__(self, wrapper):
        self.wrapper = wrapper

    def __getitem__(self, index):
        self.wrapper.reraise()


BOTH_WAYS = pytest.mark.parametrize("printed", [_text, _through_torch])


def _io_errors(count, last=PATH):
    paths = [*[PATH] * (count - 1), last]
    return _Substitutes([OSError(errno.EIO, os.strerror(errno.EIO), path) for path in paths])


def _of_length(printed, length, count=150):
    """The text of a chain that has exactly *length* characters."""
    shorter = len(printed(_io_errors(count)))
    assert shorter < length
    text = printed(_io_errors(count, PATH + "x" * (length - shorter)))
    assert len(text) == length
    return text


@BOTH_WAYS
@pytest.mark.parametrize("length", [MOST - 1, MOST, MOST + 1, MOST + 1000, 3 * MOST])
def test_the_length_of_a_chain_decides_nothing(length, printed):
    """The last error is a bug in a handler, whether or not the text had to be shortened."""
    text = shortened(_of_length(printed, length))

    assert len(text) <= MOST + 200
    assert text.count(HOW) == 150
    assert not explains(text, ReadError(), PATH, "read")
    assert related_lines(text) == "IndexError: list index out of range"


@BOTH_WAYS
def test_every_link_of_an_endless_search_is_kept(printed):
    """What is left out are frames; so the lines of all its errors are those of the whole text."""
    text = printed(_Forever())
    kept = shortened(_wide(text))

    assert len(kept) < 2 * MOST < len(_wide(text))
    assert kept.count(HOW) == text.count(HOW) > 100
    assert exception_lines(kept) == exception_lines(text)
    assert related_lines(kept).startswith("RecursionError: maximum recursion depth exceeded")
    assert not explains(kept, ReadError(), PATH, "read")


def test_a_meant_error_at_the_end_of_a_long_chain_is_clear():
    """The last frame is kept, and with it the ``raise`` that tells a meant KeyError from a bug."""
    text = _wide(_text(_Meant()))

    assert len(text) > MOST
    assert explains(shortened(text), ReadError(), PATH, "read")


def test_of_thousands_of_errors_the_last_accident_is_kept():
    """The errors in the middle go, but for the one that cuts off what was handled before it."""
    first = f'Traceback (most recent call last):\n  File "a"\nOSError: [Errno 5] {PATH}\n\n'
    bug = f'{HOW}\n\nTraceback (most recent call last):\n  File "b"\nIndexError: bug\n\n'
    wrap = f'{HOW}\n\nTraceback (most recent call last):\n  File "c"\n    raise\nValueError: no\n\n'
    text = shortened(first + wrap * MOST_LINKS + bug + wrap * 2 * MOST_LINKS)

    assert text.count(HOW) <= MOST_LINKS
    assert "exceptions are left out here" in text
    assert related_lines(text).startswith("IndexError: bug\nValueError: no\n")
    assert not explains(text, ReadError(), PATH, "read")


def test_a_last_frame_stays_whole_where_the_others_end():
    """Also where what is kept of the others ends just before it."""
    first, last = f'  File "{"a" * 90}", line 1\n', f'  File "{"b" * 200}", line 2\n    raise\n'
    link = f"Traceback (most recent call last):\n{first}{last}ValueError: no\n\n{HOW}\n\n"
    text = shortened(link * 500)

    assert len(link * 500) > MOST
    assert text.count(last) == 500


def test_long_messages_keep_both_ends():
    """A message that is too long loses its middle, which is counted; a short one loses nothing."""
    whole = f"{_text(_io_errors(3))}ValueError: begin {'0123456789 ' * MOST} end\n"
    text = shortened(whole)
    told = re.search(r"  \.\.\. (\d+) characters are left out here \.\.\.\n", text)

    assert len(text) <= MOST + 200
    assert len(text) - len(told[0]) + int(told[1]) == len(whole)
    assert "ValueError: begin 0123" in text
    assert text.endswith("789  end\n")
    assert exception_lines(text).count("OSError: [Errno 5]") == 3


@rows(
    ("message", "line"),
    [
        ("", "OSError: no message"),
        ("bad\nthe last", "OSError: the last"),
        ("OSError: bad", "OSError: bad"),
        ("  indented only", "OSError: no message"),
        ("x" * 200, f"OSError: {'x' * 200}"),
        ("x" * 201, f"OSError: {'x' * 197}..."),
    ],
)
def test_an_error_in_one_line(message, line):
    """Its type once, and the last line of its message, which is cut if it is very long."""
    assert error_line(Raised("OSError", message, "")) == line


def test_a_short_text_stays_as_it_is():
    """Nothing is left out of it."""
    assert shortened(_text(_io_errors(3))) == _text(_io_errors(3))
