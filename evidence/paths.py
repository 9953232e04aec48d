"""Where things are, also for the processes that the evidence starts."""

from __future__ import annotations

import os
from pathlib import Path

from support import inner

EVIDENCE = Path(__file__).resolve().parent
ROOT = EVIDENCE.parent
PYTHONPATH = os.pathsep.join((str(EVIDENCE), inner.PYTHONPATH))
