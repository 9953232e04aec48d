"""What an item of the battery does where one trial fails and two repeats of it pass."""

from __future__ import annotations

import pytest

SUITE = """
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
    result = suite.run(SUITE, *ONLY, *arguments)

    result.assert_outcomes(**{outcome: 1, "warnings": int(outcome == "passed")})
    result.stdout.fnmatch_lines(["*corrupted: *", "*not reproduced: 1 of 3 trials failed*"])


def test_an_unknown_choice_ends_the_run(light_suite):
    """The text says where it came from and what is allowed."""
    result = light_suite.run(SUITE, "--dataloader-faults-not-reproduced=maybe")

    result.stderr.fnmatch_lines(
        ["*not_reproduced='maybe' from --dataloader-faults-not-reproduced * ('warn', 'fail')"]
    )
