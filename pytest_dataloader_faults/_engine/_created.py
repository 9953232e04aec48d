"""Files that a worker makes where temporary ones belong, and leaves [runs in the supervisor].

Some facts about whose a temporary file is. Others on the machine make and remove theirs at the
same time, so a look into the folder before and after tells nothing; nor is there an owner's pid in
a name such as /tmp/tmpk2x9w. But each is made by an open(2) with O_CREAT of a path that is not
there, and that is seen. What was renamed or removed since is not left.
"""

from __future__ import annotations

import os
import tempfile

_MOST = 1000


class Created:
    """What one worker, and whatever it started, has made."""

    def __init__(self) -> None:
        self._folders = (os.path.join(tempfile.gettempdir(), ""), "/dev/shm/")
        self._paths: set[str] = set()

    def note(self, path: str, flags: int, *, is_there: bool) -> None:
        """*path* is about to be opened with *flags*."""
        makes = flags & os.O_CREAT and not is_there and path.startswith(self._folders)
        if makes and len(self._paths) < _MOST:
            self._paths.add(path)

    def left(self) -> list[str]:
        """Those that are still there."""
        return sorted(filter(os.path.lexists, self._paths))
