"""Which values options, ini keys and markers refuse, and what the help says of them."""

from __future__ import annotations

import fnmatch
import re

import pytest

from pytest_dataloader_faults.plugin import _options
from support.rows import rows

PLAIN = "def test_plain(): pass"
MARKED = """
import pytest


@pytest.mark.dataloader_faults({arguments})
def test_marked({fixture}):
    pass
"""
REFUSED = [
    ("deadline", "-1", "a positive number of seconds, or 'auto'"),
    ("deadline", "nan", "a positive number of seconds, or 'auto'"),
    ("deadline", "soon", "a positive number of seconds, or 'auto'"),
    ("seed", "-1", "an int from 0 to 2**32 - 1"),
    ("seed", "1.5", "an int from 0 to 2**32 - 1"),
    ("samples", "0", "an int, 1 or more, or 'all'"),
    ("samples", "few", "an int, 1 or more, or 'all'"),
]


@rows(("name", "value", "allowed"), REFUSED)
def test_bad_options_are_usage_errors(light_suite, name, value, allowed):
    flag = f"--dataloader-faults-{name}"
    result = light_suite.run(PLAIN, f"{flag}={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    expected = [f"ERROR: {name}='{value}' from {flag} must be {allowed}"]
    assert expected == [line for line in result.errlines if line]


@rows(("name", "value", "allowed"), [*REFUSED[:2], *REFUSED[-2:]])
def test_bad_ini_values_are_usage_errors(light_suite, name, value, allowed):
    light_suite.pytester.makeini(f"[pytest]\ndataloader_faults_{name} = {value}")
    result = light_suite.run(PLAIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    expected = [f"ERROR: {name}='{value}' from ini key dataloader_faults_{name} must be {allowed}"]
    assert expected == [line for line in result.errlines if line]


@rows("name", ["samples", "deadline", "seed", "flaky"])
def test_an_empty_ini_value_is_a_usage_error(light_suite, name):
    light_suite.pytester.makeini(f"[pytest]\ndataloader_faults_{name} =")
    result = light_suite.run(PLAIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = f"ERROR: {name}='' from ini key dataloader_faults_{name} must be "
    assert text in result.stderr.str()


def test_a_bad_ini_value_is_refused_below_a_good_option(light_suite):
    light_suite.pytester.makeini("[pytest]\ndataloader_faults_deadline = never")
    result = light_suite.run(PLAIN, "--dataloader-faults-deadline=5")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*from ini key dataloader_faults_deadline must be a positive*"])


@rows(
    ("fixture", "arguments", "message"),
    [
        ("fault_check", "deadline='soon'", "deadline='soon' from {} must be a positive number of*"),
        ("fault_injector", "deadline=-1", "deadline=-1 from {} must be a positive*"),
        ("read_errors", "deadline=[1]", "deadline=[[]1] from {} must be a *number*"),
        ("read_errors", "deadline=True", "deadline=True from {} must be a positive*"),
        ("fault_check", "deadline=10**400", "deadline=1000*from {} must be a positive*"),
        ("fault_injector", "seed=2.9", "seed=2.9 from {} must be an int*"),
        ("read_errors", "samples=True", "samples=True from {} must be an int*"),
    ],
)
def test_bad_marker_values_name_the_marker(light_suite, engine, fixture, arguments, message):
    result = light_suite.run(MARKED.format(arguments=arguments, fixture=fixture))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{message.format('@pytest.mark.dataloader_faults')}"])
    result.stdout.fnmatch_lines(["ERROR *test_inner.py*"])
    assert "_options.py" not in result.stdout.str()


def test_options_of_other_plugins_are_untouched(light_suite):
    """An option that only looks like ours is still pytest's unknown option."""
    result = light_suite.run(PLAIN, "--dataloader-faults-colour=red")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --dataloader-faults-colour=red*"])


FIXTURES = {
    "fault_check": "Run one check of the battery: ",
    "fault_injector": "Inject faults into DataLoader workers",
    "fake_dataset_fs": "An in-memory pyfakefs file system",
    "open_errors": "``open_errors(*)``: Opening a matching file fails",
    "read_errors": "``read_errors(*)``: Reading a matching file fails",
    "short_reads": "``short_reads(*)``: *at most ``max_bytes``",
    "truncated_files": "``truncated_files(*)``: *truncated",
    "corrupted_files": "``corrupted_files(*)``: *damaged",
    "closed_descriptors": "``closed_descriptors(*)``: *closed",
    "slow_reads": "``slow_reads(*)``: *longer",
    "hung_reads": "``hung_reads(*)``: *never return",
    "descriptor_exhaustion": "``descriptor_exhaustion(*)``: *descriptor",
    "shared_memory_exhaustion": "``shared_memory_exhaustion(*)``: */dev/shm",
    "killed_workers": "``killed_workers(*)``: *signal",
}


def _words(result) -> str:
    """The output with its line breaks undone."""
    return " ".join(result.stdout.str().split())


def test_options_have_a_group_of_their_own(light_suite):
    words = _words(light_suite.again("--help"))
    start = words.index("storage and process faults under PyTorch DataLoaders:")
    group, _, ini = words[start:].partition(" [pytest] ")
    for name, values, default in (
        ("deadline", "SECONDS|auto", "auto"),
        ("seed", "N", "0"),
    ):
        option = f"--dataloader-faults-{name}={values} "
        assert option in group
        assert f"(default: {default})" in group.partition(option)[2]
        assert f"dataloader_faults_{name} (string):" in ini
    assert (
        "--dataloader-faults-require-gpu fail tests marked gpu, instead of skipping them, if"
        in group
    )


def test_fixtures_have_a_first_paragraph(light_suite):
    """``pytest --fixtures`` says of each fixture what it does, and how to call it."""
    output = light_suite.again("--fixtures").stdout.str()
    section = output.partition("pytest_dataloader_faults.plugin")[2]
    texts = dict(re.findall(r"^(\w+) -- .*\n((?:    .*\n)+)", section, re.MULTILINE))
    for name, summary in FIXTURES.items():
        assert fnmatch.fnmatch(" ".join(texts[name].split()), f"{summary}*"), texts[name]
    assert "no docstring available" not in section.partition("fixtures defined from")[0]


def test_markers_are_listed(light_suite):
    names = ", ".join(f"{name}=..." for name in _options.MARKER.parameters)
    assert names == (
        "only=..., exclude=..., expected_failures=..., samples=..., deadline=..., seed=...,"
        " ranks=..., flaky=..."
    )
    words = _words(light_suite.again("--markers"))
    assert f"@pytest.mark.dataloader_faults({names}): " in words
    line = "*@pytest.mark.gpu: the test needs an accelerator*--dataloader-faults-require-gpu*"
    assert fnmatch.fnmatch(words, line)


@pytest.mark.parametrize(
    ("option", "begin", "end"),
    [
        ("--markers", "@pytest.mark.dataloader_faults", "@pytest.mark.filterwarnings"),
        ("--fixtures", "defined from pytest_dataloader_faults", "no tests ran"),
    ],
)
def test_no_line_is_longer_than_a_terminal(light_suite, option, begin, end):
    """Pytest breaks no line of these; a line with a path is as long as the path."""
    output = light_suite.again(option, "-v").stdout.str()
    section = output.partition(begin)[2].partition(end)[0].partition("fixtures defined from")[0]
    lines = [line for line in section.splitlines() if " -- " not in line]
    assert lines
    assert [line for line in lines if len(line) > 80] == []


def test_marker_is_registered(light_suite):
    source = "import pytest\n\n@pytest.mark.dataloader_faults\ndef test_plain(): pass"
    light_suite.run(source, "--strict-markers").assert_outcomes(passed=1)


CHOSEN = """
import pytest


def test_plain(fault_check): pass


@pytest.mark.dataloader_faults(only=["open-error", "pickles"])
def test_only(fault_check): pass


@pytest.mark.dataloader_faults(exclude="pickles")
def test_exclude(fault_check): pass
"""


def _collected(result) -> list[str]:
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def test_ini_keys_choose_checks(light_suite, engine):
    keys = "dataloader_faults_only = two-epochs, open-error\n  pickles"
    light_suite.pytester.makeini(f"[pytest]\n{keys}\ndataloader_faults_exclude = open-error")
    result = light_suite.run(CHOSEN, "--collect-only", "-q")
    assert sorted(_collected(result)) == [
        "test_exclude[open-error]",
        "test_exclude[two-epochs]",
        "test_only[open-error]",
        "test_only[pickles]",
        "test_plain[pickles]",
        "test_plain[two-epochs]",
    ]


CHECKS_OF_TESTS = [
    (
        ("--dataloader-faults-only=open-error,pickles",),
        [
            "test_exclude[open-error]",
            "test_only[open-error]",
            "test_only[pickles]",
            "test_plain[open-error]",
            "test_plain[pickles]",
        ],
    ),
    (
        ("--dataloader-faults-exclude=pickles,two-epochs",),
        ["test_exclude[open-error]", "test_only[open-error]", "test_plain[open-error]"],
    ),
    (
        ("--dataloader-faults-only=resource-growth",),
        ["test_exclude[resource-growth]", "test_plain[resource-growth]"],
    ),
]


@rows(("options", "expected"), CHECKS_OF_TESTS)
def test_options_leave_some_checks_of_all_tests(light_suite, engine, options, expected):
    keys = "dataloader_faults_only = two-epochs\n  open-error, pickles"
    light_suite.pytester.makeini(f"[pytest]\n{keys}\ndataloader_faults_exclude = open-error")
    result = light_suite.run(CHOSEN + OTHER, "--collect-only", "-q", *options)
    test_names = [each for each in _collected(result) if each != "test_of_no_check"]
    assert sorted(test_names) == expected
    assert "test_of_no_check" in _collected(result)


OTHER = """
def test_of_no_check(): pass
"""


def test_wrong_checks_are_usage_errors(light_suite):
    """They are found before the tests are collected."""
    only = "--dataloader-faults-only"
    wrong = light_suite.run(PLAIN, f"{only}=open-eror")
    empty = light_suite.again(f"{only}=, ")
    none_left = light_suite.again(f"{only}=pickles", "--dataloader-faults-exclude=pickles")
    assert {wrong.ret, empty.ret, none_left.ret} == {pytest.ExitCode.USAGE_ERROR}
    message = f"{only} contains 'open-eror', which is not a check. Did you mean 'open-error' or"
    assert f"ERROR: {message}" in wrong.stderr.str()
    assert not wrong.outlines
    assert f"ERROR: {only}=[', '] must name one or more checks" in empty.stderr.str()
    assert "leave no check to run. Keep at least one" in none_left.stderr.str()


def test_a_choice_that_leaves_no_test_is_reported(light_suite):
    """Pytest says no more than that some were deselected, and exits with 5."""
    source = """
        import pytest

        @pytest.mark.dataloader_faults(only="pickles,open-error")
        def test_x(fault_check): ...
    """
    only = "--dataloader-faults-only=rank-read-error"
    result = light_suite.run(source, only)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert f"dataloader-faults: no test runs a check selected by {only}" in result.outlines
    collection = light_suite.again("--dataloader-faults-only=pickles", "--collect-only")
    collection.stdout.no_fnmatch_line("*no test runs a check*")


@rows(
    ("name", "value", "problem"),
    [
        ("only", "open-eror", "contains 'open-eror', which is not a check. Did you mean 'open-e*"),
        ("exclude", "", "names no check. Name at least one, such as 'pickles, open-error'"),
    ],
)
def test_ini_keys_that_name_no_check_are_usage_errors(light_suite, engine, name, value, problem):
    light_suite.pytester.makeini(f"[pytest]\ndataloader_faults_{name} = {value}")
    result = light_suite.run(PLAIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: ini key dataloader_faults_{name} {problem}*"])
