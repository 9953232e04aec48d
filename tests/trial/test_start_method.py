"""How workers start, and what a trial reads and imports once before it forks them."""

import multiprocessing
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults._engine.system.libc import _full_ranges
from pytest_dataloader_faults._engine.system.proc import is_dead, parse_private_memory
from pytest_dataloader_faults._trial.warden import preload
from support.datasets import Records
from support.inner import PRELOADED, PYTHONPATH, start_python
from support.judging import judge_trial
from support.rows import slow
from support.served import VARIABLE, ForkedWorkers, KeepsFile, LeavesAProcess, Surroundings
from support.troublemakers import Replaced
from support.waiting import output_of, until

OWN = multiprocessing.get_all_start_methods()[0]
"""What the interpreter takes where nothing else is set."""
AS_A_USER = """
import multiprocessing
import sys
from dataclasses import asdict
from pathlib import Path
from pytest_dataloader_faults import check_dataset, run_trial
from support.served import ForkedWorkers

records = Path(sys.argv[1])

def make():
    return ForkedWorkers(records, forked=sys.argv[2] == "fork")

if __name__ == "__main__":
    for found in (*check_dataset(make, only="workers-agree"), run_trial(make)):
        print(asdict(found))
    multiprocessing.set_start_method("spawn")
"""
ADVICE = "let this one fork them as well: loader={'multiprocessing_context': 'fork'}"


@pytest.fixture(name="default")
def _default():
    method = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("forkserver", force=True)
    yield
    multiprocessing.set_start_method(method, force=True)


@pytest.mark.usefixtures("default")
def test_a_loader_that_names_none_has_the_default(records):
    """As it has in torch, whatever runs the loader."""
    outcome = run_trial(lambda: ForkedWorkers(records, forked=False))
    assert (outcome.loader.start_method, outcome.exception) == ("forkserver", None)


def test_a_new_interpreter_has_its_own_default(records):
    """As in a script or a test of a user, where nothing has set another.

    None of what it calls settles the default: set_start_method() would be refused after that.
    """
    environment = {"PYTHONPATH": PYTHONPATH}
    with start_python("-c", AS_A_USER, records, OWN, env=environment) as process:
        printed, errors = output_of(process)
    assert (process.returncode, errors) == (0, "")
    assert "another method" not in printed
    assert f"'start_method': '{OWN}'" in printed


@pytest.mark.usefixtures("default")
def test_what_cannot_be_pickled_gets_advice(records):
    """By default from Python 3.14 on: what to change, or how to have workers forked."""
    (result,) = check_dataset(lambda: KeepsFile(records), only="workers-agree", on_fail=None)
    text = result.explanation
    assert "cannot pickle" in text
    assert ADVICE in text
    assert "pytest_dataloader_faults/_" not in text  # No traceback through the plugin.


SERVED = {"multiprocessing_context": "forkserver", "num_workers": 2, "batch_size": 4}


def _preloaded() -> list[psutil.Process]:
    """The process of this one that has imported torch for its workers."""
    children = (each for each in psutil.Process().children() if each.status() != "zombie")
    return [each for each in children if PRELOADED in " ".join(each.cmdline())]


def _samples(outcome) -> list[tuple[str, ...]]:
    return [each.digests for each in outcome.epochs[0].delivered]


def test_one_process_serves_all_trials(records):
    """It stays, and no trial imports torch again."""
    run_trial(lambda: Surroundings(records), loader=SERVED)
    servers = _preloaded()
    run_trial(lambda: Surroundings(records), loader=SERVED)
    assert len(servers) == 1
    assert _preloaded() == servers


def test_workers_have_the_surroundings_of_their_trial(records, tmp_path, monkeypatch):
    for name in ("one", "two"):
        monkeypatch.setenv(VARIABLE, name)
        monkeypatch.setenv("PYTHONPATH", f"{PYTHONPATH}:{name}")
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        forked, served = (
            run_trial(lambda: Surroundings(records), loader={**SERVED, **change})
            for change in ({"multiprocessing_context": "fork"}, {})
        )
        assert served.epochs[0].complete
        assert _samples(served) == _samples(forked)


def test_a_process_that_a_worker_leaves_is_found_and_ended(records):
    (result,) = check_dataset(
        lambda: LeavesAProcess(records), only="workers-agree", loader=SERVED, on_fail=None
    )
    assert (str(result.verdict), result.passed) == ("leaked", False)
    (pid,) = result.outcome.resources[-1].processes
    assert until(lambda: not psutil.pid_exists(int(pid)))


@pytest.mark.parametrize(
    ("fails", "verdict"),
    [
        slow(True, "fails_without_fault"),  # torch waits for the other worker.
        (False, "hung"),
    ],
)
def test_a_worker_that_exec_replaces_is_judged_and_ended(records, reference, fails, verdict):
    """Its error is seen, or its batches never come."""
    loader = {"num_workers": 2, "batch_size": 4}
    deadline = 30.0 if fails else 2.0
    outcome = run_trial(lambda: Replaced(records, 4, fails=fails), loader=loader, deadline=deadline)
    pid = int((records.parent / "replaced").read_text())

    judgement = judge_trial(outcome, reference)
    assert judgement.verdict == verdict
    assert ("sample 0 is damaged" in judgement.sentence) is fails
    assert until(lambda: is_dead(pid))


class KnowsItsModules(Records):
    """Refuses to make a sample if a module is loaded that pytest's process does not have."""

    known = frozenset()

    def __getitem__(self, index):
        if new := sorted(sys.modules.keys() - self.known):
            message = f"imported in the trial: {new}"
            raise RuntimeError(message)
        return super().__getitem__(index)


def test_nothing_is_imported_again(records, monkeypatch):
    loader = {"num_workers": 2, "batch_size": 4}
    preload()
    monkeypatch.setattr(KnowsItsModules, "known", frozenset(sys.modules))
    outcome = run_trial(lambda: KnowsItsModules(records), loader=loader)

    assert outcome.exception is None, outcome.exception.message
    assert len(outcome.delivered) == 4


MIB = 1 << 20
MAPS = """\
{begin:x}-{end:x} {kind} 00000000 00:00 {inode} {name}
Size:              20480 kB
Rss:                {used} kB
Anonymous:          {used} kB
VmFlags: rd wr mr mw me ac
"""
HUGE = """
import re

def huge():
    return int(re.search(r"AnonHugePages: +(\\d+)", open("/proc/self/smaps_rollup").read())[1])

held = [b"%064d" % n for n in range(200_000)]
"""
COLLAPSE = """
from pytest_dataloader_faults._engine.system.libc import collapse_after_two_scopes

before = huge()
collapse_after_two_scopes()
collapse_after_two_scopes()
first = huge()
collapse_after_two_scopes()
assert held == [b"%064d" % n for n in range(200_000)]
print(before, first, huge())
"""
NEEDS_HUGE_PAGES = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(),
    reason="this kernel has no transparent huge pages",
)


def _range(
    begin: int, size: int, resident: int, kind: str = "rw-p", inode: int = 0, name: str = ""
) -> str:
    return MAPS.format(
        begin=begin, end=begin + size, used=resident >> 10, kind=kind, inode=inode, name=name
    )


def test_only_private_memory_that_is_in_use_is_moved() -> None:
    size = 20 * MIB
    maps = (
        _range(0x7F0000100000, size, size, name="[heap]")
        + _range(0x7F1000000000, size, size, kind="rw-s")
        + _range(0x7F2000000000, size, size, inode=7, name="/lib/libc.so")
        + _range(0x7F3000000000, size, MIB)
        + _range(0x7F4000000000, size, size, name="[stack]")
        + _range(0x7F5000000000, 1024 * MIB, 1024 * MIB)
        + _range(0x7F6000000000, size, size)
    )
    heap = (0x7F0000200000, 0x7F0000200000 + 18 * MIB)
    assert list(_full_ranges(parse_private_memory(maps))) == [
        heap,
        (0x7F6000000000, 0x7F6000000000 + size),
    ]


@NEEDS_HUGE_PAGES
def test_the_third_scope_moves_memory_and_keeps_what_is_in_it() -> None:
    pages_at_start, pages_after_one, pages_at_end = _huge_pages(COLLAPSE)
    assert pages_at_start == pages_after_one
    assert pages_at_end > pages_after_one or not _has_collapse(), "no page was moved"


def _huge_pages(code: str) -> list[int]:
    """The kB of huge pages that *code* prints, in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-c", HUGE + code], capture_output=True, text=True, check=True
    )
    return [int(number) for number in process.stdout.split()]


def _has_collapse() -> bool:
    """Whether this kernel knows MADV_COLLAPSE: Linux 6.1 and later."""
    release = Path("/proc/sys/kernel/osrelease").read_text(encoding="utf-8")
    return tuple(map(int, re.findall(r"\d+", release)[:2])) >= (6, 1)
