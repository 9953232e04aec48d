"""The HTML page as text: what is in it, that texts do no harm, and how large it gets."""

import html.parser
import re
from collections import Counter
from dataclasses import replace

from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.outcomes import Verdict
from pytest_dataloader_faults.report import html as page
from pytest_dataloader_faults.report.model import Report
from support.reports import EVERYTHING, HOSTILE_MARKUP, events, failed, item


class _Read(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.texts = Counter(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements[tag] += 1
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def test_a_page_has_every_item():
    read = _Read(page.render(EVERYTHING))
    text = " ".join(" ".join(read.texts).split())
    trials = [value for name, value in read.attributes if name == "data-text"]
    assert sorted(trials) == sorted(
        f"{each.check} {each.test} {each.word}" for each in EVERYTHING.items
    )
    assert "5 of 9 checks failed , in 2 of 3 datasets." in text
    assert text.count("gives zeros") == 2 * 2 + 2
    assert "evidence" in text
    assert "Note: a.py::test: 64 of 100 samples were checked." in text


MANY = Report(
    items=(
        item(check="open-error", notes=("64 of 100 samples were checked",)),
        item(check="persistent-workers"),
        item(test="b.py::test", check="open-error"),
        failed(test="b.py::test", check="persistent-workers", cause="leaks", fix="close the file"),
        item(test="b.py::test", check="pickles", status="xfailed"),
        failed(test="c.py::test", check="open-error", fix="raise the error"),
        failed(test="c.py::test", check="persistent-workers", fix="raise the error"),
        item(test="c.py::test", check="pin-memory", status="not_applicable"),
    )
)


def _is_in_order(text, *parts):
    places = [text.index(part) for part in parts]
    return places == sorted(places)


def test_what_failed_comes_first():
    text = page.render(MANY)
    causes, matrix = text.index('id="causes"'), text.index('id="matrix"')
    trials, notes = text.index('id="trials"'), text.index('id="notes"')

    boxes = text[causes : text.index('<form class="filter"')].split("</article>")
    assert ["raise the error" in box and "c.py::test" in box for box in boxes[:2]] == [True, False]
    assert '<h3>leaks</h3>\n<p class="fix"><strong>fix:</strong> close the file</p>' in boxes[1]
    assert _is_in_order(
        text[matrix:trials], ">c.py<", ">b.py<", ">a.py<", "persistent-workers", "open-error"
    )
    assert _is_in_order(text[trials:notes], ">c.py::test<", ">b.py::test<", ">a.py::test<")
    assert _is_in_order(text, "</form>", 'id="trials"', "Note: a.py::test: 64")


def test_what_did_not_fail_is_folded():
    text = page.render(MANY)
    trials = text[text.index('id="trials"') : text.index('id="notes"')]
    worst, middle, good = trials.split('<section class="of-test">')[1:]

    assert worst.partition('<details class="others">')[0].count('class="trial"') == 2
    assert "<summary>1 not applicable</summary>" in worst
    assert _is_in_order(middle, "<summary>1 passed</summary>", "<summary>1 xfailed</summary>")
    assert "<summary>2 passed</summary>" in good
    assert 'class="trial"' not in good.partition("<summary>")[0]


def test_hostile_texts_are_only_texts():
    fields = ("nodeid", "test", "file", "check", "verdict", "sentence", "cause", "reproduce")
    course = [replace(each, text=f"/{'folder' * 9}/file") for each in events()]
    hostile = failed(timeline=tuple(course), notes=("n",), faults=("f",))
    unknown = replace(hostile, nodeid="t[c]", check="c", verdict="v")
    harmless = page.render(replace(EVERYTHING, items=(unknown,), versions={"n": "v"}))
    changes = dict.fromkeys(fields, HOSTILE_MARKUP)
    changes |= {
        "test": f"a.py::{HOSTILE_MARKUP}",
        "notes": (HOSTILE_MARKUP,),
        "faults": (HOSTILE_MARKUP,),
    }
    changes |= {"explanation": f"{HOSTILE_MARKUP}\n{HOSTILE_MARKUP}"}
    changes["timeline"] = tuple(replace(each, text=HOSTILE_MARKUP) for each in hostile.timeline)
    report = replace(
        EVERYTHING, versions={HOSTILE_MARKUP: HOSTILE_MARKUP}, items=(replace(hostile, **changes),)
    )
    text = page.render(report)
    hostile_page, plain_page = _Read(text), _Read(harmless)
    assert hostile_page.elements == plain_page.elements
    assert [name for name, _ in hostile_page.attributes] == [
        name for name, _ in plain_page.attributes
    ]
    assert all(line.isprintable() for line in text.split("\n"))
    assert "\\u202eabc" in "".join(hostile_page.texts)


def test_a_page_needs_no_other_file():
    read = _Read(page.render(EVERYTHING))
    loaded = {"src", "srcset", "data", "action", "poster", "background"}
    links = [value for name, value in read.attributes if name in {"href", "xlink:href"}]
    assert not loaded & {name for name, _ in read.attributes}
    assert [link for link in links if not link.startswith("#")] == ["data:,"]
    assert any(str(value).startswith("default-src 'none';") for _, value in read.attributes)


def test_links_within_a_page_lead_somewhere():
    """Every anchor is there once, also of items whose ids differ in marks only."""
    items = [*EVERYTHING.items, *(item(nodeid=f"d.py::t[{mark}]") for mark in "<>&")]
    read = _Read(page.render(replace(EVERYTHING, items=tuple(items))))
    ids = [value for name, value in read.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    links = {value[1:] for name, value in read.attributes if name == "href" and value[0] == "#"}
    assert links <= set(ids)


def test_a_page_says_what_its_verdicts_and_checks_mean():
    items = (failed(check="persistent-workers", verdict="hung"), failed(check="of-another-version"))
    text = page.render(Report(items=items))
    assert f'title="{Verdict.HUNG.meaning}">hung<' in text
    assert f'title="{CHECKS["persistent-workers"].promise}">persistent-workers' in text


def test_events_are_in_order():
    """At their times, those before a hang would all be in one place."""
    lanes = page.place_events(events())
    assert list(lanes) == ["loader", "worker 0", "worker 1"]
    assert list(lanes["loader"]) == [(0.0, "epoch"), (75.0, "error")]
    assert list(lanes["worker 0"]) == [(50.0, "fault"), (100.0, "exit")]


def test_many_items_are_no_burden():
    items = tuple(
        failed(test=f"a.py::test_{number % 8}", check=f"check-{number // 8}", timeline=events(40))
        for number in range(200)
    )
    text = page.render(Report(items=items))
    assert len(text) < 15_000 * len(items)
    assert len(re.findall(r"<[a-z]", text)) < 750 * len(items)


def test_a_long_name_keeps_its_ends():
    tests = [f"{'folder/' * 40}a.py::test_{'x' * 300}{number}" for number in range(2)]
    text = page.render(Report(items=tuple(item(test=each) for each in tests)))
    columns = re.findall(r'title="(.*?)"><div><span class="file">(.*?)</span> (.*?)</div>', text)

    assert [title for title, _, _ in columns] == tests
    assert {len(part) for _, *parts in columns for part in parts} == {61}
    assert [name[-2:] for _, _, name in columns] == ["x0", "x1"]
    assert all(file.endswith("folder/a.py") for _, file, _ in columns)
