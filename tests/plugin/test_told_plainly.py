"""What a mistake shows: the line of the test, and the text, and nothing of this package."""

from __future__ import annotations

import re

import pytest

from pytest_dataloader_faults.report.model import sentence_of

pytestmark = pytest.mark.usefixtures("engine")

SUITE = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError
from torch.utils.data import DataLoader

from pytest_dataloader_faults import Contract, inject
from pytest_dataloader_faults.faults import ReadError


def test_nested(records):
    with inject(ReadError("*.rec")):
        with inject(ReadError("*.rec")):
            pass


def test_text():
    with inject("*.rec"):
        pass


def test_kind():
    with inject(ReadError):
        pass


def test_list():
    with inject([ReadError()]):
        pass


def test_contract():
    Contract(may_skip="yes")


def test_count(eio_reads):
    eio_reads("*.rec", count=2)


def test_signal(killed_workers):
    killed_workers(2)


def test_no_workers(eio_reads, records):
    eio_reads("*.rec")
    list(DataLoader(Records(records)))


@pytest.mark.dataloader_faults(only="open-error")
def test_check(fault_check, records):
    fault_check(lambda: ZerosOnError(records))
"""
TEXTS = {
    "test_nested": "faults are armed already in this process",
    "test_text": "'*.rec' is no fault",
    "test_kind": "ReadError is no fault, but a class. Call it: ReadError()",
    "test_list": "[ReadError()] is no fault",
    "test_contract": "Contract: may_skip='yes' must be True or False",
    "test_count": "unexpected keyword argument 'count'",
    "test_signal": "signal=2 must be one of SIGABRT, SIGBUS, ",
    "test_no_workers": "Use num_workers=1 or more",
}
FRAME = re.compile(r"^(\S+):(\d+): ", re.MULTILINE)


@pytest.fixture(name="bodies", scope="module")
def _bodies(run_suite):
    """What is printed for each test."""
    text = run_suite(SUITE, "-p", "no:cacheprovider")[1].stdout.str()
    parts = re.split(r"\n_+ (test_\w+)(?:\[.*)? _+\n", text.partition("= short")[0])
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("test", TEXTS)
def test_the_frames_are_the_users(bodies, test):
    """The last one is the line of the test that is wrong."""
    assert TEXTS[test] in bodies[test]
    frames = FRAME.findall(bodies[test])
    assert {path for path, _ in frames} == {"test_inner.py"}, bodies[test]
    assert "???" not in bodies[test]


def test_one_line_is_one_line(run_suite):
    """With --tb=line, the evidence is left out, as of every failure."""
    _, result = run_suite(SUITE, "-p", "no:cacheprovider", "--tb=line", "-k", "test_check", "-q")
    lines = result.stdout.str().partition("FAILURES")[2].partition("= dataloader-faults")[0]
    (line,) = lines.split("\n")[1:-1]
    assert line.startswith("test_inner.py:") or "/test_inner.py:" in line
    assert "corrupted: sample" in line


@pytest.mark.parametrize("path", ["/proc/nowhere/r.html", "/dev/null/r.json"])
def test_a_report_that_was_not_written_is_not_named(light_suite, path):
    """But for the reason."""
    result = light_suite.run(
        "", f"--dataloader-faults-report={path}", "--dataloader-faults-report=r.md"
    )
    result.stdout.fnmatch_lines(["report: r.md", f"the report {path} was not written: *"])
    result.stdout.no_fnmatch_line(f"report: {path}*")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("it died. It printed:\n    hello", "it died."),
        ("it was here:\n  File x", "it was here"),
        ("it is wrong.\n  evidence", "it is wrong."),
    ],
)
def test_a_summary_does_not_end_in_a_colon(text, sentence):
    """The lines that it leads to are left out."""
    assert sentence_of(text) == sentence
