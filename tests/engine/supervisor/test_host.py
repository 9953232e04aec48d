"""The process that forks the supervisors of all scopes of a process."""

import functools
import multiprocessing
import os
import signal

import psutil
import pytest
from torch.utils.data import DataLoader

from pytest_dataloader_faults._engine.loader import client
from pytest_dataloader_faults.faults import ReadError
from pytest_dataloader_faults.injection import inject
from support.children import in_a_process
from support.datasets import Records
from support.epochs import alone, epoch
from support.waiting import until

pytestmark = pytest.mark.usefixtures("engine")


def _inject_error(records):
    """The host, and the supervisor of a scope in which a fault happened."""
    with inject(ReadError("*/00.rec")) as injection:
        assert "Errno 5" in epoch(alone(Records(records))).text
        supervisor = psutil.Process(injection._client.pid)
        return supervisor.parent(), supervisor


def _has_ended(process):
    return not process.is_running()


def test_all_scopes_have_one_host(records, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with open(tmp_path / "open", "w", encoding="utf-8") as file:
        os.set_inheritable(file.fileno(), True)
        client._hosts.clear()
        host, first = _inject_error(records)
        same_host, second = _inject_error(records)
    assert host == same_host
    assert host.ppid() == os.getpid()
    assert first.pid != second.pid
    assert (host.cwd(), host.open_files(), host.name()) == ("/", [], "dlf-host")
    assert until(lambda: all(map(_has_ended, [first, second])))
    assert host.children() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_host_that_was_killed_or_stopped_is_replaced(records, monkeypatch, number):
    host, _ = _inject_error(records)
    host.send_signal(number)
    monkeypatch.setattr(client, "_PATIENCE", 1.0)
    other_host, _ = _inject_error(records)
    assert host != other_host
    assert _has_ended(host)


def test_a_host_that_is_killed_leaves_its_supervisors(records):
    with inject(ReadError("*/00.rec")) as injection:
        psutil.Process(injection._client.pid).parent().kill()
        assert "Errno 5" in epoch(alone(Records(records))).text


def test_a_forked_process_has_a_host_of_its_own(records, tmp_path):
    host, _ = _inject_error(records)
    assert in_a_process(functools.partial(_note_own_host, records, tmp_path / "pid")) == ""
    other_host = int((tmp_path / "pid").read_text())
    assert other_host != host.pid
    assert until(lambda: not psutil.pid_exists(other_host))
    assert host.is_running()


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGSTOP])
def test_a_host_ends_with_its_process_even_if_it_is_stopped(records, tmp_path, number):
    arguments = records, tmp_path / "pid", number
    process = multiprocessing.get_context("fork").Process(target=_signal_host, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0
    host = int((tmp_path / "pid").read_text())
    assert until(lambda: not psutil.pid_exists(host))


def _signal_host(records, path, number):
    host, _ = _inject_error(records)
    host.send_signal(number)
    assert until(lambda: (host.status() == psutil.STATUS_STOPPED) == (number == signal.SIGSTOP))
    client._hosts.clear()
    path.write_text(str(host.pid))


def _note_own_host(records, path):
    host, _ = _inject_error(records)
    assert host.ppid() == os.getpid()
    path.write_text(str(host.pid))


def test_a_supervisor_whose_workers_outlive_the_scope_is_waited_for(records):
    with inject(ReadError("*.none"), require_fired=False) as injection:
        iterator = iter(DataLoader(Records(records), num_workers=1, batch_size=1))
        next(iterator)
        supervisor = psutil.Process(injection._client.pid)
    assert supervisor.is_running()
    del iterator
    assert until(lambda: _has_ended(supervisor))
