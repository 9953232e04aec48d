"""Run a part of the evidence, as its own docstring says.

python evidence NAME ...    such as: python evidence readers
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    **{
        name: name
        for name in ("campaign", "chaos", "mutants", "places", "record", "size", "transparency")
    },
    **{
        name: f"pages.{name}"
        for name in "compatibility corpus datasets environments readers".split()
    },
    "compare": "record.compare",
    "unhurt": "chaos.unhurt",
}


def main() -> None:
    """Become the part that is named first."""
    if sys.argv[1:2] == [] or sys.argv[1] not in PARTS:
        sys.exit(f"{__doc__}\nNAME is one of {', '.join(sorted(PARTS))}.")
    name = sys.argv.pop(1)
    sys.path[:0] = [str(ROOT / "evidence"), str(ROOT / "tests")]
    runpy.run_module(PARTS[name], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
