"""The pictures of the documentation are shown, small, and can be made again."""

import shutil

import pytest

from pytest_dataloader_faults._engine import explain_missing_engine
from support.scripts import ROOT, load_script

PICTURES = sorted((ROOT / "docs/pictures").iterdir())
MOST_BYTES = 200_000


def test_each_picture_is_on_a_page():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [each.name for each in PICTURES if f"pictures/{each.name})" not in texts] == []
    assert [each.name for each in PICTURES if each.stat().st_size > MOST_BYTES] == []


@pytest.mark.slow
@pytest.mark.timeout(300)  # As of tests/test_docs.py: three batteries.
@pytest.mark.skipif(not shutil.which("chromium"), reason="Chromium is not installed")
def test_pictures_are_made_anew(tmp_path):
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    pytest.importorskip("rich", reason="rich is not installed")
    if reason := explain_missing_engine():
        pytest.skip(f"no engine can run here: {reason}")
    script = load_script("docs/pictures.py")
    with script.chromium() as browser:
        pictures = dict(script.pictures(browser, tmp_path))
    assert sorted(f"{name}.png" for name in pictures) == [each.name for each in PICTURES]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
