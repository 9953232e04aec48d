"""Golden files: the complete texts of one family of messages each.

``pytest --update-golden`` writes them again. A file has a title and the text of each message, so
that a changed sentence is one changed line there, and other tests do not depend on its words.
"""

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def compare(family: str, texts: Mapping[str, str], *, is_update: bool) -> None:
    """Compare *texts*, by title, with the golden file of *family*, or write the file."""
    path = FOLDER / f"{family}.txt"
    content = "\n".join(f"== {title}\n{text.rstrip()}\n" for title, text in texts.items())
    if is_update:
        path.write_text(content, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == content, "run pytest --update-golden, and review it"
