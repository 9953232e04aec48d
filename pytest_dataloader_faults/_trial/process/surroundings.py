"""What a trial has for itself while it lasts [made in pytest, inherited by fork]."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from pytest_dataloader_faults._trial.factory import remove_folder
from pytest_dataloader_faults._trial.job import Job
from pytest_dataloader_faults._trial.journal import Journal
from pytest_dataloader_faults._trial.process import environment, fork_server


class Surroundings(NamedTuple):
    """Journals for the facts, what is printed, and stacks; folders; and a fork server.

    The first folder is for sockets. *server* starts workers that are not below the warden; None if
    the loader has no such workers.
    """

    facts: Journal
    printed: Journal
    stacks: Journal
    folders: tuple[str, ...]
    server: fork_server.TrialServer | None

    def remove_folders(self) -> None:
        """Remove the folders with what is in them."""
        for folder in self.folders:
            remove_folder(folder)


@contextlib.contextmanager
def surroundings_for(job: Job, private: tuple[str, ...]) -> Iterator[Surroundings]:
    """Those of *job*, whose factory gets the folder *private*, if it gets one."""
    fork_server.start_for(job)
    # Its path is short, since those of sockets end at 107 bytes.
    folders = (tempfile.mkdtemp(prefix="dlf-"), *private)
    with contextlib.ExitStack() as scope:
        facts, printed, stacks = (Journal(name) for name in ("facts", "stderr", "stacks"))
        made = Surroundings(facts, printed, stacks, folders, None)
        for journal in (facts, printed, stacks):
            scope.callback(journal.close)
        scope.callback(made.remove_folders)  # Unless it was killed, the warden has done so.
        environment.require_temporary_room()
        for folder in private:
            os.mkdir(folder, 0o700)
        server = fork_server.server_for(job, folders[0], printed.fd)
        if server:
            scope.callback(server.close)
        yield made._replace(server=server)
