"""Which hangs are the same, what readers see of stacks, and causes that a worker printed."""

import os
import re

import numpy as np
import pytest
import torch

import pytest_dataloader_faults as package
from pytest_dataloader_faults import Contract
from pytest_dataloader_faults.outcomes import Activity, AtDeadline, Pass, WorkerDeath, WorkerFacts
from pytest_dataloader_faults.outcomes.judge import judge
from pytest_dataloader_faults.outcomes.judge.hangs import (
    describe_activity,
    hang_places,
    hangs_at,
    lasting_places,
    likely_cause,
    loader_timed_out,
    was_computing,
)
from pytest_dataloader_faults.outcomes.judge.sharing import find_stale_lock
from pytest_dataloader_faults.outcomes.stages import RECOVERY
from pytest_dataloader_faults.outcomes.text import crashed_files, limit_lines, sort_for_reader
from support.facts import EPOCH_1, TRUNCATED, fired, map_reference, ordinary, raised, revised
from support.judging import judge_trial
from support.rows import rows

_PYTHON, _TORCH, _OURS = (os.path.dirname(each.__file__) for each in (os, torch, package))
FETCH = (f"{_TORCH}/utils/data/_utils/fetch.py", 54, "fetch")
LOOP = (f"{_TORCH}/utils/data/_utils/worker.py", 374, "_worker_loop")
NEXT = (f"{_TORCH}/utils/data/dataloader.py", 725, "__next__")
WAIT, QUEUE = (
    (f"{_PYTHON}/{name}.py", 327, "wait") for name in ("threading", "multiprocessing/queues")
)
BOOT = (f"{_PYTHON}/threading.py", 1002, "_bootstrap")
OURS = (f"{_OURS}/_engine/fetch_hooks.py", 75, "fetch_and_report")
TEST = ("/home/me/test_data.py", 7, "test_it")
READ, SAMPLE = ("/home/me/data.py", 18, "read"), ("/home/me/data.py", 30, "__getitem__")
AT_READ, AT_SAMPLE = "/home/me/data.py:18 in read", "/home/me/data.py:30 in __getitem__"


def _hung(*threads, phase=EPOCH_1):
    """A trial whose processes had these threads, each a list of frames, the innermost first."""
    texts = [
        "\n".join(
            [
                f"\nProcess {number} (sleeping):",
                f"{'Current thread' if number % 2 else 'Thread'} 0x0007 (most recent call first):",
                *(f'  File "{path}", line {line} in {name}' for path, line, name in frames),
            ]
        )
        for number, frames in enumerate(threads)
    ]
    return revised(ordinary(Pass(EPOCH_1)), stacks="\n".join(texts), timed_out=True, phase=phase)


THREADS = {
    "sleeps": [SAMPLE, OURS, FETCH, OURS, LOOP, TEST],
    "waits": [WAIT, WAIT, SAMPLE, FETCH, LOOP, TEST],
    "in a function": [READ, SAMPLE, FETCH, LOOP, TEST],
    "in our functions": [OURS, OURS, READ, SAMPLE, FETCH, LOOP],
    "in generated code": [("<string>", 2, "load"), READ, FETCH],
    "sampler of the loader": [SAMPLE, NEXT, OURS, TEST],
    "worker without work": [WAIT, QUEUE, LOOP, OURS, TEST],
    "loader that waits": [WAIT, QUEUE, NEXT, OURS, TEST],
    "thread of the dataset": [WAIT, READ],
    "no frame": [],
}
IN_SAMPLE, IN_READ = [SAMPLE, FETCH, LOOP], [READ, FETCH, LOOP]
IDLE = [WAIT, QUEUE, LOOP]


def _with_threads(*loader, state):
    """A trial whose main process had the *loader* threads, and a worker that hung."""
    threads = _hung(*([*each, BOOT] for each in loader)).end.stacks
    loader_threads = re.sub(r"\nProcess \d+ \(sleeping\):", "", threads)
    worker = _hung([], [SAMPLE, FETCH, LOOP]).end.stacks.replace("(sleeping)", f"({state})")
    return revised(_hung(), stacks=f"\nProcess 9 (sleeping):{loader_threads}\n{worker}")


def _in_state(frames, state):
    hung = _hung([], frames)
    return revised(hung, stacks=hung.end.stacks.replace("(sleeping)", f"({state})"))


def _hangs():
    yield from ((title, _hung(frames)) for title, frames in THREADS.items())
    yield "two workers and an idle one", _hung(IN_SAMPLE, IDLE, IN_READ)
    for frames in (IN_SAMPLE, IDLE):
        for state in ("sleeping, in futex_do_wait", "sleeping, in hrtimer_nanosleep"):
            yield f"{frames[0][-1]} is {state}", _in_state(frames, state)
    for threads, state in (
        ([[WAIT, READ]], "hrtimer_nanosleep"),
        ([[WAIT, READ]], "futex_do_wait"),
        ([[WAIT, READ]], "pipe_read"),
        ([IDLE[:2]], "hrtimer_nanosleep"),
        ([], "hrtimer_nanosleep"),
        ([], "futex_do_wait"),
    ):
        outcome = _with_threads(*threads, state=f"sleeping, in {state}")
        names = [frames[-1][-1] for frames in threads]
        yield (
            f"threads {names} of the loader, {state}",
            revised(outcome, at_deadline=AtDeadline(Activity.READS)),
        )
    feeder = '  File "/usr/lib/python3.11/multiprocessing/queues.py", line 244, in _feed'
    printed = "_pickle.PicklingError: Can't pickle <class 'dbm.error'>"
    stderr = f"Traceback (most recent call last):\n{feeder}\n{printed}\n"
    yield "a dropped batch", revised(_hung(IDLE), stderr=stderr)
    yield "a dropped batch and a line", revised(_hung([WAIT, *IN_SAMPLE]), stderr=stderr)
    hung = _hung(IN_SAMPLE)
    yield "no hang", revised(hung, timed_out=False)
    yield "a thread, but no hang", revised(_hung([WAIT, *IN_SAMPLE]), timed_out=False)
    yield "no stacks", _hung()
    yield "the recovery", _hung(IN_SAMPLE, phase=RECOVERY)
    asleep = AtDeadline(Activity.SLEEPS, asleep=(1,))
    yield "one sleeps", revised(_hung(IN_SAMPLE, IN_READ), at_deadline=asleep)
    for activity in Activity:
        yield f"it {activity.value}", revised(hung, at_deadline=AtDeadline(activity))


def _describe(outcome):
    causes = [likely_cause(outcome, after_one=after_one) for after_one in (False, True)]
    lines = {
        "places": ", ".join(sorted(hang_places(outcome))),
        "lasting": ", ".join(sorted(lasting_places(outcome))),
        "hangs at": ", ".join(
            place for place in (AT_SAMPLE, AT_READ, "either") if hangs_at(outcome, _meant(place))
        ),
        "computes": "it does" if was_computing(outcome) else "",
        "cause": causes[0] and causes[0].phrase,
        "cause after one sample": causes[1] and causes[1].phrase,
        "says": outcome.end.at_deadline and describe_activity(outcome),
    }
    return "\n".join(f"{name}: {text}" for name, text in lines.items() if text)


def _meant(place):
    return {AT_SAMPLE, AT_READ, "elsewhere"} if place == "either" else {place}


def test_texts_of_places(golden):
    golden("hang_places", {title: _describe(outcome) for title, outcome in _hangs()})


@rows(
    ("error", "expected"),
    [
        (raised("RuntimeError", "DataLoader timed out after 1 seconds"), True),
        (raised("TimeoutError", "timed out"), False),
        (None, False),
    ],
)
def test_the_loaders_own_timeout_is_recognized(error, expected):
    """There is no class for it in torch."""
    assert loader_timed_out(ordinary(Pass(EPOCH_1, exception=error))) is expected


LOCK = ("/data/cache.lock",)
_DEAD = {"epochs": (Pass(EPOCH_1, deaths=(WorkerDeath(0, 7, -9),)),)}


@rows(
    ("facts", "path"),
    [
        ({"timed_out": True, "phase": RECOVERY, **_DEAD}, LOCK[0]),
        ({"timed_out": True, "phase": RECOVERY}, None),
        ({"timed_out": True, "phase": EPOCH_1, **_DEAD}, None),
        ({"phase": RECOVERY, **_DEAD}, None),
    ],
)
def test_a_lock_file_is_stale_once_its_worker_has_died(facts, path):
    """Only a recovery pass that hangs shows that others wait for it."""
    workers = (
        WorkerFacts(0, 7, 1, {}, remaining_locks=(*LOCK, "/tmp/tmp1234")),
        WorkerFacts(1, 8, 1, {}, remaining_locks=LOCK),
    )
    outcome = revised(ordinary(Pass(EPOCH_1)), processes=workers, **facts)
    assert find_stale_lock(outcome) == path

    sentence = judge_trial(outcome, map_reference()).sentence
    says = "cache.lock, the lock file of a worker that died, is left"
    assert (says in sentence) == bool(path)


@rows(
    ("path", "wanted", "is_lock"),
    [
        ("/tmp/tmp1234", (), False),
        ("/locks/data", (), False),
        ("/data/cache.lock", (), True),
        ("/data/.lck", (), True),
        ("/data/busy", ("/data/busy",), True),
    ],
)
def test_a_lock_file_has_a_name_that_says_so_or_others_want_it(path, wanted, is_lock):
    workers = (
        WorkerFacts(0, 7, 1, {}, remaining_locks=(path,)),
        WorkerFacts(1, 8, 1, {}, remaining_locks=wanted),
    )
    facts = {"timed_out": True, "phase": RECOVERY, **_DEAD}
    outcome = revised(ordinary(Pass(EPOCH_1)), processes=workers, **facts)
    assert find_stale_lock(outcome) == (path if is_lock else None)


_TORCH_STACK, _NUMPY, _OUR_STACK = (os.path.dirname(each.__file__) for each in (torch, np, package))
USERS = [f'  File "/home/me/{name}.py", line 8 in make' for name in ("shop", "test_shop")]
LIBRARY = [f'  File "{_NUMPY}/core/{number}.py", line 1 in read' for number in range(30)]
OUR_STACK = [
    f'  File "{_OUR_STACK}/_trial/{name}.py", line 1 in run' for name in ("loaders", "run")
]
LOADER = f'  File "{_TORCH_STACK}/utils/data/dataloader.py", line 1 in __next__'
STACK = [*LIBRARY, USERS[0], LOADER, OUR_STACK[0], USERS[1], *OUR_STACK]


def test_the_users_frames_come_first_and_ours_never():
    """That holds for each stack of faulthandler, whatever is printed around it."""
    fatal, thread = "Fatal Python error: Bus error", "Current thread 0x1 (most recent call first):"
    printed = ["hello", fatal, thread, *STACK, "", thread, *STACK]
    ordered = [thread, *USERS, *LIBRARY, LOADER]
    assert sort_for_reader(printed) == ["hello", fatal, *ordered, "", *ordered]


def test_a_traceback_keeps_its_order_without_our_frames():
    """Source lines stay with their frame."""
    ours = [f'  File "{_OUR_STACK}/_engine/x.py", line 1, in call', "    call()", "    ^^^^"]
    users = ['  File "/home/me/data.py", line 2, in read', "    raise OSError"]
    head, error = "Traceback (most recent call last):", "OSError: no"
    assert sort_for_reader([head, *ours, *users, error]) == [head, *users, error]


@rows("frames", [STACK, [*LIBRARY, *STACK], [*USERS, *LIBRARY]])
def test_no_frame_of_the_user_is_omitted(frames):
    """Only frames of libraries are omitted, and counted."""
    lines = limit_lines(sort_for_reader(frames), 12)
    assert lines[:2] == USERS
    assert sum(" lines omitted" in each for each in lines) == 1
    assert len(lines) == 13


def test_a_recursion_of_the_user_is_bounded():
    """Its first and last frames are shown."""
    frames = [f'  File "/home/me/data.py", line {number} in again' for number in range(500)]
    lines = limit_lines(sort_for_reader(frames), 12)
    assert (lines[0], lines[-1], len(lines)) == (frames[0], frames[-1], 13)


CRASH = """\
Fatal Python error: Segmentation fault

{header} (most recent call first):
  File "/venv/site-packages/h5py/dataset.py", line 3 in read
  File "/home/me/data.py", line 7 in __getitem__
  File "/venv/site-packages/torch/utils/data/_utils/fetch.py", line 50 in fetch

Extension modules: numpy, h5py (total: 2)
"""
OTHER_THREAD = """\
Thread 0x01 (most recent call first):
  File "/home/me/other.py", line 1 in run

"""


@rows(
    ("printed", "files"),
    [
        ("", []),
        (CRASH.format(header="Stack"), ["/venv/site-packages/h5py/dataset.py"]),
        (
            CRASH.format(header=f"{OTHER_THREAD}Current thread 0x02"),
            ["/venv/site-packages/h5py/dataset.py"],
        ),
        (
            2 * CRASH.format(header="Stack").replace("h5py/dataset", "torch/utils/data/dataset"),
            2 * ["/home/me/data.py"],
        ),
        ("Fatal Python error: Aborted\n\nStack (most recent call first):\n", [""]),
    ],
)
def test_the_file_of_a_crash_is_that_of_the_innermost_frame(printed, files):
    assert crashed_files(f"a line\n{printed}another line\n") == files


FEEDER = """Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/queues.py", line 244, in _feed
    obj = _ForkingPickler.dumps(obj)
          ^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/multiprocessing/reduction.py", line 51, in dumps
    cls(buf, protocol).dump(obj)
{}
"""
CHAINED = f"""Traceback (most recent call last):
  File "/x/image.py", line 7, in __getstate__
    raise KeyError(3)
KeyError: 3

During handling of the above exception, another exception occurred:

{FEEDER}"""
OTHER = """Traceback (most recent call last):
  File "/x/data.py", line 9, in _feed
    return 1 / 0
ZeroDivisionError: division by zero
"""
GENERATOR = "TypeError: cannot pickle 'generator' object"
DROPPED = "could not pickle its result ({})"
DIED = raised("RuntimeError", "DataLoader worker (pid(s) 7) exited unexpectedly")


def _sentence(outcome, stderr):
    return judge(revised(outcome, stderr=stderr), map_reference(), Contract()).sentence


HUNG = revised(ordinary(Pass(EPOCH_1)), timed_out=True, phase=EPOCH_1)


AT_ONCE = FEEDER.replace("    obj", f"{FEEDER.splitlines()[0]}\n    obj")


@rows("text", [FEEDER, CHAINED, f"INFO: worker 0\n{FEEDER}bye\n", AT_ONCE])
def test_a_hang_is_attributed_to_a_dropped_batch(text):
    """The last line of the feeder thread's own traceback is the reason."""
    sentence = _sentence(HUNG, text.format(GENERATOR))
    assert "30 s: " in sentence
    assert DROPPED.format(GENERATOR) in sentence


@rows("text", ["", "TypeError: cannot pickle\n", OTHER])
def test_other_output_is_not_a_cause(text):
    """Only a traceback that starts in multiprocessing's feeder thread shows a dropped batch."""
    assert _sentence(HUNG, text) == _sentence(HUNG, "")
    assert "pickle" not in _sentence(HUNG, text)


def test_a_timeout_that_ends_such_a_wait_hides_the_cause():
    """The loader's own error only mentions the wait."""
    timeout = raised("RuntimeError", "DataLoader timed out after 5 seconds")
    outcome = ordinary(Pass(EPOCH_1, exception=timeout), fired(TRUNCATED, call="openat"))
    finding = judge(
        revised(outcome, stderr=FEEDER.format("OSError: cut")), map_reference(), Contract()
    )
    assert finding.verdict == "failed_unclearly"
    assert DROPPED.format("OSError: cut") in finding.sentence


def test_the_output_of_another_process_about_a_death_is_not_a_cause():
    """A worker that loses its loader sometimes prints a connection error."""
    printed = "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    assert "printed" not in _sentence(ordinary(Pass(EPOCH_1, exception=DIED)), printed)
    sentence = _sentence(
        ordinary(Pass(EPOCH_1, exception=DIED)), f"ImportError: no module x\n{printed}"
    )
    assert sentence.endswith("; a worker printed: ImportError: no module x")


@pytest.mark.parametrize("error", [DIED, raised("ValueError", "x")])
def test_no_last_error(error):
    """The exception names its cause, or the worker printed no error."""
    stderr = "a warning\n" if error is DIED else "OSError: x\n"
    assert "printed" not in _sentence(ordinary(Pass(EPOCH_1, exception=error)), stderr)
