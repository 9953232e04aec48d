"""Causes that a worker printed, and that no exception carries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults.outcomes import Pass, Raised
from pytest_dataloader_faults.outcomes.judge import judge
from support.facts import EPOCH_1, TRUNCATED, fired, map_reference, ordinary, raised
from support.rows import rows

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
DROPPED = "a worker could not pickle what it had to send ({}), so torch's queue thread"
DIED = raised("RuntimeError", "DataLoader worker (pid(s) 7) exited unexpectedly")


def _sentence(outcome, stderr):
    return judge(replace(outcome, stderr=stderr), map_reference(), Contract()).sentence


HUNG = replace(ordinary(Pass()), timed_out=True, phase=EPOCH_1)


@rows("text", [FEEDER, CHAINED, f"INFO: worker 0\n{FEEDER}bye\n"])
def test_a_hang_is_put_down_to_the_batch_that_was_dropped(text):
    """The last line of the feeder thread's own traceback is why."""
    sentence = _sentence(HUNG, text.format(GENERATOR))
    assert sentence.startswith("no exception and no end of the epoch within 30 s: ")
    assert DROPPED.format(GENERATOR) in sentence


def test_of_several_the_last_one_counts():
    """What was dropped first need not be what the loader waits for."""
    text = FEEDER.format("OSError: first") + FEEDER.format("OSError: last")
    assert DROPPED.format("OSError: last") in _sentence(HUNG, text)


@rows("text", ["", "TypeError: cannot pickle\n", OTHER])
def test_what_else_is_printed_is_no_cause(text):
    """Only a traceback that begins in multiprocessing's feeder thread shows a dropped batch."""
    assert _sentence(HUNG, text) == "no exception and no end of the epoch within 30 s"


def test_a_timeout_that_ends_such_a_wait_hides_the_cause():
    """The loader's own error mentions only the wait."""
    timeout = raised("RuntimeError", "DataLoader timed out after 5 seconds")
    outcome = ordinary(Pass(exception=timeout), fired(TRUNCATED, call="openat"))
    judgement = judge(
        replace(outcome, stderr=FEEDER.format("OSError: cut")), map_reference(), Contract()
    )
    assert judgement.verdict == "failed_unclearly"
    assert DROPPED.format("OSError: cut") in judgement.sentence


def test_last_error_of_a_worker_that_died():
    """A spawned one, say, that cannot unpickle the dataset."""
    sentence = _sentence(ordinary(Pass(exception=DIED)), f"{OTHER}ImportError: no module x\n")
    assert "fails without any fault: RuntimeError: DataLoader worker (pid(s) 7)" in sentence
    assert sentence.endswith("; a worker printed: ImportError: no module x")


def test_what_another_process_prints_of_a_death_is_no_cause():
    """A worker that loses its loader prints an error of the connection, sometimes."""
    printed = "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    assert "printed" not in _sentence(ordinary(Pass(exception=DIED)), printed)
    sentence = _sentence(ordinary(Pass(exception=DIED)), f"ImportError: no module x\n{printed}")
    assert sentence.endswith("; a worker printed: ImportError: no module x")


@pytest.mark.parametrize("error", [DIED, raised("ValueError", "x")])
def test_no_last_error(error):
    """Where the exception names its cause, or the worker printed no error."""
    stderr = "a warning\n" if error is DIED else "OSError: x\n"
    assert "printed" not in _sentence(ordinary(Pass(exception=error)), stderr)


def test_an_error_without_a_message():
    """The sentence says that there is no message."""
    error = Raised("AssertionError", "", "AssertionError\n")
    assert _sentence(ordinary(Pass(exception=error)), "").endswith(
        "any fault: AssertionError: no message"
    )
