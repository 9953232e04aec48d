"""Runs healthy examples many times: each must get the same verdict every time.

python evidence campaign --batteries 40 --load busy   whole batteries, a busy loop on each core
python evidence campaign --lmdb 200                   one check: workers that die while they read
python evidence campaign --sigbus 2000                another: after the first epoch
python evidence campaign --demo 20                    the demo in fresh clones of the repository

Each line is written when it is known, so that a run which is killed has told what it saw. The exit
status is 0 only if every verdict is the one in examples/expected.txt, and nothing else went wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import Any

from paths import ROOT

sys.path.append(str(ROOT / "examples"))  # spawned workers inherit it

import data
import demo
from pytest_dataloader_faults import CheckResult
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults.battery._battery import Battery
from pytest_dataloader_faults.battery.checking import run_check

DATASETS = ("OpensPerItem", "MmapPerItem", "PillowFolder", "H5Digits", "LmdbPerProcess")
REPEATED = {
    "lmdb": ("LmdbPerProcess", "truncated-file"),
    "sigbus": ("MmapPerItem", "read-error-once"),
}
"""The option, the dataset, and the check."""
DEADLINE = 10.0
BUSY = "import os\nwhile os.getppid() == {}:\n    sum(range(1_000_000))"
Factory = Callable[[], Any]


@dataclass
class Tally:
    """What a campaign saw, and what it expected to see."""

    expected: demo.Matrix
    began: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter)

    def check(self, battery: Battery, name: str, check: str) -> CheckResult | None:
        """Ask, count, and tell what is not as expected; None where there was no verdict."""
        self.counts["checks"] += 1
        with self.count_errors(f"{name} {check}"):
            result = run_check(battery, check)
            actual, expected = demo.word(result), self.expected.get(name, {}).get(check, "nothing")
            if actual != expected:
                self.counts["deviations"] += 1
                tell(
                    f"DEVIATION {name} {check}: got {actual}, wanted {expected}:"
                    f" {result.explanation}"
                )
            return result
        return None

    @contextmanager
    def count_errors(self, whose: str) -> Iterator[None]:
        """Tell and count any exception, and go on behind the block."""
        try:
            yield
        except Exception:  # noqa: BLE001  # what it is, is what the campaign is there to see
            self.counts["errors"] += 1
            tell(f"ERROR {whose}: {traceback.format_exc()}")

    def battery(self, name: str, make_dataset: Factory, deadline: float) -> Battery | None:
        """What the checks of one round share; None if it could not be made."""
        with self.count_errors(f"{name} before the first check"):
            return Battery(make_dataset, Settings(deadline=deadline))
        return None

    @property
    def unexpected(self) -> int:
        """How often something was not as expected."""
        return self.counts["deviations"] + self.counts["errors"]

    def close(self) -> int:
        """Tell the sums; the exit status."""
        kinds = ("batteries", "checks", "demos", "deviations", "errors")
        sums = ", ".join(f"{self.counts[kind]} {kind}" for kind in kinds)
        tell(f"{sums}, {time.monotonic() - self.began:.0f} seconds")
        return 1 if self.unexpected else 0


def tell(line: str) -> None:
    """Write a line at once."""
    print(line, flush=True)


def run_batteries(tally: Tally, factories: dict[str, Factory], options: argparse.Namespace) -> None:
    """Whole batteries, the datasets in turn."""
    for number in range(options.batteries):
        for name in options.datasets or DATASETS:
            earlier, began = tally.unexpected, time.monotonic()
            if battery := tally.battery(name, factories[name], options.deadline):
                for check in options.checks or demo.CHECKS:
                    tally.check(battery, name, check)
            tally.counts["batteries"] += 1
            tell(
                f"{number + 1}/{options.batteries} {name}:"
                f" {tally.unexpected - earlier} not as expected,"
                f" {time.monotonic() - began:.1f} s"
            )


def repeat(
    tally: Tally, factories: dict[str, Factory], option: str, times: int, wait: float
) -> None:
    """One check of one dataset, and how often it came to what."""
    name, check = REPEATED[option]
    ends: Counter[tuple[str, str]] = Counter()
    battery = tally.battery(name, factories[name], wait)
    for number in range(times if battery else 0):
        if result := tally.check(battery, name, check):
            raised = result.outcome.exception if result.outcome else None
            ends[str(result.verdict), raised.type if raised else "no exception"] += 1
        if (number + 1) % 20 == 0 or number + 1 == times:
            tell(f"{number + 1}/{times} {name} {check}: {dict(ends)}")


def run_demos(tally: Tally, times: int, names: Sequence[str] | None) -> None:
    """The demo as it is at the last commit, each time in a fresh clone."""
    chosen = [["--only", name] for name in names] if names else [["--all"]]
    for number in range(times):
        for arguments in chosen:
            status, output = demo_in_a_clone(arguments)
            tally.counts["demos"] += 1
            tally.counts["deviations"] += status != 0
            tell(f"{number + 1}/{times} demo: exit status {status}" + output * (status != 0))


def demo_in_a_clone(arguments: list[str]) -> tuple[int, str]:
    """The exit status of a demo that runs from a clone, and what it printed."""
    with tempfile.TemporaryDirectory(prefix="clone-") as folder:
        clone = Path(folder, "clone")
        subprocess.run([which("git"), "clone", "--quiet", "--local", ROOT, clone], check=True)
        process = subprocess.run(
            [sys.executable, clone / "examples/demo.py", *arguments],
            cwd=clone,
            env=os.environ | {"PYTHONPATH": f"{clone}{os.pathsep}{clone / 'examples'}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    return process.returncode, f"\n{process.stdout}"


@contextmanager
def load(kind: str) -> Iterator[None]:
    """Keep each core busy, or none; the loops end with this process, whatever ends it."""
    program = [sys.executable, "-c", BUSY.format(os.getpid())]
    with ExitStack() as stack:
        for _ in range(len(os.sched_getaffinity(0)) if kind == "busy" else 0):
            loop = stack.enter_context(subprocess.Popen(program))
            stack.callback(loop.kill)
        yield


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; what there is to repeat is said once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--batteries", type=int, metavar="N", default=1, help="of each dataset")
    for name, repeated in REPEATED.items():
        group.add_argument(f"--{name}", type=int, metavar="N", help=" ".join(repeated))
    group.add_argument("--demo", type=int, metavar="N", help="the demo in fresh clones")
    parser.add_argument("--load", choices=("idle", "busy"), default="idle")
    parser.add_argument("--datasets", nargs="+", choices=demo.examples(Path()), metavar="NAME")
    parser.add_argument("--checks", nargs="+", choices=demo.CHECKS, metavar="NAME")
    parser.add_argument("--deadline", type=float, default=DEADLINE, help="seconds for each trial")
    parser.add_argument("--expected", type=Path, default=demo.EXPECTED, help="another expected.txt")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign; the exit status."""
    options = parse(arguments)
    tally = Tally(demo.read_matrix(options.expected.read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder, load(options.load):
        factories = demo.examples(data.build(Path(folder)))
        if options.demo:
            run_demos(tally, options.demo, options.datasets)
        elif option := next((each for each in REPEATED if getattr(options, each)), None):
            repeat(tally, factories, option, getattr(options, option), options.deadline)
        else:
            run_batteries(tally, factories, options)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
