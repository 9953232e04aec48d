"""Datasets of 20,000 samples, whose objects each worker may copy."""

from __future__ import annotations

import json
from pathlib import Path

from field import data, tried
from field.constructors import Parsed


def _many_lines(folder: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in data.rows(20_000))
    (folder / "x.jsonl").write_text(text, encoding="utf-8")


@tried("20,000 JSON lines, all parsed in `__init__`", write=_many_lines, code="own")
def json_many(folder: Path):
    return Parsed([folder / "x.jsonl"])


def _many_rows(folder: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(data.rows(20_000)).save_to_disk(str(folder / "saved"))


@tried("Hugging Face `load_from_disk`, 20,000 rows", "datasets", write=_many_rows)
def hf_many(folder: Path):
    from datasets import load_from_disk

    return load_from_disk(str(folder / "saved"))
