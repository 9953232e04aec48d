"""Where things are, also for the processes that the evidence starts. Imports no other package.

A process with threads, which NumPy and torch start, cannot enter a user namespace.
"""

from __future__ import annotations

import os
from pathlib import Path

EVIDENCE = Path(__file__).resolve().parent
ROOT = EVIDENCE.parent
PYTHONPATH = os.pathsep.join(map(str, (EVIDENCE, ROOT / "tests", ROOT)))
