"""The HTML page in Chromium: from the disk, wide and narrow, light and dark, by keyboard."""

import pytest

from pytest_dataloader_faults.report import files
from support.reports import EVERYTHING

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

_OPEN = """document.querySelectorAll("details").forEach(each => {
    each.open = true;
    each.style.contentVisibility = "visible";  // Or axe takes what is out of view for hidden.
})"""
COMMAND = "pytest 'a.py::test[open-error]'"


@pytest.fixture(name="opened")
def _opened(browser, tmp_path):
    """Open the page of a report; in the end it must have said nothing and asked for nothing."""
    requests, console = [], []

    def opened(report=EVERYTHING, *, anchor="", **options):
        path = tmp_path / "report.html"
        files.write(report, str(path))
        page = browser.new_context(**options).new_page()
        page.on("request", lambda request: requests.append(request.url.partition("#")[0]))
        page.on("console", lambda message: console.append(message.text))
        page.on("pageerror", lambda error: console.append(str(error)))
        page.goto(f"{path.as_uri()}{anchor}")
        assert requests == [path.as_uri()]
        return page

    yield opened
    for context in browser.contexts:
        context.close()
    assert console == []
    assert len(requests) == 1


def _told(page):
    return page.inner_text("[role=status]")


def _shown(page, selector):
    return page.locator(f"{selector}:visible").count()


@pytest.mark.parametrize(("width", "theme"), [(360, "light"), (1440, "dark")])
def test_a_page_is_accessible(opened, width, theme):
    page = opened(viewport={"width": width, "height": 900}, color_scheme=theme)
    page.evaluate(_OPEN)
    violations = axe.Axe().run(page).response["violations"]
    serious = [each for each in violations if each["impact"] != "minor"]
    assert {each["id"]: [node["html"] for node in each["nodes"]] for each in serious} == {}
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    is_dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
    assert is_dark == (theme == "dark")


def test_what_passed_is_folded(opened):
    page = opened()
    folded = page.locator(".others .trial")
    assert folded.count() == 4
    assert _shown(page, ".others .trial") == 0
    page.fill("#text", "a.py workers-agree")
    playwright.expect(page.locator(".others .trial:visible")).to_have_count(1)
    page.fill("#text", "")
    assert _shown(page, ".others .trial") == 0
    page.locator(".matrix a.passed").first.click()
    playwright.expect(page.locator(".others .trial[open]")).to_be_in_viewport()


def test_the_filter_is_used_by_keyboard(opened):
    page = opened()
    assert _told(page) == "10 of 10 checks shown"
    page.keyboard.press("/")
    page.keyboard.type("OTHER pers")
    assert _told(page) == "1 of 10 checks shown"
    assert (_shown(page, ".trial"), _shown(page, ".matrix tbody tr")) == (1, 1)
    assert _shown(page, ".cause") == 1
    page.fill("#text", "leaked")
    assert _told(page) == "2 of 10 checks shown"
    page.fill("#text", "")
    assert _told(page) == "10 of 10 checks shown"


def test_a_command_is_copied(opened):
    page = opened()
    button = page.locator(".copy").first
    button.click()
    playwright.expect(button).to_have_text("Copied")
    page.focus("#text")
    page.keyboard.press("Control+V")
    assert page.input_value("#text") == COMMAND


def test_a_link_opens_its_trial(opened):
    names = [f"{item.test}-{item.check}" for item in EVERYTHING.items]
    page = opened(anchor=f"#item-{names.index('b.py::other-hung-read')}")
    trial = page.locator(".trial[open]")
    assert trial.locator(".timeline").is_visible()
    assert "ReadError: read /data/0.bin" in trial.locator("tr.fault").first.inner_text()
    playwright.expect(trial.locator("summary")).to_be_in_viewport()
    page.keyboard.press("Tab")
    playwright.expect(trial.locator("summary")).to_be_focused()
    page.fill("#text", "a.py")
    other = f"item-{names.index('b.py::other-persistent-workers')}"
    page.evaluate(f"location.hash = '{other}'")
    playwright.expect(page.locator(f"[id='{other}'][open]")).to_be_visible()


def test_all_is_there_without_scripts(opened):
    page = opened(java_script_enabled=False)
    for fold in page.locator(".others > summary").all():
        fold.click()
    assert _shown(page, ".trial") == len(EVERYTHING.items)
    assert _shown(page, ".filter") == _shown(page, ".copy") == 0
    page.locator(".trial summary").first.click()
    assert "evidence" in page.inner_text(".trial[open]")
