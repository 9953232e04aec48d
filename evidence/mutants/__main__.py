"""Mutate the code that decides about verdicts, and see whether a test of it fails.

    python evidence mutants FOLDER [--seed N] [--count N] [--parts judge engine]

FOLDER gets a copy of the checkout, where one module at a time is changed, and ``mutants.jsonl``: a
line for each mutant. A mutant that has a line is not run again. 200 mutants take hours.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mutants import Mutation, mutations
from paths import ROOT
from size import PACKAGE

_PYTEST = "-m pytest -x -q -p no:cacheprovider -n 4 --dist loadfile".split()
_TIMES, _SECONDS = 3, 60
"""The limit of a test run: this many times its duration without a mutation, plus these seconds."""
_IGNORED = shutil.ignore_patterns(".*", "__pycache__")


class Part(NamedTuple):
    """Modules that are mutated, and groups of tests, which run one after the other."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


_BATTERY = "tests/battery tests/corpus"
_PLANS = "tests/battery/test_plans.py tests/battery/test_texts.py tests/battery/test_file_sizes.py"
PARTS = {
    "judge": Part(
        ("outcomes/judge", "outcomes/chains.py", "outcomes/leaks.py"), ("tests/outcomes", _BATTERY)
    ),
    "comparison": Part(
        (
            "outcomes/agreement.py",
            "outcomes/reference.py",
            "_trial/samples.py",
            "_trial/passes.py",
            "_trial/reference.py",
        ),
        ("tests/outcomes", "tests/trial", _BATTERY),
    ),
    "plans": Part(("battery/checks", "battery/workload.py"), (_PLANS, _BATTERY)),
    "engine": Part(("_engine",), ("tests/engine",)),
}


class Mutant(NamedTuple):
    """A mutation of a module, by its path in the package, for a part."""

    part: str
    path: str
    mutation: Mutation

    @property
    def name(self) -> str:
        """Its place, and what it changes, on one line."""
        line, before, after, start, _ = self.mutation
        change = f"{' '.join(before.split())} -> {' '.join(after.split())}"
        return f"{self.path}:{line} ({start}): {change}"


def sample(seed: int, count: int, parts: Collection[str] = PARTS) -> Iterator[Mutant]:
    """*count* random mutants of all parts, the same number of each; those of *parts*."""
    package = ROOT / PACKAGE
    for part in parts:
        modules = PARTS[part].modules
        paths = sorted(path for each in modules for path in _modules(package / each))
        mutants = [
            Mutant(part, str(path.relative_to(package)), mutation)
            for path in paths
            for mutation in mutations(path.read_text(encoding="utf-8"))
        ]
        yield from random.Random(f"{seed} {part}").sample(mutants, count // len(PARTS))


def _modules(path: Path) -> Iterable[Path]:
    return path.rglob("*.py") if path.is_dir() else [path]


class Copy:
    """A copy of the checkout, and the time that its tests take."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not folder.exists():
            shutil.copytree(ROOT, folder, ignore=_IGNORED)
        self._seconds: dict[str, float] = {}
        # A bytecode cache is valid if the seconds of a time and a size are the same.
        self._times = itertools.count(int(time.time()))

    def find_killer(self, mutant: Mutant) -> str:
        """The test that fails with *mutant*, or what else happens; "" if all pass."""
        for group in PARTS[mutant.part].tests:
            limit = _TIMES * self._measure(group) + _SECONDS
            with self._mutated(mutant):
                if killer := self._run(group, limit):
                    return killer
        return ""

    def _measure(self, group: str) -> float:
        """How many seconds the tests of *group* take without a mutation."""
        if group not in self._seconds:
            began = time.monotonic()
            if killer := self._run(group, None):
                sys.exit(f"without a mutation, a test of {group} fails: {killer}")
            self._seconds[group] = time.monotonic() - began
        return self._seconds[group]

    @contextlib.contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / PACKAGE / mutant.path
        code = path.read_text(encoding="utf-8")
        try:
            self._write(path, mutant.mutation.apply(code))
            yield
        finally:
            self._write(path, code)

    def _write(self, path: Path, code: str) -> None:
        path.write_text(code, encoding="utf-8")
        os.utime(path, (next(self._times),) * 2)

    def _run(self, group: str, limit: float | None) -> str:
        """The first test of *group* that fails, or what else happens; "" if all pass."""
        process = subprocess.Popen(
            [sys.executable, *_PYTEST, "-m", "not slow", *group.split()],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"{group}: timeout"
        if process.returncode == 0:
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return failed[1] if failed else f"{group}: exit status {process.returncode}"


def summary(results: Iterable[dict[str, Any]]) -> Iterator[str]:
    """For each folder of mutated modules, how many mutants each folder of tests killed."""
    killers: dict[str, list[str]] = {}
    survivors = []
    for result in results:
        folder = os.path.dirname(result["mutant"].partition(":")[0])
        killers.setdefault(folder, []).append("/".join(result["killer"].split("/")[:2]))
        if not result["killer"]:
            survivors.append(f"  {result['mutant']}")
    in_all = list(itertools.chain(*killers.values()))
    for folder, tests in (*sorted(killers.items()), ("in all", in_all)):
        counts = {each: tests.count(each) for each in sorted({*tests} - {""})}
        by_tests = ", ".join(f"{each} {count}" for each, count in counts.items())
        yield f"{folder}: {sum(counts.values())} of {len(tests)} killed ({by_tests})"
    if survivors:
        yield from ("survivors:", *survivors)


def main() -> None:
    """Run the mutants that have no result yet, and print the summary."""
    parser = argparse.ArgumentParser(prog="python evidence mutants")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--count", type=int, default=200, metavar="N")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, metavar="PART")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    file, copy = options.folder / "mutants.jsonl", Copy(options.folder.resolve() / "copy")
    file.touch()
    known = {json.loads(line)["mutant"] for line in file.read_text(encoding="utf-8").splitlines()}
    for mutant in sample(options.seed, options.count, options.parts):
        if mutant.name in known:
            continue
        result = {"part": mutant.part, "mutant": mutant.name, "killer": copy.find_killer(mutant)}
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(result, ensure_ascii=False) + "\n")
        print(f"{result['killer'] or 'SURVIVED'}: {mutant.name}", flush=True)
    lines = file.read_text(encoding="utf-8").splitlines()
    print("\n".join(summary(map(json.loads, lines))))


if __name__ == "__main__":
    main()
