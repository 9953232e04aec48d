"""Run a campaign, and print its table."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from chaos.results import Result, Table, result_from
from chaos.rounds import ROLES, SHORTAGES, SIGNALS, SUBJECTS, Limits
from paths import PYTHONPATH

NAMESPACES = (
    "unshare",
    "--pid",
    "--mount",
    "--net",
    "--ipc",
    "--fork",
    "--kill-child",
    "--mount-proc",
)


def refusal() -> str:
    """Why this machine gives nobody namespaces of their own; empty where it does."""
    process = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return process.stderr.strip()


def run(seed: int, start: int, stop: int, limits: Limits) -> Iterator[Result]:
    """The results of rounds *start* to *stop*, as they come."""
    argument = json.dumps([seed, start, stop, asdict(limits)])
    command = [*NAMESPACES, sys.executable, "-m", "chaos.inside", argument]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("data", "temporary"):
            os.mkdir(os.path.join(folder, name))
        env = {**os.environ, "PYTHONPATH": PYTHONPATH, "TMPDIR": f"{folder}/temporary"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield result_from(json.loads(line))
    if process.returncode:
        message = f"the rounds ended with status {process.returncode}"
        raise RuntimeError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 if there was a violation."""
    options = _parse(arguments)
    limits = Limits(options.acts, options.roles, options.subjects, options.methods)
    table = Table()
    for result in run(options.seed, options.first, options.first + options.rounds, limits):
        count = len(table.violations)
        table.add(result)
        for violation in table.violations[count:]:
            _print(violation)
        if options.verbose:
            _print(json.dumps(result.to_dict()))
    for line in table.lines():
        _print(line)
    return int(bool(table.violations))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python evidence chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--acts", nargs="+", default=(), choices=[*SIGNALS, "pause", *SHORTAGES])
    parser.add_argument("--roles", nargs="+", default=(), choices=ROLES)
    parser.add_argument("--subjects", nargs="+", default=(), choices=SUBJECTS)
    parser.add_argument("--methods", nargs="+", default=(), choices=["fork", "spawn", "forkserver"])
    parser.add_argument("--verbose", action="store_true", help="print each result")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
