"""What pytest shows at its end, of flaky checks, and of mistakes."""

import re

import pytest

from pytest_dataloader_faults.outcomes.text import headline
from pytest_dataloader_faults.plugin._report import strip_check
from support.rows import slow

SUITE = """
import pytest
from support.datasets import Records
from support.plugin_datasets import ZerosOnError


@pytest.mark.dataloader_faults(only=["workers-agree", "open-error"])
@pytest.mark.parametrize("kind", [Records, ZerosOnError])
def test_files(fault_check, records, kind):
    fault_check(lambda: kind(records))
"""
TITLE = "= dataloader-faults ="
IN_PLACE = "returns a substitute for an unreadable sample: open-error"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("spread", [False, slow(True)])
def test_each_dataset_has_a_line_and_each_cause(suite, spread, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    if spread:
        pytest.importorskip("xdist")
    result = suite.run(SUITE, "-q", *(["-p", "xdist", "-n", "2"] if spread else []))
    lines = result.stdout.str().partition(TITLE)[2].splitlines()[1:]
    assert lines[0].startswith("test_inner.py::test_files[Records]: ")
    counts = "1 of 2 checks failed (1 corrupted), 1 passed (1 survived);"
    assert lines[1].startswith(f"test_inner.py::test_files[ZerosOnError]: {counts}")
    assert any(IN_PLACE in line for line in lines)
    assert "workers-agree" not in "".join(line for line in lines if not line.startswith("FAILED"))


def test_nothing_is_said_where_no_check_ran(light_suite):
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
def test_what_could_not_run_is_counted_and_not_reported_again(suite, monkeypatch):
    """The error stands above, and in pytest's short summary; ours has one line for each test."""
    monkeypatch.setenv("COLUMNS", "100")
    text = suite.run(CANNOT_RUN, "-q").stdout.str()
    summary = text.partition(TITLE)[2].partition("= short test")[0]
    assert "no such folder" in text
    assert "no such folder" not in summary
    sections = re.split(r"; [\d.]+ s\n", summary.replace("\n    ", " "))
    could_not = "could not be run (see the error above)"
    factory, fixture, mixed, remainder = sections
    assert factory.endswith(f"\ntest_inner.py::test_factory: 3 checks {could_not}")
    assert fixture == f"test_inner.py::test_fixture: 3 checks {could_not}"
    passes = "2 checks passed (1 survived, 1 failed_cleanly)"
    assert mixed == f"test_inner.py::test_one_of_two: {passes}, 1 {could_not}"
    assert not remainder.strip("=")


FAILURES = """
import pytest
from support.plugin_datasets import ZerosOnError
from torch.utils.data import DataLoader

from pytest_dataloader_faults.exceptions import InvalidArgumentError
from support.datasets import Records

pytestmark = pytest.mark.dataloader_faults(only="open-error")


def test_check(fault_check, records):
    fault_check(lambda: ZerosOnError(records))


def test_factory(fault_check):
    def make():
        raise LookupError("no such folder\\nsecond line")

    fault_check(make)


@pytest.fixture
def broken():
    raise LookupError("x" * 1000 + "\\nsecond line")


def test_fixture(fault_check, broken):
    pass


def test_unfired(read_errors, records):
    read_errors("*.none")
    list(DataLoader(Records(records), num_workers=1))


def test_error():
    raise InvalidArgumentError("samples=0 is too small\\nsecond line")


def test_of_the_user(read_errors):
    pytest.fail("first line\\nsecond line", pytrace=False)
"""


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("environment", "option"), [({"CI": "true"}, "-q"), slow({}, "-vv")])
def test_pytests_short_summary_has_one_line_for_each_failure(
    suite, monkeypatch, environment, option
):
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = suite.run(FAILURES, option, "--junitxml=j.xml").stdout.str()

    above, _, summary = text.partition("= short test summary info =")
    failures = [line.partition("test_inner.py::")[2] for line in summary.splitlines()[1:-1]]
    assert [" ".join(line.split()[:4]) for line in failures] == [
        "test_check[open-error] - corrupted: samples",
        "test_factory[open-error] - make_dataset() raised",
        "test_unfired - ReadError(path='*.none') never",
        "test_error - InvalidArgumentError: samples=0",
        "test_of_the_user - Failed: first",
        "",  # What the user's own test says is pytest's to show.
        f"test_fixture[open-error] - LookupError: {'x' * 87}",
    ]
    assert len(failures[-1]) < 250
    assert above.count("reproduce: ") == 1
    assert "reproduce: " in (suite.path / "j.xml").read_text()


@pytest.mark.parametrize(
    ("nodeid", "test"),
    [
        ("a.py::test[read-error]", "a.py::test"),
        ("a.py::test[coco-read-error]", "a.py::test[coco]"),
        ("a.py::test[read-error-coco]", "a.py::test[coco]"),
        ("a.py::test[a-read-error-b]", "a.py::test[a-b]"),
    ],
)
def test_items_of_one_test_belong_together(nodeid, test):
    assert strip_check(nodeid, "read-error") == test


SOMETIMES = """
    class ZerosInTheFirstTrial:
        def __init__(self, folder):
            self.paths = [folder / f"{number}.bin" for number in range(8)]
            for number, path in enumerate(self.paths):
                path.write_bytes(bytes([number]) * 64)
            self.note = folder / "note"
            self.is_first = not self.note.stat().st_size

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            try:
                return list(self.paths[index].read_bytes())
            except OSError:
                if not self.is_first:
                    raise
                with self.note.open("a") as file:
                    file.write(".")
                return [0] * 64

    def test_data(fault_check, tmp_path):
        (tmp_path / "note").touch()
        fault_check(lambda: ZerosInTheFirstTrial(tmp_path), files="*.bin")
"""
ONLY = ("--dataloader-faults-only=read-error",)


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [slow((), "passed"), slow(("-o", "dataloader_faults_flaky=fail"), "failed")],
)
def test_the_choice_is_the_users(suite, engine, arguments, outcome):
    result = suite.run(SOMETIMES, *ONLY, *arguments)

    result.assert_outcomes(**{outcome: 1, "warnings": int(outcome == "passed")})
    result.stdout.fnmatch_lines(["*corrupted: *", "*flaky: 1 of 3 trials failed*"])


def test_a_failure_is_of_the_check_whatever_pytest_shows_of_it(suite, engine):
    signature = "test_data(fault_check, tmp_path):"
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
    reworded = reworded.replace(signature, "test_data(shown, tmp_path):")
    result = suite.run(f"    {outer}{reworded}", *ONLY, "--dataloader-faults-flaky=fail")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*flaky: 1 of 3 trials failed*"])
    result.stdout.fnmatch_lines(["*::test_data: 1 check failed (1 corrupted);*"])


def test_an_unknown_choice_ends_the_run(light_suite):
    result = light_suite.run(SOMETIMES, "--dataloader-faults-flaky=maybe")

    result.stderr.fnmatch_lines(
        ["*flaky='maybe' from --dataloader-faults-flaky * ('warn', 'fail')"]
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


def test_count(read_errors):
    read_errors("*.rec", count=2)


def test_signal(killed_workers):
    killed_workers(2)


def test_no_workers(read_errors, records):
    read_errors("*.rec")
    list(DataLoader(Records(records)))


@pytest.mark.dataloader_faults(only="open-error")
def test_check(fault_check, records):
    fault_check(lambda: ZerosOnError(records))
"""
TEXTS = {
    "test_nested": "faults are already armed in this process",
    "test_text": "'*.rec' is not a fault",
    "test_kind": "ReadError is a class, not a fault. Call it: ReadError()",
    "test_list": "[ReadError()] is a list, not a fault",
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
    assert TEXTS[test] in bodies[test]
    frames = FRAME.findall(bodies[test])
    assert {path for path, _ in frames} == {"test_inner.py"}, bodies[test]
    assert "???" not in bodies[test]


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
    assert headline(text) == sentence
