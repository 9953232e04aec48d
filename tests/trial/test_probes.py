"""What is open and what runs, as a process sees it of itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from pytest_dataloader_faults._engine.system.proc import descriptor_links
from pytest_dataloader_faults._engine.system.processes import fork
from pytest_dataloader_faults._trial import resources


def _new(links_before: dict[str, str], links_after: dict[str, str]) -> list[str]:
    return [target for name, target in links_after.items() if links_before.get(name) != target]


def test_an_open_file_is_seen_until_it_is_closed(tmp_path):
    path = tmp_path / "leaked"
    links = descriptor_links()
    with open(path, "w"):
        assert _new(links, descriptor_links()) == [str(path)]
    assert descriptor_links() == links


def test_looking_opens_nothing():
    assert descriptor_links() == descriptor_links()


@pytest.fixture(name="sleeper")
def _sleeper():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def test_a_process_is_seen_with_its_command(sleeper):
    commands = resources.processes(seconds=0.1)
    assert "time.sleep(600)" in commands[str(sleeper.pid)]


def test_a_grandchild_is_seen(sleeper, tmp_path):
    script = (
        "import subprocess, sys;"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(599)'])"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        below = psutil.Process(process.pid)
        while not (children := below.children()):
            time.sleep(0.01)
        commands = resources.processes(seconds=0.1)
        for child in (*children, below):
            child.kill()
    assert str(children[0].pid) in commands


def test_the_dead_are_not_running():
    child = fork()
    if not child:
        os._exit(0)
    while psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    try:
        assert str(child) not in resources.processes(seconds=0.1)
    finally:
        os.waitpid(child, 0)


def test_those_that_end_have_time_to():
    with subprocess.Popen(["sleep", "0.3"]) as process:  # noqa: S607
        commands = resources.processes(seconds=5)
        assert str(process.pid) not in commands


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -c from multiprocessing.resource_tracker import main;main(15)", True),
        ("python -c from multiprocessing.forkserver import main; main(3)", True),
        ("/site-packages/torch/bin/torch_shm_manager", True),
        ("python -c from multiprocessing.spawn import spawn_main", False),
        ("sleep 600", False),
    ],
)
def test_helpers_of_multiprocessing_are_no_leak(command, expected):
    assert resources.is_infrastructure(command) is expected
