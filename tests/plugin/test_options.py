"""Values that options, ini keys and markers refuse: a usage error that names the source."""

from __future__ import annotations

import pytest

PLAIN = "def test_plain(): pass"

MARKED = """
import pytest


@pytest.mark.dataloader_faults({arguments})
def test_marked({fixture}):
    pass
"""

REFUSED = [
    ("engine", "warp", "one of auto, kernel, python"),
    ("deadline", "-1", "a positive number of seconds, or 'auto'"),
    ("deadline", "0", "a positive number of seconds, or 'auto'"),
    ("deadline", "inf", "a positive number of seconds, or 'auto'"),
    ("deadline", "nan", "a positive number of seconds, or 'auto'"),
    ("deadline", "soon", "a positive number of seconds, or 'auto'"),
    ("seed", "-1", "an int from 0 to 2**32 - 1"),
    ("seed", "soon", "an int from 0 to 2**32 - 1"),
    ("seed", "1.5", "an int from 0 to 2**32 - 1"),
    ("samples", "0", "an int, 1 or more, or 'all'"),
    ("samples", "few", "an int, 1 or more, or 'all'"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), REFUSED)
def test_bad_options_are_usage_errors(light_suite, name, value, allowed):
    """The error names the option, its value, and what is allowed; no test runs."""
    flag = f"--dataloader-faults-{name}"
    result = light_suite.run(PLAIN, f"{flag}={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    expected = [f"ERROR: {name}='{value}' from {flag} must be {allowed}"]
    assert expected == [line for line in result.errlines if line]


@pytest.mark.parametrize(("name", "value", "allowed"), REFUSED[1:2] + REFUSED[0:1] + REFUSED[6:7])
def test_bad_ini_values_are_usage_errors(light_suite, name, value, allowed):
    """The error names the ini key, not the option of the same name."""
    light_suite.pytester.makeini(f"[pytest]\ndataloader_faults_{name} = {value}")
    result = light_suite.run(PLAIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    expected = [f"ERROR: {name}='{value}' from ini key dataloader_faults_{name} must be {allowed}"]
    assert expected == [line for line in result.errlines if line]


def test_a_bad_ini_value_is_refused_below_a_good_option(light_suite):
    """An option does not hide that the ini file is wrong."""
    light_suite.pytester.makeini("[pytest]\ndataloader_faults_deadline = never")
    result = light_suite.run(PLAIN, "--dataloader-faults-deadline=5")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*from ini key dataloader_faults_deadline must be a positive*"])


@pytest.mark.parametrize("fixture", ["fault_check", "dataloader_faults", "eio_reads"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param("deadline=-1", "deadline=-1 from {} must be a positive*", id="negative"),
        pytest.param(
            "deadline='soon'",
            "deadline='soon' from {} must be a positive number of seconds, or 'auto'",
            id="word",
        ),
        pytest.param("deadline=[1]", "deadline=[[]1] from {} must be a *number*", id="list"),
        pytest.param("engine='warp'", "engine='warp' from {} must be one of*", id="engine"),
        pytest.param("engine=''", "engine='' from {} must be one of*", id="empty"),
    ],
)
def test_bad_marker_values_name_the_marker(light_suite, engine, fixture, arguments, message):
    """A bad value in the marker is an error of the test it is on, and names the marker."""
    result = light_suite.run(MARKED.format(arguments=arguments, fixture=fixture))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{message.format('@pytest.mark.dataloader_faults')}"])
    result.stdout.fnmatch_lines(["ERROR *test_inner.py*"])


@pytest.mark.parametrize("fixture", ["fault_check", "dataloader_faults"])
def test_a_bad_marker_value_is_reported_without_frames_of_the_plugin(light_suite, engine, fixture):
    """The message is for the author of the test: no frames of the plugin come with it."""
    result = light_suite.run(MARKED.format(arguments="deadline=-1", fixture=fixture))
    result.assert_outcomes(errors=1)
    assert "_options.py" not in result.stdout.str()


def test_options_of_other_plugins_are_untouched(light_suite):
    """An option that only looks like ours is still pytest's unknown option."""
    result = light_suite.run(PLAIN, "--dataloader-faults-colour=red")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --dataloader-faults-colour=red*"])
