"""Run the examples of a page, and refresh the terminal output that it shows.

    python docs/generate.py               every page
    python docs/generate.py README.md     these pages

A page is a small separate project, created and run from top to bottom in an empty folder. The
comment on the line before a block says what the block is:

    <!-- file: NAME -->         it is written to that file; what follows may use it
    <!-- output: COMMAND -->    it shows COMMAND and what it prints; this script writes it
    <!-- tree: FOLDER -->       it lists the folders of modules below FOLDER; this script writes it
    <!-- fragment: REASON -->   it is not run, for that reason
    <!-- module: NAME -->       it is a module that changes import
    <!-- change: CHECK ... -->  it is code that fails, and what to change so that it passes;
                                tests/battery/test_fix_a_failure.py runs the check on both

A Python block without a comment is run as a script. A test file that no COMMAND names is run with
pytest at the end, and any other Python file that no COMMAND names as a script. Nothing shows what
these print. So one process runs all scripts of a page, and another one all its tests: each process
would import torch again.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_MARK = re.compile(r"<!-- (file|output|tree|fragment|module|change): (.*) -->")
_HEADER = re.compile(r"(platform|rootdir|configfile|plugins|cachedir)[ :]")
_NOT_INHERITED = ("PYTEST_", "PYTHONSAFEPATH", "PYTHONWARNINGS", "CI", "BUILD_NUMBER", "TOX_")
_RUN_SCRIPTS = """
import runpy, sys
for name in sys.argv[1:]:
    runpy.run_path(name, run_name="__main__")
"""
_RUN_OUR_COMMAND = """
from pytest_dataloader_faults.report.command import main
raise SystemExit(main())
"""
_SAME = (
    # Only slow datasets have this line, and each one on a busy machine.
    (r"\s*dataloader-faults: .* checks will take about \d+ s.*\n\S+", ""),
    # A longer time may start a new line.
    (r";\n +(\d+\.\d+ s)\n", r"; \1\n"),
    (r"in worker \d+ \(pid \d+\), fetch \d+: (\S+ )?\S*", r"in worker N, fetch N: \1"),
    (r"DataLoader worker process \d+", "DataLoader worker process N"),
    (r"\bpid(\(s\))? \d+", "pid N"),
    # On Python 3.14 errors of pickle say more, and a worker from a fork server is not a child.
    (r"cannot pickle '(_io\.)?(\w+)' (object|instances)", r"cannot pickle \2"),
    (r"\n +when serializing .*", ""),
    (r"is killed by signal: \w+\. *\n.*DataLoader worker \(pid N\) exited", "exited"),
    # Above a minute, pytest adds hours, minutes and seconds.
    (r"\d+(\.\d+)? ?s\b( \((\d+ days?, )?\d+:\d\d:\d\d\))?", "N s"),
    (r"\b\d{2,}\.(bin|py)\b", r"N.\1"),
    (r"sample \d+ \(batch \d+\).*? of sample \d+", "sample N has sample N"),
    (r"sample \d+ in \.\.\.", "sample N"),
    (r"Linux [\w.+-]+", "Linux N"),
    (r"[=_]{3,}", "=="),
    (r"\s+(\[\s*\d+%\])", r" \1"),
    # Workers that share an offset read wrong data, and chance decides whether that is decoded to a
    # wrong sample or to an error first.
    (
        r"\(1\s+(?:corrupted|fails_without_fault)\);\s+(N s\n +1 check: .* workers-agree)",
        r"(1 race); \1",
    ),
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. *start* and *end* are the lines of its fences, from 0."""

    kind: str
    argument: str
    language: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Ran:
    """A command that a page made us run; *block*, where it shows the output."""

    command: str
    output: str
    status: int
    block: Block | None = None


def pages() -> list[Path]:
    """Every page with examples, relative to the root."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page.relative_to(ROOT) for page in paths]


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = text.splitlines()
    start, language = -1, ""
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start < 0:
            start, language = number, line[3:].strip()
            continue
        mark = _MARK.fullmatch(lines[start - 1]) if start else None
        kind, argument = mark.groups() if mark else ("", "")
        body = "\n".join(lines[start + 1 : number])
        yield Block(kind, argument, language, f"{body}\n", start, number)
        start = -1


def run_page(page: Path, folder: Path, python: str = sys.executable) -> list[Ran]:
    """Run everything on *page* in *folder*, which is empty, by *python*."""
    page_blocks = list(blocks((ROOT / page).read_text(encoding="utf-8")))
    ran = [each for block in page_blocks if (each := _run_block(block, folder, python))]
    commands = " ".join(each.command for each in ran)
    files = dict.fromkeys(_file_of(block) for block in page_blocks)
    unnamed = [name for name in files if name.endswith(".py") and name not in commands]
    for tool in ("python", "pytest"):
        names = [name for name in unnamed if _tool_for(name) == tool]
        ran += [_run(shlex.join([tool, *names]), folder, python)] if names else []
    return ran


def _tool_for(name: str) -> str:
    if name == "conftest.py":
        return ""
    return "pytest" if name.startswith("test_") else "python"


def _file_of(block: Block) -> str:
    """The name of the file that *block* is written to; "" if there is none."""
    if block.kind == "file":
        return block.argument
    return f"line_{block.start + 2}.py" if block.language == "python" and not block.kind else ""


def _run_block(block: Block, folder: Path, python: str) -> Ran | None:
    """Run the command of *block*, or write its file."""
    if block.kind == "output":
        return _run(block.argument, folder, python, block)
    if block.kind == "tree":
        return Ran("tree", tree(ROOT / block.argument), 0, block)
    if name := _file_of(block):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
    return None


def _run(
    command: str, folder: Path, python: str, block: Block | None = None, *, columns: int = 88
) -> Ran:
    tool, *arguments = shlex.split(command)
    temporary = folder / ".tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)
    }
    environment |= {"CUDA_VISIBLE_DEVICES": ""}  # Each page shows what most machines print.
    environment |= {"COLUMNS": str(columns), "PYTEST_DEBUG_TEMPROOT": str(temporary)}
    if tool == "pytest":
        environment |= {"PYTHONSAFEPATH": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    starts = {"pytest": ["-m", "pytest"], "pytest-dataloader-faults": ["-c", _RUN_OUR_COMMAND]}
    start = [python, *starts.get(tool, [])]
    start += ["-c", _RUN_SCRIPTS] if tool == "python" and block is None else []
    output, status = output_of([*start, *arguments], folder, environment)
    return Ran(command, _shown(output, folder), status, block)


def output_of(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[str, int]:
    """What *command* prints in *folder*, and its exit status."""
    process = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return process.stdout, process.returncode


def _shown(output: str, folder: Path) -> str:
    """*output* as a page shows it: without this machine's paths, and what only it has."""
    temporary = rf"{re.escape(str(folder))}/\.tmp/pytest-of-[^/]+/pytest-\d+"
    text = re.sub(temporary, "/tmp/pytest-of-you/pytest-0", output)
    text = text.replace(str(folder), "/home/you/project")
    text = re.sub(r"Linux (\d+\.\d+)[\w.+-]*", r"Linux \1", text)
    lines = (line.rstrip() for line in text.splitlines() if not _HEADER.match(line))
    return "\n".join(lines).strip("\n") + "\n"


def same(text: str) -> str:
    """*text* without what differs from run to run: processes, times, which worker was first."""
    for pattern, replacement in _SAME:
        text = re.sub(pattern, replacement, text)
    return text


def tree(folder: Path, indent: str = "") -> str:
    """A line per package, from *folder* on: its name, and the first line of its docstring."""
    text = _summary_line(f"{indent}{folder.name}/", folder / "__init__.py")
    inner = sorted(folder.glob("*/__init__.py"))
    return text + "".join(tree(path.parent, f"{indent}    ") for path in inner)


def _summary_line(name: str, module: Path) -> str:
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    summary = docstring.partition("\n")[0]
    return f"{name:34}{summary}\n"


def body(ran: Ran) -> str:
    """The block that shows *ran*."""
    if ran.block is not None and ran.block.kind == "tree":
        return ran.output
    return f"$ {ran.command}\n{ran.output}"


def refresh(page: Path) -> bool:
    """Refresh the output blocks of *page* that changed; whether one did."""
    with tempfile.TemporaryDirectory() as folder:
        ran = run_page(page, Path(folder))
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    changed = False
    for example in reversed(ran):
        if example.block is not None and same(example.block.text) != same(body(example)):
            lines[example.block.start + 1 : example.block.end] = body(example).splitlines()
            changed = True
        if example.block is None and example.status:
            sys.stderr.write(f"{page}: {example.command} failed:\n{example.output}\n")
    (ROOT / page).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return changed


def main() -> None:
    """Refresh the pages that are named, or all."""
    for page in [Path(name) for name in sys.argv[1:]] or pages():
        print(page, "changed" if refresh(page) else "is as it was")


if __name__ == "__main__":
    main()
