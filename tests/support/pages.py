"""The pages of the documentation, and tests of their examples."""

import functools
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_dataloader_faults._engine import explain_missing_engine
from pytest_dataloader_faults.report.command import main
from support.inner import Entry, run_process
from support.rows import slow
from support.scripts import ROOT, load_script

generate = load_script("docs/generate.py")
PAGES: list[Path] = generate.pages()
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}


def _run_scripts(names: list[str]) -> int:
    sys.path.insert(0, os.getcwd())
    for name in names:
        runpy.run_path(name, run_name="__main__")
    return 0


_ENTRIES: Mapping[tuple[str, ...], Entry] = {
    ("-m", "pytest"): pytest.main,
    ("-c", generate._RUN_OUR_COMMAND): main,
    ("-c", generate._RUN_SCRIPTS): _run_scripts,
}
"""What runs a command in a fork, by the first arguments of its interpreter."""
_HOW_TO = Path("docs/how-to")
_NAMES = """
    how-to/cookbook how-to/distributed-training how-to/inject-into-my-own-loop
    how-to/read-the-results how-to/resume-from-a-checkpoint how-to/run-in-ci
    how-to/run-without-a-test-file how-to/test-a-dataset reference/python-api
    tutorial/first_battery tutorial/first_search
"""
_LONG = {Path(f"docs/{name}.md") for name in _NAMES.split()}
"""Pages whose examples run whole batteries: about six seconds of a processor, or more."""


def pages_with_examples(*, how_to: bool) -> list[Any]:
    """Those below docs/how-to, or all others. Those that take long are slow."""
    pages = [page for page in PAGES if _has_examples(TEXTS[page])]
    chosen = [page for page in pages if page.is_relative_to(_HOW_TO) == how_to]
    return [slow(page) if page in _LONG else page for page in chosen]


def _has_examples(text: str) -> bool:
    return any(each in text for each in ("```python", "<!-- output", "<!-- tree"))


def check_examples(page: Path, folder: Path) -> None:
    """Run the examples of *page* in *folder*; fail if their output is not what the page shows."""
    if reason := explain_missing_engine():
        pytest.skip(f"no engine can run here: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "output_of", functools.partial(_output_of, generate.output_of))
        for ran in generate.run_page(page, folder):
            if ran.block is None:
                assert ran.status == 0, f"{ran.command}:\n{ran.output}"
            else:
                assert generate.same(ran.block.text) == generate.same(generate.body(ran)), (
                    f"`python docs/generate.py {page}` refreshes the output of {ran.command!r}"
                )


def _output_of(
    run_anew: Callable[..., tuple[str, int]],
    command: list[str],
    folder: Path,
    environment: Mapping[str, str],
) -> tuple[str, int]:
    """As ``generate.output_of``; a fork of this process, which has torch, runs the command."""
    is_script = command[1:2] == [each for each in command[1:] if each.endswith(".py")]
    entry = _run_scripts if is_script else _ENTRIES.get(tuple(command[1:3]))
    if entry is None:
        return run_anew(command, folder, environment)
    streams = [folder / ".tmp" / name for name in ("stdout", "stderr")]
    arguments = command[1:] if is_script else command[3:]
    status = run_process(
        folder, streams, arguments, environment, functools.partial(_run_as_new, entry)
    )
    return "".join(each.read_text(encoding="utf-8") for each in streams), status


def _run_as_new(entry: Entry, arguments: list[str]) -> int:
    multiprocessing.set_start_method(None, force=True)
    return entry(arguments)
