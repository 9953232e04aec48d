"""Take the screenshots in docs/pictures: what pytest prints, and the HTML report.

    python docs/pictures.py

They show real runs: of the README's example, and of the two datasets of the page about results,
with all checks. The script needs Chromium, Playwright and rich.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [str(ROOT / "tests"), *(each for each in sys.path if each != str(ROOT / "docs"))]

from support.scripts import load_script  # noqa: E402  # it is below tests/

generate = load_script("docs/generate.py")
PICTURES = ROOT / "docs/pictures"
README, RESULTS = Path("README.md"), Path("docs/how-to/read-the-results.md")
COMMAND = "pytest -q --tb=no -rN"
TRIAL = "item-test_my_data.py::test_zeros-read-error"
_STILL = """
document.querySelector(".filter").hidden = true;  // It would lie above.
document.querySelectorAll(".trial").forEach(each => { each.style.contentVisibility = "visible"; });
"""
"""Nothing moves while the picture is taken."""
_TERMINAL = """
<body style="margin: 0; padding: 1em; width: max-content; background: {background};
    color: {foreground}; font: 14px/1.4 'DejaVu Sans Mono', monospace"><pre style="margin: 0;
    font: inherit">{code}</pre>
"""


def run(page: Path, options: str, *, folder: Path) -> str:
    """What pytest prints, with colours, of the tests on *page*, each with all checks."""
    folder.mkdir()
    for block in generate.blocks((ROOT / page).read_text(encoding="utf-8")):
        if block.kind == "file":
            text = re.sub(r"only=\[.*?\]", "", block.text)
            (folder / block.argument).write_text(text, encoding="utf-8")
    command = f"{COMMAND} --color=yes {options}"
    return generate._run(command, folder, sys.executable, columns=100).output


def terminal(output: str) -> str:
    """*output* as HTML, as a dark terminal shows it."""
    console = Console(record=True, file=io.StringIO())
    console.print(Text.from_ansi(f"$ {COMMAND}\n{output.strip()}"), soft_wrap=True, end="")
    return console.export_html(theme=SVG_EXPORT_THEME, code_format=_TERMINAL, inline_styles=True)


def opened(browser: Browser, *, theme: str, width: int, height: int) -> Page:
    """An empty page."""
    size = {"width": width, "height": height}
    return browser.new_context(viewport=size, color_scheme=theme).new_page()


def pictures(browser: Browser, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Each picture with its name."""
    page = opened(browser, theme="dark", width=900, height=100)
    page.set_content(terminal(run(README, "", folder=folder / "readme")))
    yield "terminal", page.locator("body").screenshot()
    options = "--dataloader-faults-report=report.html test_my_data.py"
    run(RESULTS, options, folder=folder / "results")
    report = folder / "results/report.html"
    report.write_text(generate._shown(report.read_text("utf-8"), report.parent), "utf-8")
    page = opened(browser, theme="light", width=1100, height=1150)
    page.goto(report.as_uri())
    yield "page", page.screenshot()
    page = opened(browser, theme="dark", width=1000, height=900)
    page.goto(f"{report.as_uri()}#{TRIAL}")
    trial = page.locator(".trial[open]")
    page.evaluate(_STILL)
    yield "trial", trial.screenshot()


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser."""
    with sync_playwright() as driver:
        yield driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )


def main() -> None:
    """Make all of them."""
    PICTURES.mkdir(exist_ok=True)
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        for name, picture in pictures(browser, Path(folder)):
            (PICTURES / f"{name}.png").write_bytes(picture)
            print(name, len(picture))


if __name__ == "__main__":
    main()
