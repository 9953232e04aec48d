"""What CI systems show beside the code: annotations of GitHub, code quality of GitLab. Pure.

Sources: "Workflow commands for GitHub Actions" (docs.github.com), and "Code Quality report format"
(docs.gitlab.com).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from pytest_dataloader_faults.outcomes.text import counted
from pytest_dataloader_faults.report.model import Report, by_cause


def of_github(report: Report) -> Iterator[str]:
    """A workflow command for each test and likely cause: GitHub shows ten of a step."""
    for items in report.tests.values():
        for cause, found in by_cause(items).items():
            first = found[0]
            many = f"{counted(len(found), 'check')}: {cause}"
            title = many if len(found) > 1 else f"{first.check}: {first.word}"
            place = f"file={_property(first.file)},line={first.line},title={_property(title)}"
            others = [", ".join(each.check for each in found)] if len(found) > 1 else []
            message = "\n".join(filter(None, [first.sentence, *others, first.reproduce]))
            yield f"::error {place}::{_data(message)}"


def of_gitlab(report: Report) -> str:
    """A list of issues, as JSON."""
    issues = [
        {
            "description": f"{item.nodeid}: {item.word}: {item.sentence}",
            "check_name": item.check,
            "fingerprint": hashlib.sha256(f"{item.nodeid} {item.check}".encode()).hexdigest(),
            "severity": "major",
            "location": {"path": item.file, "lines": {"begin": item.line}},
        }
        for item in report.failed
    ]
    return json.dumps(issues, indent=2) + "\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
