"""What pytest shows at its end, of what is not reproduced, and of mistakes."""

from __future__ import annotations

import re

import pytest

from pytest_dataloader_faults.outcomes.text import headline
from pytest_dataloader_faults.plugin._report import _without

SUITE = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "truncated-empty"])
@pytest.mark.parametrize("kind", [Records, ZerosOnError])
def test_files(fault_check, records, kind):
    fault_check(lambda: kind(records))
"""
TITLE = "= dataloader-faults ="
IN_PLACE = "gives a sample in place of one that cannot be read: open-error"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("spread", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_dataset_has_a_line_and_each_cause(suite, spread, monkeypatch):
    """Also with -q, and where pytest-xdist spreads the items."""
    monkeypatch.setenv("COLUMNS", "100")
    if spread:
        pytest.importorskip("xdist")
    result = suite.run(SUITE, "-q", *(["-p", "xdist", "-n", "2"] if spread else []))
    found = result.stdout.str().partition(TITLE)[2].splitlines()[1:]
    assert "engine" in found[0]
    assert found[1].startswith("test_inner.py::test_files[Records]: ")
    told = "2 of 3 checks failed (2 corrupted), 1 passed (1 survived);"
    assert found[2].startswith(f"test_inner.py::test_files[ZerosOnError]: {told}")
    assert any(IN_PLACE in line for line in found)
    assert "workers-agree" not in "".join(line for line in found if not line.startswith("FAILED"))


def test_nothing_is_said_where_no_check_was_asked(light_suite):
    """Whatever else failed."""
    failed = light_suite.run("def test_plain(): assert False", "-q")
    assert failed.ret == 1
    assert TITLE not in failed.stdout.str()


CANNOT_RUN = """
import pytest
from support.datasets import Records

pytestmark = pytest.mark.dataloader_faults(only=["workers-agree", "open-error", "pickles"])


def fails():
    raise LookupError("no such folder")


@pytest.fixture
def broken():
    raise LookupError("no such folder")


def test_factory(fault_check):
    fault_check(fails)


def test_fixture(fault_check, broken):
    fault_check(broken)


def test_one_of_two(fault_check, request, records):
    if request.node.name == "test_one_of_two[pickles]":
        fails()
    fault_check(lambda: Records(records))
"""


@pytest.mark.usefixtures("engine")
def test_what_could_not_run_is_counted_and_not_told_again(suite, monkeypatch):
    """The error stands above, and in pytest's short summary; ours has one line for each test."""
    monkeypatch.setenv("COLUMNS", "100")
    text = suite.run(CANNOT_RUN, "-q").stdout.str()
    found = text.partition(TITLE)[2].partition("= short test")[0]
    assert "no such folder" in text
    assert "no such folder" not in found
    told = re.split(r"; [\d.]+ s\n", found.replace("\n    ", " "))
    could_not = "could not be run (see the error above)"
    factory, fixture, mixed, rest = told
    assert factory.endswith(f"\ntest_inner.py::test_factory: 3 checks {could_not}")
    assert fixture == f"test_inner.py::test_fixture: 3 checks {could_not}"
    others = "2 checks passed (1 survived, 1 failed_cleanly)"
    assert mixed == f"test_inner.py::test_one_of_two: {others}, 1 {could_not}"
    assert not rest.strip("=")


@pytest.mark.parametrize(
    ("nodeid", "test"),
    [
        ("a.py::test[read-error-first]", "a.py::test"),
        ("a.py::test[coco-read-error-first]", "a.py::test[coco]"),
        ("a.py::test[read-error-first-coco]", "a.py::test[coco]"),
        ("a.py::test[a-read-error-first-b]", "a.py::test[a-b]"),
    ],
)
def test_items_of_one_test_belong_together(nodeid, test):
    """Wherever the name of the check is among the parameters."""
    assert _without(nodeid, "read-error-first") == test


SOMETIMES = """
    class ZerosInTheFirstTrial:
        def __init__(self, folder):
            self.paths = [folder / f"{number}.bin" for number in range(8)]
            for number, path in enumerate(self.paths):
                path.write_bytes(bytes([number]) * 64)
            self.note = folder / "note"
            self.is_first = not self.note.exists()

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            try:
                return list(self.paths[index].read_bytes())
            except OSError:
                if not self.is_first:
                    raise
                self.note.touch()
                return [0] * 64

    def test_data(fault_check, tmp_path):
        fault_check(lambda: ZerosInTheFirstTrial(tmp_path), files="*.bin")
"""
ONLY = "-k", "read-error-first"


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        ((), "passed"),
        (("--dataloader-faults-not-reproduced=fail",), "failed"),
        pytest.param(
            ("-o", "dataloader_faults_not_reproduced=fail"), "failed", marks=pytest.mark.slow
        ),
    ],
)
def test_the_choice_is_the_users(suite, engine, arguments, outcome):
    """By default it is a warning with the evidence; by option or ini key a failure."""
    result = suite.run(SOMETIMES, *ONLY, *arguments)

    result.assert_outcomes(**{outcome: 1, "warnings": int(outcome == "passed")})
    result.stdout.fnmatch_lines(["*corrupted: *", "*not reproduced: 1 of 3 trials failed*"])


def test_a_failure_is_of_the_check_whatever_pytest_shows_of_it(suite, engine):
    """A test may put the text into one of its own: what the check decided holds."""
    given = "test_data(fault_check, tmp_path):"
    outer = """import pytest

    @pytest.fixture
    def shown(fault_check):
        def ask(*args, **kwargs):
            try:
                fault_check(*args, **kwargs)
            except pytest.fail.Exception as error:
                pytest.fail(f"our data: {error}")
        return ask
    """
    reworded = SOMETIMES.replace("fault_check(lambda", "shown(lambda")
    reworded = reworded.replace(given, "test_data(shown, tmp_path):")
    result = suite.run(f"    {outer}{reworded}", *ONLY, "--dataloader-faults-not-reproduced=fail")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*::test_data: 1 check failed (1 corrupted);*"])


def test_an_unknown_choice_ends_the_run(light_suite):
    """The text says where it came from and what is allowed."""
    result = light_suite.run(SOMETIMES, "--dataloader-faults-not-reproduced=maybe")

    result.stderr.fnmatch_lines(
        ["*not_reproduced='maybe' from --dataloader-faults-not-reproduced * ('warn', 'fail')"]
    )


PLAIN = """
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
    text = run_suite(PLAIN, "-p", "no:cacheprovider")[1].stdout.str()
    parts = re.split(r"\n_+ (test_\w+)(?:\[.*)? _+\n", text.partition("= short")[0])
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("test", TEXTS)
def test_the_frames_are_the_users(bodies, test):
    """The last one is the line of the test that is wrong."""
    assert TEXTS[test] in bodies[test]
    frames = FRAME.findall(bodies[test])
    assert {path for path, _ in frames} == {"test_inner.py"}, bodies[test]
    assert "???" not in bodies[test]


@pytest.mark.usefixtures("engine")
def test_one_line_is_one_line(run_suite):
    """With --tb=line, the evidence is left out, as of every failure."""
    _, result = run_suite(PLAIN, "-p", "no:cacheprovider", "--tb=line", "-k", "test_check", "-q")
    lines = result.stdout.str().partition("FAILURES")[2].partition("= dataloader-faults")[0]
    (line,) = lines.split("\n")[1:-1]
    assert line.startswith("test_inner.py:") or "/test_inner.py:" in line
    assert "corrupted: sample" in line


@pytest.mark.usefixtures("engine")
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
    assert headline(text) == sentence
