"""Run a command in a given environment."""

from __future__ import annotations

import os
import sys

from places import PLACES

command = [*(PLACES[sys.argv[1]].enter_it() or ()), *sys.argv[2:]]
os.execvp(command[0], command)  # noqa: S606  # that is what it is for
