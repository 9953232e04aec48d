"""Write the pages of the checks and of the likely causes: reference/checks.md, fix-a-failure.md.

    python docs/checks.py

What a check promises, the causes, and all advice come from the code, which checks find what from
tests/support/corpus, and everything else from checks.in and fix-a-failure.in. There, the section of
a check starts with its faults, and that of a cause has what the advice leaves out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [str(ROOT / "tests"), *(each for each in sys.path if each != str(ROOT / "docs"))]

from pytest_dataloader_faults.battery import checks  # noqa: E402  # after the path
from pytest_dataloader_faults.outcomes.libraries import HINTS  # noqa: E402
from support.causes import all_causes  # noqa: E402  # it is below tests/
from support.corpus.cases import CAUSES  # noqa: E402

CHECKS = checks.CHECKS
GROUPS = {
    "Whole epochs": (*checks.EPOCHS, checks.copy_on_write, checks.workers.memory_exhaustion),
    "Files": checks.FILES,
    "Listings of folders": checks.LISTINGS,
    "Workers that die": checks.workers.DEATHS,
    "Writes": (checks.workers.write_error,),
    "File locks": (checks.workers.file_locks,),
    "Threads and processes": (checks.workers.thread_exhaustion,),
    "Hanging reads and connections": checks.network.NETWORK,
    "Checkpoints": (checks.resume.resumes,),
    "Several ranks": checks.RANKS,
    "Pinned memory": (checks.pin_memory,),
}
PAGE = ROOT / "docs/reference/checks.md"
GUIDE = ROOT / "docs/how-to/fix-a-failure.md"
MORE_EXAMPLES = ROOT / "tests/battery/more_examples.md"
_SECTION = re.compile(r"^### ([^\n]+)\n\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^### (.+)\n(?:(?!^##).*\n)*?<!-- change: ([\w-]+) ", re.MULTILINE)
_HINTS = {hint.advice: hint.library for hint in HINTS}


def page() -> str:
    """The whole page of the checks."""
    template = PAGE.with_suffix(".in").read_text(encoding="utf-8")
    text = _SECTION.sub(lambda match: _check_section(match[1], match[2]), template)
    return Template(text).substitute(overview="\n".join(_overview()).rstrip())


def _overview() -> Iterator[str]:
    """A row for each check; the first one of a group names the group."""
    for title, group in GROUPS.items():
        for number, check in enumerate(group):
            star = "\\*" if check.name in checks.GROUPS["quick"] else ""
            cells = (
                "" if number else title,
                f"[`{check.name}`](#{check.name}){star}",
                check.promise,
            )
            yield f"| {' | '.join(cells)} |"


def _check_section(name: str, text: str) -> str:
    advice = CHECKS[name].advice
    printed = f"\n\nPrinted advice: {_sentences(advice)}" if advice else ""
    return f"### {name}\n\n{text.strip()}{printed}\n\n"


def guide() -> str:
    """The whole page of the causes."""
    template = GUIDE.with_suffix(".in").read_text(encoding="utf-8")
    phrases = {cause.phrase for cause in all_causes()}
    found_by = _checks_by_cause(template)

    def section(match: re.Match[str]) -> str:
        phrase, text = match[1], match[2].strip()
        if phrase not in phrases:
            return match[0]
        prose, mark, example = text.partition("<!--")
        explanation = _explanation(phrase, found_by.get(phrase, []), prose)
        parts = (f"### {phrase}", explanation, mark + example)
        return "\n\n".join(filter(None, parts)) + "\n\n"

    text = _SECTION.sub(section, template).rstrip() + "\n"
    return text.replace("$libraries", "\n".join(_libraries()))


def _explanation(phrase: str, found_by: list[str], prose: str) -> str:
    """The fix of a cause, the checks that find it, its advice that is not about one library."""
    causes = [cause for cause in all_causes() if cause.phrase == phrase]
    causes = [cause for cause in causes if cause.advice not in _HINTS]
    fix, names = _literal(causes[0].fix), ", ".join(f"`{name}`" for name in found_by)
    texts = [_sentences(cause.advice) for cause in causes] + [" ".join(prose.split())]
    texts = list(filter(None, dict.fromkeys(texts)))
    bullet = "- " if len(texts) > 2 else ""  # one advice, and what the page adds
    first_line = f"**Fix:** {fix}." + (f" Found by {names}." if names else "")
    return "\n".join([first_line, *(bullet + text for text in texts)])


def _sentences(advice: str) -> str:
    return f"{_literal(advice[0].upper() + advice[1:].rstrip('.'))}." if advice else ""


def _checks_by_cause(template: str) -> dict[str, list[str]]:
    """The checks that find each cause in the corpus or in an example, in order."""
    pairs = [(cause, key.split()[-1]) for key, cause in CAUSES.items()]
    for text in (template, MORE_EXAMPLES.read_text(encoding="utf-8")):
        pairs += _EXAMPLE.findall(text)
    order = list(CHECKS)
    return {
        cause: sorted({check for other, check in pairs if other == cause}, key=order.index)
        for cause, _ in pairs
    }


def _libraries() -> Iterator[str]:
    yield from (f"- **{library}**: {_sentences(advice)}" for advice, library in _HINTS.items())


def _literal(text: str) -> str:
    text = re.sub(r"--[\w-]+(=\w+)?", r"`\g<0>`", text)
    return re.sub(r"(`[^`]*`)|([_*])", lambda match: match[1] or f"\\{match[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    GUIDE.write_text(guide(), encoding="utf-8")
