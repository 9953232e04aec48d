"""Causes that a worker printed, but no exception mentions."""

import pytest

from pytest_dataloader_faults import Contract
from pytest_dataloader_faults.outcomes import Pass
from pytest_dataloader_faults.outcomes.judge import judge
from support.facts import EPOCH_1, TRUNCATED, fired, map_reference, ordinary, raised, revised
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
