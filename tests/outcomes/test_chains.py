"""How long chains of exceptions are shortened, for chains that were really raised."""

import errno
import multiprocessing
import os
import re
import traceback

import pytest
from torch._utils import ExceptionWrapper

from pytest_dataloader_faults._trial import driver, journal, loaders
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.outcomes.chains import (
    MOST,
    Raised,
    error_line,
    exception_lines,
    is_of_this_package,
    origin_of,
    related_lines,
    shorten_chain,
)
from support.clarity import explains
from support.rows import rows

PATH = "/data/0042.jpg"
HOW = "During handling of the above exception, another exception occurred:"


class _Substitutes:
    """Looks for another sample in the handler, and reaches one that does not exist."""

    def __init__(self, errors):
        self.errors = errors

    def __getitem__(self, index):
        error = self.errors[index]
        try:
            raise error
        except Exception:  # noqa: BLE001  # as datasets do
            return self[index + 1]


class _Forever:
    """Looks for another sample until Python reaches its recursion limit."""

    def __getitem__(self, index):
        try:
            raise OSError(errno.EIO, os.strerror(errno.EIO), PATH)
        except Exception:  # noqa: BLE001  # as datasets do
            return self.another(index)

    def another(self, index):
        return self[index + 1]


def _wide(text):
    """*text* as if its lines of code were longer."""
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


def _io_errors(count, final=PATH):
    paths = [*[PATH] * (count - 1), final]
    return _Substitutes([OSError(errno.EIO, os.strerror(errno.EIO), path) for path in paths])


@BOTH_WAYS
def test_every_link_of_an_endless_search_is_kept(printed):
    """Only frames are omitted, so the lines of all errors are those of the full text."""
    text = printed(_Forever())
    shortened_text = shorten_chain(_wide(text))

    assert len(shortened_text) < 2 * MOST < len(_wide(text))
    assert shortened_text.count(HOW) == text.count(HOW) > 100
    assert exception_lines(shortened_text) == exception_lines(text)
    assert related_lines(shortened_text).startswith(
        "RecursionError: maximum recursion depth exceeded"
    )
    assert not explains(shortened_text, ReadError(), PATH, "read")


def test_a_last_frame_stays_complete():
    """It does so even if the kept part of the other frames ends just before it."""
    frame, last_frame = (
        f'  File "{"a" * 90}", line 1\n',
        f'  File "{"b" * 200}", line 2\n    raise\n',
    )
    link = f"Traceback (most recent call last):\n{frame}{last_frame}ValueError: no\n\n{HOW}\n\n"
    text = shorten_chain(link * 500)

    assert len(link * 500) > MOST
    assert text.count(last_frame) == 500


def test_long_messages_keep_both_ends():
    """A message that is too long loses its middle, which is counted. A short one stays complete."""
    full_text = f"{_text(_io_errors(3))}ValueError: begin {'0123456789 ' * MOST} end\n"
    text = shorten_chain(full_text)
    omission = re.search(r"  \.\.\. (\d+) characters omitted \.\.\.\n", text)

    assert len(text) <= MOST + 200
    assert len(text) - len(omission[0]) + int(omission[1]) == len(full_text)
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
    """It has the type once, and the last line of the message, shortened if it is very long."""
    assert error_line(Raised("OSError", message, "")) == line


def test_a_short_text_stays_as_it_is():
    assert shorten_chain(_text(_io_errors(3))) == _text(_io_errors(3))


@rows(
    "module, function, is_ours",
    [
        (loaders, "length_of", False),
        (driver, "take", False),
        (driver, "end_workers", True),
        (journal, "write", True),
    ],
)
def test_a_module_is_known_by_its_mark_and_not_by_its_name(monkeypatch, module, function, is_ours):
    """Renamed, it would make an error of the user's one of ours, or the other way round."""
    for path in (module.__file__, module.__file__.replace(".py", "_renamed.py")):
        monkeypatch.setattr(module, "__file__", path)
        text = f'  File "{path}", line 1, in {function}\nValueError: bad sample\n'
        assert is_of_this_package(text) == is_ours


def _fail():
    message = "bad sample"
    raise ValueError(message)


def test_the_origin_of_an_error_is_its_innermost_frame():
    with pytest.raises(ValueError, match="bad sample") as raised:
        _fail()
    assert origin_of(raised.value) == __file__


def test_the_origin_of_an_error_from_a_pool_is_unknown():
    """Its frames are those of the pool, which is not to blame."""
    with (
        multiprocessing.get_context("fork").Pool(1) as pool,
        pytest.raises(ValueError, match="bad sample") as raised,
    ):
        pool.apply(_fail)
    assert origin_of(raised.value) == ""
