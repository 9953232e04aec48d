"""What the plugin adds to pytest's start, where no test uses it.

Beside an empty plugin, since pytest searches the installed packages for each that is named. In both
runs no other plugin is loaded, and Python's compiled files are there. The least of the rounds: the
differences are small beside what other processes of the machine add.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import Table, clock, in_turn, shown

OURS = "pytest_dataloader_faults.plugin"
ROUNDS_MORE = 3
"""So many times the rounds of other tables."""


def table(rounds: int) -> Table:
    """The time until pytest has run one test that does nothing."""
    times = Table(("", "without", "with", "more, by the clock", "more, of CPU"))
    with tempfile.TemporaryDirectory() as name:
        Path(name, "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        Path(name, "no_plugin.py").write_text('"""Nothing."""\n')
        for text, options in (("pytest -q", ["-q"]), ("pytest, with a header", [])):
            times.rows.append((text, *_row(ROUNDS_MORE * rounds, name, options)))
    return times


def _row(rounds: int, folder: str, options: list[str]) -> list[str]:
    spent: dict[str, list[float]] = {"no_plugin": [], OURS: []}

    def run(plugin: str) -> None:
        spent[plugin].append(_cpu_of_pytest(folder, plugin, options))

    measures = [clock(lambda plugin=plugin: run(plugin)) for plugin in spent]
    in_turn(1, *measures)  # It compiles.
    without, with_ours = in_turn(rounds, *measures)
    without_plugin, with_plugin = min(without), min(with_ours)
    cpu = min(spent[OURS][1:]) - min(spent["no_plugin"][1:])
    return [
        shown(seconds)
        for seconds in (without_plugin, with_plugin, with_plugin - without_plugin, cpu)
    ]


def _cpu_of_pytest(folder: str, plugin: str, options: list[str]) -> float:
    """Run pytest in *folder*; the seconds of CPU that it and its child processes took."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONSAFEPATH"):
        environment.pop(name, None)
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": plugin}
    environment |= {"PYTHONPYCACHEPREFIX": os.path.join(folder, "compiled")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime
