"""The documentation site: it is built without a warning, has each public name, and is searched."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_dataloader_faults as package

ROOT = Path(__file__).resolve().parent.parent
_MODULES = "faults fake_files injection outcomes search strategies exceptions"
pytestmark = [
    pytest.mark.slow,  # `tox -e docs` builds the site each time.
    pytest.mark.timeout(300),  # Sphinx asks four sites for their names, or finds no network.
]


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    options = ["--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder)]
    subprocess.run(command, check=True)
    return folder


def test_each_public_name_is_in_the_built_reference(site):
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    entries = {
        name for kind, names in inventory.items() if kind.startswith("py:") for name in names
    }
    modules = [importlib.import_module(f"{package.__name__}.{each}") for each in _MODULES.split()]
    public_names = {name.rpartition(".")[2] for name in entries}
    assert [n for each in (package, *modules) for n in each.__all__ if n not in public_names] == []


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("substitut", "reference/python-api"),
        ("seccomp", "explanation/how-faults-are-injected"),
    ],
)
def test_the_search_finds_words_of_prose_and_of_docstrings(site, word, page):
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    documents = index["terms"][word]
    assert page in [
        index["docnames"][n] for n in (documents if isinstance(documents, list) else [documents])
    ]


@pytest.fixture(name="open_page")
def _open_page(site, browser):
    """A function that opens a page of the site in a browser, at a width."""

    def opened(name, width):
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.goto((site / f"{name}.html").as_uri())
        return page

    yield opened
    for context in browser.contexts:
        context.close()


_CUT_OFF = """() => {
    const width = document.documentElement.clientWidth
    const scrolls = (each) => each.tagName !== "ARTICLE"
        && (getComputedStyle(each).overflowX === "auto" || scrolls(each.parentElement))
    return [...document.querySelectorAll("article *")]
        .filter((each) => each.getBoundingClientRect().right > width + 1 && !scrolls(each))
        .map((each) => each.outerHTML.slice(0, 200))
}"""


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("name", ["index", "reference/python-api", "explanation/why"])
def test_nothing_is_cut_off(open_page, name, width):
    assert open_page(name, width).evaluate(_CUT_OFF) == []


def test_the_sidebar_groups_the_pages(open_page):
    page = open_page("index", 1440)
    captions = page.locator(".sidebar-tree .caption-text").all_text_contents()
    assert {"Write the test", "Use the results"} <= set(captions)
    lists = page.locator(".sidebar-tree > ul").all()
    assert max(each.locator(":scope > li").count() for each in lists) < 12
    assert "pip install pytest-dataloader-faults" in page.locator("article").inner_text()
    assert page.locator("article a[href='tutorial/first_battery.html']").count() > 1
