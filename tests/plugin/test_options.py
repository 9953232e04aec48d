"""Which values options, ini keys and markers refuse, and what the help says of them."""

import fnmatch
import re

import pytest

from pytest_dataloader_faults import plugin
from pytest_dataloader_faults.plugin import _options
from support.rows import rows

PLAIN = "def test_plain(): pass"
REFUSED = [
    ("deadline", "-1", "a positive number of seconds, or 'auto'"),
    ("deadline", "nan", "a positive number of seconds, or 'auto'"),
    ("deadline", "soon", "a positive number of seconds, or 'auto'"),
    ("seed", "-1", "an int from 0 to 2**32 - 1"),
    ("seed", "1.5", "an int from 0 to 2**32 - 1"),
    ("samples", "0", "an int, 1 or more, or 'all'"),
    ("samples", "few", "an int, 1 or more, or 'all'"),
    ("flaky", "maybe", "one of ('warn', 'fail')"),
    ("flaky", "no", "one of ('warn', 'fail')"),
]


def _require_usage_error(result, text):
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [f"ERROR: {text}"]


@rows(("name", "value", "allowed"), REFUSED)
def test_bad_options_are_usage_errors(light_suite, name, value, allowed):
    flag = f"--dataloader-faults-{name}"
    text = f"{name}='{value}' from {flag} must be {allowed}"
    _require_usage_error(light_suite.run(PLAIN, f"{flag}={value}"), text)


EMPTY = [(name, "", allowed) for name, _, allowed in REFUSED[1::2]]


@rows(("name", "value", "allowed"), [*REFUSED[::2], *EMPTY])
def test_bad_ini_values_are_usage_errors(light_suite, name, value, allowed):
    """Also below a good option."""
    light_suite.pytester.makeini(f"[pytest]\ndataloader_faults_{name} = {value}")
    text = f"{name}='{value}' from ini key dataloader_faults_{name} must be {allowed}"
    _require_usage_error(light_suite.run(PLAIN, "--dataloader-faults-deadline=5"), text)


def test_a_report_does_not_overwrite_the_baseline(light_suite):
    (light_suite.pytester.path / "known.json").write_text("{}")
    paths = "--dataloader-faults-report=./known.json", "--dataloader-faults-baseline=known.json"
    text = "report='known.json' would overwrite the baseline. Pass another file for the report"
    _require_usage_error(light_suite.run(PLAIN, *paths), text)


def test_options_of_other_plugins_are_untouched(light_suite):
    """An option that only looks like ours is still pytest's unknown option."""
    result = light_suite.run(PLAIN, "--dataloader-faults-colour=red")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --dataloader-faults-colour=red*"])


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
    output = light_suite.again("--fixtures", "-v").stdout.str()
    section = output.partition("pytest_dataloader_faults.plugin")[2]
    texts = dict(re.findall(r"^(\w+) -- .*\n((?:    .*\n)+)", section, re.MULTILINE))
    assert texts["fault_check"].strip().startswith("Run one check of the battery: ")
    for _, _, example in plugin._fault_fixtures:
        name = example.partition("(")[0]
        assert " ".join(texts[name].split()).startswith(f"``{example}``: "), texts[name]
    section = section.partition("fixtures defined from")[0]
    assert "no docstring available" not in section
    assert max(len(line) for line in section.splitlines() if " -- " not in line) <= 80


def test_markers_are_listed(light_suite):
    names = ", ".join(f"{name}=..." for name in _options.MARKER.parameters)
    assert names == (
        "only=..., exclude=..., expected_failures=..., samples=..., deadline=..., seed=...,"
        " ranks=..., flaky=..."
    )
    result = light_suite.again("--markers")
    words = _words(result)
    assert f"@pytest.mark.dataloader_faults({names}): " in words
    line = "*@pytest.mark.gpu: the test needs an accelerator*--dataloader-faults-require-gpu*"
    assert fnmatch.fnmatch(words, line)
    section = (
        result.stdout.str().partition("@pytest.mark.dataloader")[2].partition("@pytest.mark.f")
    )
    assert max(map(len, section[0].splitlines())) <= 80  # Pytest breaks no line of these.


CHOSEN = """
import pytest

mark = pytest.mark.dataloader_faults

def test_plain(fault_check): pass
@mark(only=["open-error", "pickles"])
def test_only(fault_check): pass
@mark(exclude="pickles")
def test_exclude(fault_check): pass
def test_of_no_check(): pass
"""


@rows(
    ("options", "plain", "only", "exclude"),
    [
        (["only=open-error,pickles"], "open-error pickles", "open-error pickles", "open-error"),
        (["only=open-*"], "open-error", "open-error", "open-error"),
        (["only=stray-entries"], "stray-entries", "", "stray-entries"),
        (["only=listings", "exclude=stray-*"], "listing-order", "", "listing-order"),
        # The last one wins, as that on the command line over the one in addopts.
        (["only=pickles", "only=open-error"], "open-error", "open-error", "open-error"),
    ],
)
def test_options_select_from_the_checks_of_each_test(
    light_suite, engine, options, plain, only, exclude
):
    chosen = [f"--dataloader-faults-{each}" for each in options]
    result = light_suite.run(CHOSEN, "--collect-only", "-q", *chosen)
    collected = [line.partition("::test_")[2] for line in result.outlines if "::" in line]
    expected = {"plain": plain, "only": only, "exclude": exclude}
    items = [f"{name}[{check}]" for name in expected for check in expected[name].split()]
    assert sorted(collected) == sorted([*items, "of_no_check"])


def test_wrong_checks_are_usage_errors(light_suite):
    """They are found before the tests are collected."""
    only = "--dataloader-faults-only"
    wrong = light_suite.run(PLAIN, f"{only}=open-eror")
    empty, unmatched = (light_suite.again(f"{only}={each}") for each in (", ", "opn-*"))
    none_left = light_suite.again(f"{only}=pickles", "--dataloader-faults-exclude=pickles")
    assert {wrong.ret, empty.ret, unmatched.ret, none_left.ret} == {pytest.ExitCode.USAGE_ERROR}
    message = f"{only} contains 'open-eror', which is not a check. Did you mean 'open-error' or"
    assert f"ERROR: {message}" in wrong.stderr.str()
    assert not wrong.outlines
    assert f"{only} contains 'opn-*', which matches no check: workers-a" in unmatched.stderr.str()
    assert f"ERROR: {only}=', ' must name one or more checks" in empty.stderr.str()
    assert "leave no check to run. Keep at least one" in none_left.stderr.str()


def test_a_choice_that_leaves_no_test_is_reported(light_suite):
    """Pytest says no more than that some were deselected, and exits with 5."""
    source = """
        import pytest

        @pytest.mark.dataloader_faults(only="pickles,open-error")
        def test_x(fault_check): ...
    """
    only = "--dataloader-faults-only=rank-stops"
    result = light_suite.run(source, only)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert f"dataloader-faults: no test runs a check selected by {only}" in result.outlines
    collection = light_suite.again("--dataloader-faults-only=pickles", "--collect-only")
    collection.stdout.no_fnmatch_line("*no test runs a check*")
