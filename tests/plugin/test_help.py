"""What ``pytest --help``, ``--fixtures`` and ``--markers`` tell about the plugin."""

from __future__ import annotations

import inspect

import pytest

from pytest_dataloader_faults.plugin import _options

FIXTURES = {
    "fault_check": "Ask one check of the battery about your dataset",
    "dataloader_faults": "Inject faults into DataLoader workers",
    "eio_reads": "Make reads fail with EIO in DataLoader workers",
    "truncated_files": "Make files shorter for DataLoader workers",
    "closed_descriptors": "Close descriptors under the dataset in DataLoader workers",
    "emfile": "Leave DataLoader workers without file descriptors",
    "killed_workers": "Kill a DataLoader worker",
}


def _words(result) -> str:
    """The output with its line breaks undone."""
    return " ".join(result.stdout.str().split())


def test_options_have_a_group_of_their_own(suite):
    """The group says what the options are for, and each has its default in its help."""
    shown = _words(suite.again("--help"))
    start = shown.index("storage and process faults under PyTorch DataLoaders:")
    group = shown[start:].partition(" [pytest] ")[0]
    for name, default in (("engine", "auto"), ("deadline", "30.0"), ("seed", "0")):
        option = f"--dataloader-faults-{name}={name.upper()} "
        assert option in group
        assert f"(default: {default})" in group.partition(option)[2]
    assert "--dataloader-faults-require-gpu fail, not skip, the tests marked gpu" in group


@pytest.mark.parametrize("name", ["engine", "deadline", "seed"])
def test_ini_keys_are_listed(suite, name):
    """Each option has an ini key of the same stem."""
    ini = _words(suite.again("--help")).partition("[pytest] configuration options")[2]
    assert f"dataloader_faults_{name} (string):" in ini


def test_fixtures_have_a_first_paragraph(suite):
    """``pytest --fixtures`` says of each fixture what it does, and how to call it."""
    shown = suite.again("--fixtures")
    for name, first in FIXTURES.items():
        shown.stdout.fnmatch_lines([f"{name} -- *", f"    {first}*"])
    own = shown.stdout.str().partition("pytest_dataloader_faults.plugin")[2]
    listed = {line.partition(" -- ")[0] for line in own.splitlines() if " -- " in line}
    assert set(FIXTURES) <= listed
    assert "no docstring available" not in own.partition("fixtures defined from")[0]


def test_marker_is_generated_from_the_signature(suite):
    """``pytest --markers`` lists exactly the arguments that the marker takes."""
    names = ", ".join(f"{name}=..." for name in inspect.signature(_options.marker).parameters)
    assert names == (
        "only=..., exclude=..., expected_failures=..., deadline=..., engine=..., not_reproduced=..."
    )
    suite.again("--markers").stdout.fnmatch_lines([f"@pytest.mark.dataloader_faults({names}): *"])


def test_marker_for_accelerators_says_what_it_does(suite):
    """``pytest --markers`` tells when such a test is skipped, and how to have it fail."""
    told = "@pytest.mark.gpu: the test needs an accelerator*--dataloader-faults-require-gpu"
    suite.again("--markers").stdout.fnmatch_lines([told])


def test_marker_is_registered(suite):
    """The marker is known under --strict-markers."""
    source = "import pytest\n\n@pytest.mark.dataloader_faults\ndef test_plain(): pass"
    suite.run(source, "--strict-markers").assert_outcomes(passed=1)
