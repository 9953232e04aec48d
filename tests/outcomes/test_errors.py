"""Messages about deaths, faults that never fired, and errors that hide their cause."""

import signal
from dataclasses import replace
from typing import Any

import pytest

from pytest_dataloader_faults import Contract, Outcome, faults
from pytest_dataloader_faults.faults import (
    KINDS,
    DescriptorExhaustion,
    Fault,
    MemoryExhaustion,
    ReadError,
    SharedMemoryExhaustion,
    TruncatedFile,
)
from pytest_dataloader_faults.outcomes import (
    Crash,
    FaultFacts,
    FileCounts,
    FiringKind,
    Pass,
    TrialEnd,
    WorkerDeath,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.error_text import describe_fault
from pytest_dataloader_faults.outcomes.fault_facts import explain_unfired
from pytest_dataloader_faults.outcomes.judge.causes import likely_cause
from pytest_dataloader_faults.outcomes.judge.errors import find_unclear_error
from pytest_dataloader_faults.outcomes.stages import START
from support.facts import (
    EIO,
    EPOCH_1,
    KILLED,
    TRUNCATED,
    fired,
    map_reference,
    ordinary,
    raised,
    revised,
)
from support.judging import judge_trial
from support.rows import rows

BUS = -signal.SIGBUS
SHADOWS = [
    raised("RuntimeError", "DataLoader worker (pid(s) 4711) exited unexpectedly"),
    raised("RuntimeError", "DataLoader worker (pid 4711) is killed by signal: Bus error."),
    raised("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    raised("EOFError", ""),
    raised("FileNotFoundError", "[Errno 2] No such file or directory"),
    raised("TypeError", "'NoneType' object is not callable"),
]
"""What one and the same death has reached the loop as."""
CASES = [
    pytest.param(EIO, "mmap", BUS, "failed_cleanly", id="mapping of a disk that fails"),
    pytest.param(EIO, "read", BUS, "failed_unclearly", id="bus error, no mapping"),
    pytest.param(TRUNCATED, "openat", BUS, "failed_unclearly", id="mapping of a short file"),
    pytest.param(TRUNCATED, "mmap", BUS, "failed_cleanly", id="cut off while mapped"),
    pytest.param(
        SharedMemoryExhaustion(), "fallocate", BUS, "failed_cleanly", id="no shared memory"
    ),
    pytest.param(KILLED, "signal 9", -signal.SIGKILL, "failed_cleanly", id="killed as asked"),
    pytest.param(KILLED, "exit 3", 3, "failed_cleanly", id="left as asked"),
    pytest.param(EIO, "read", -signal.SIGSEGV, "failed_unclearly", id="crashed reader"),
    pytest.param(EIO, "read", -signal.SIGKILL, "failed_unclearly", id="killed from outside"),
    pytest.param(TRUNCATED, "openat", 1, "failed_unclearly", id="exit status"),
]


def _outcome(fault, call, exitcode, shadow) -> Outcome:
    epoch = Pass(EPOCH_1, exception=shadow, deaths=(WorkerDeath(1, 4711, exitcode),))
    kind = FiringKind.DEATH if fault is KILLED else FiringKind.CALL
    return revised(ordinary(epoch, fired(fault, call=call, kind=kind)), epochs=(epoch,))


@rows("shadow", SHADOWS, ids=lambda error: error.type)
@rows(("fault", "call", "exitcode", "verdict"), CASES)
def test_the_verdict_follows_from_the_death(fault, call, exitcode, verdict, shadow):
    """Verdict and sentence are the same, whichever of torch's errors was raised first."""
    findings = {
        (finding.verdict, finding.sentence)
        for finding in (
            judge_trial(_outcome(fault, call, exitcode, error), map_reference())
            for error in (shadow, SHADOWS[0])
        )
    }
    assert {each for each, _ in findings} == {verdict}
    assert len(findings) == 1


@rows(("exitcode", "verdict"), [(1, "failed_cleanly"), (3, "failed_unclearly")])
def test_a_worker_that_torch_ends_for_want_of_descriptors(exitcode, verdict):
    """It cannot receive an index that is a tensor; the dataset has no part in that."""
    outcome = _outcome(DescriptorExhaustion(), "openat", exitcode, SHADOWS[0])
    outcome = revised(outcome, stderr="RuntimeError: received 0 items of ancdata\n")

    assert judge_trial(outcome, map_reference()).verdict == verdict


def test_one_unclear_death_is_enough():
    """A worker that died from a mapping does not make the crash of another one clear."""
    outcome = _outcome(EIO, "mmap", BUS, SHADOWS[0])
    deaths = (*outcome.deaths, WorkerDeath(0, 4710, -signal.SIGSEGV))
    outcome = revised(outcome, epochs=(replace(outcome.epochs[0], deaths=deaths),))

    finding = judge_trial(outcome, map_reference())

    assert finding.verdict == "failed_unclearly"
    assert finding.sentence.startswith("worker 0 was killed by SIGSEGV")


FILES = {"/data/0.bin": FileCounts(1, 2, 3)}
WORKERS = [WorkerFacts(worker=each, pid=100 + each, fetches=4, files=FILES) for each in range(2)]
UNFIRED = [
    (faults.ReadError("*.bin", nth=9), 3),
    (faults.TruncatedFile("*.bin", keep=10000), 3),
    (faults.CorruptedFile("*.bin"), 3),
    (faults.DescriptorExhaustion(headroom=900), 3),
    (faults.ShortRead("*.bin", max_bytes=100), 0),
    (faults.ShortWrite("*.bin", max_bytes=100), 0),
    (faults.ReadError("*.bin", workers=(7,)), 0),
    (faults.WorkerKilled(worker=5), 0),
    (faults.WorkerKilled(at=50), 0),
    (faults.WorkerKilled(at=50), 0),
    (faults.WorkerHung(at=9, worker=None), 0),
    (faults.WriteError("*.pt"), 0),
    (faults.WorkerKilled(writing="*.pt"), 0),
    (faults.ThreadExhaustion(), 0),
    (faults.ThreadExhaustion(nth=9), 3),
    (faults.ReadError("0.bin"), 0),
    (faults.ReadError("./0.bin"), 0),
    (faults.ReadError("7.bin"), 0),
    (faults.ReadError("*.{bin,jpg}"), 0),
    (faults.ReadError("*.jpg"), 0),
]


def test_texts_of_faults_that_never_fired(golden):
    texts = {
        f"{number}: {fault!r}": explain_unfired([FaultFacts(fault, matched)], WORKERS)
        for number, (fault, matched) in enumerate(UNFIRED)
    }
    fault = faults.ReadError("*.bin", workers=(0,))
    main = WorkerFacts(None, 99, 0, FILES)
    hidden = [replace(worker, unobserved={"dup in a.b": 2}) for worker in WORKERS]
    texts["no worker"] = explain_unfired([FaultFacts(fault)], [])
    texts["main process"] = explain_unfired([FaultFacts(fault)], [main, *WORKERS])
    texts["hidden uses"] = explain_unfired([FaultFacts(faults.ReadError("*.jpg"))], hidden)
    texts["connection"] = explain_unfired([FaultFacts(faults.ConnectError())], WORKERS)
    texts["no start"] = explain_unfired([FaultFacts(fault)], [], "OSError: no room")
    texts["late start"] = explain_unfired([FaultFacts(fault)], WORKERS, "OSError: no room")
    texts["no death"] = explain_unfired([FaultFacts(faults.WorkerKilled(reading="*.jpg"))], WORKERS)
    killed = FaultFacts(faults.WorkerKilled(reading="*.bin"))
    texts["read by the main process"] = explain_unfired([killed], [main, *WORKERS])
    idle = replace(main, files={})
    texts["idle main process"] = explain_unfired([FaultFacts(fault)], [idle, *WORKERS])
    texts["all processes"] = explain_unfired([FaultFacts(faults.ReadError("*.bin"))], [main])
    golden("never_fired", texts)


_FRAMES = """Traceback (most recent call last):
  File "/data/reader.py", line 7, in read
    {}
TypeError: only length-1 arrays can be converted to Python scalars
"""
_WHILE_HANDLING = "During handling of the above exception, another exception occurred:\n\n"


def _sentence(
    kind: Fault, path: str | None = "/data/a.rec", call: str = "read", **options: Any
) -> str:
    error = replace(raised("ValueError", "bad sample"), **options)
    facts = fired(kind, path=path, call=call)
    outcome = ordinary(Pass(EPOCH_1, exception=error), facts)
    finding = find_unclear_error(outcome, Contract(detects_corruption=True))
    assert finding is not None
    return finding.sentence


@rows(
    ("program", "message", "is_clear"),
    [
        ("ffmpeg", "4.h264: ffmpeg gave 0 of 960 frames and ended with status -6", True),
        ("ffmpeg", "4.h264 ended with status 245: Conversion failed!", True),
        ("cat", "CalledProcessError: Command '['cat']' died with <Signals.SIGABRT: 6>.", True),
        ("cat", "returncode=1", True),
        ("ffmpeg", "ffmpeg failed", True),
        ("ffmpeg", "no frames", False),
        ("ffmpeg", "ffmpegs failed", False),
        ("ffmpeg", "ffmpeg: file not found", False),
        (
            "python3.11",
            "CalledProcessError: Command '['python3.11']' returned exit status 1",
            False,
        ),
        ("", "4.h264: ffmpeg ended with status -6", False),
    ],
)
def test_an_error_about_a_program_that_met_the_fault_is_clear(program, message, is_clear):
    """The status and the name of the program are all that Python can know."""
    error = replace(raised("ValueError", message), text=message)
    (facts,) = fired(faults.MemoryExhaustion(), path=None)
    facts = replace(facts, firings=tuple(replace(each, program=program) for each in facts.firings))
    finding = find_unclear_error(ordinary(Pass(EPOCH_1, exception=error), (facts,)), Contract())

    assert (finding is None) == is_clear


@rows(
    ("exitcode", "says"),
    [(BUS, "os.path.getsize"), (-signal.SIGSEGV, "name the file in the error")],
)
def test_a_death_in_a_mapping_is_not_fixed_by_another_message(exitcode, says):
    outcome = _outcome(TRUNCATED, "openat", exitcode, SHADOWS[0])
    cause = likely_cause(outcome, judge_trial(outcome, map_reference()), ordinary(Pass(EPOCH_1)))

    assert cause.phrase == "raises an error that hides its cause"
    assert says in cause.fix


def test_texts_of_unclear_errors(golden):
    at_raise = _FRAMES.format("raise ValueError(path)")
    false_class = at_raise.replace("TypeError: only", "FileNotFoundError: only")
    by_reader = _FRAMES.format("return np.load(path)")
    in_handler = f"OSError: [Errno 5] Input/output error\n\n{_WHILE_HANDLING}"
    bug = _FRAMES.format("n = 1 / 0").replace("TypeError: only", "ZeroDivisionError: only")
    none = "default_collate: batch must contain tensors; found <class 'NoneType'>"
    texts = {
        name: _sentence(kind(**{"WorkerKilled": {"at": 1}}.get(name, {})))
        for name, kind in KINDS.items()
    }
    texts |= {
        "at a raise": _sentence(ReadError(), text=at_raise),
        "in a computation": _sentence(ReadError(), text=_FRAMES.format("int(data)")),
        "false class": _sentence(ReadError(), text=false_class),
        "reader of a library": _sentence(ReadError(), text=by_reader, library="NumPy"),
        "reader of the user": _sentence(ReadError(), text=by_reader),
        "unset variable": _sentence(ReadError(), type="NameError"),
        "bug in a handler": _sentence(ReadError(), text=in_handler + bug),
        "None in a batch": _sentence(ReadError(), text=f"TypeError: {none}\n"),
        "no file": _sentence(faults.ThreadExhaustion(), path=None),
        "no start": _sentence(faults.ThreadExhaustion(), path=None, call="clone3"),
        "SQLite": _sentence(ReadError(), text="sqlite3.DatabaseError: disk image is malformed\n"),
        "not rebuilt": _sentence(ReadError(), unprintable="TypeError"),
        "endless search": _sentence(MemoryExhaustion(), path=None, type="RecursionError"),
        "SQLite, another error": _sentence(ReadError(), text=_FRAMES.format("row = execute()")),
    }
    for name, kind in KINDS.items():
        words = name if kind.errno else describe_fault(kind()).format("a.rec")
        texts[name] = texts[name].replace(words, "{in_words}")
    for fault, code in ((TRUNCATED, BUS), (EIO, -signal.SIGKILL), (EIO, 3)):
        outcome = _outcome(fault, "openat", code, SHADOWS[0])
        texts[f"death {code}"] = judge_trial(outcome, map_reference()).sentence
    for code in (0, -signal.SIGKILL, -signal.SIGTERM):
        epoch = Pass(EPOCH_1, exception=SHADOWS[0], deaths=(WorkerDeath(1, 4711, code),))
        texts[f"death {code} without a fault"] = judge_trial(
            ordinary(epoch), map_reference()
        ).sentence
    golden("unclear_errors", texts | dict(_special_cases()))


def _special_cases():
    """What is said where more is known than the error."""

    def text(error, facts, *workers):
        epoch = Pass(EPOCH_1, exception=error)
        outcome = revised(ordinary(epoch, facts), processes=workers)
        finding = find_unclear_error(outcome, Contract())
        return (
            f"{finding.sentence}\nfix: {finding.cause.fix}" if finding.cause else finding.sentence
        )

    filled = WorkerFacts(0, 7, 1, {}, lengthened_files=("/data/a.rec",))
    yield "a file that was filled", text(raised("KeyError", "'x'"), fired(TruncatedFile()), filled)
    several = (*fired(TruncatedFile()), *fired(TruncatedFile(), path="/data/b.rec"))
    yield "one of several files", text(raised("ValueError", "bad"), several)
    ignored = replace(raised("TypeError", "x"), text=_FRAMES.format("width = int(header)"))
    command = "CalledProcessError: Command '['cat']' returned non-zero exit status 1.\n"
    failed = replace(raised("CalledProcessError", command), text=command)
    for name, pid in (("the worker", 4711), ("another process", 9)):
        worker = WorkerFacts(1, pid, 1, {})
        yield f"met by {name}", text(ignored, fired(ReadError()), worker)
        yield f"a command, {name}", text(failed, fired(MemoryExhaustion(), path=None), worker)
    opencv = "OpenCV(4.11.0) color.cpp:199: error: (-215:Assertion failed) !_src.empty() in f"
    empty = replace(raised("error", opencv), text=f"cv2.error: {opencv}")
    yield "an empty image", text(empty, fired(faults.OpenError()))


@rows(
    ("error", "message", "library"),
    [
        ("SlideError", "bad slide", "openslide"),
        ("KeyError", "'x'", "openslide"),
        ("TypeError", "image must be numpy array type", ""),
        ("ZeroDivisionError", "division by zero", ""),
        ("UnboundLocalError", "bad sample", ""),
        ("cv2.error", "OpenCV(4.10.0) error: (-215:Assertion failed) !_src.empty()", ""),
        (
            "cv2.error",
            "OpenCV(4.10.0) error: (-5:Bad argument) in function 'imdecode'",
            "openslide",
        ),
    ],
)
def test_a_library_is_not_to_blame_for_what_it_got(error, message, library):
    """It is if the error is neither one of Python's for mistakes, nor about an empty image."""
    raised_there = replace(raised(error, message), file="x.py", library="openslide")
    outcome = ordinary(Pass(EPOCH_1, exception=raised_there), fired(EIO))
    finding = judge_trial(outcome, map_reference())

    assert (finding.verdict, finding.library) == ("failed_unclearly", library)
    assert not judge_trial(outcome, map_reference(), Contract(names_file=True)).library


@rows(
    ("crashes", "pid", "exitcode", "library"),
    [
        ([("h5py/x.py", "h5py")], 4711, -signal.SIGSEGV, "h5py"),
        ([("h5py/x.py", "h5py")], 4711, 1, ""),
        ([("h5py/x.py", "h5py")], 4712, -signal.SIGSEGV, ""),
        ([("data.py", "")], 4711, -signal.SIGSEGV, ""),
        ([], 4711, -signal.SIGSEGV, ""),
    ],
)
def test_a_library_may_crash_a_worker_that_lacks_something(crashes, pid, exitcode, library):
    """Only one that lacks it, and if the stack shows that library."""
    epoch = Pass(EPOCH_1, exception=SHADOWS[0], deaths=(WorkerDeath(1, pid, exitcode),))
    outcome = ordinary(epoch, fired(MemoryExhaustion(), call="mmap"))
    outcome = replace(outcome, notes=tuple(Crash(*each) for each in crashes))
    finding = judge_trial(outcome, map_reference())

    assert (finding.verdict, finding.library) == ("failed_unclearly", library)


@rows(
    ("fault", "phase", "library"),
    [(EIO, START, "the kernel"), (TRUNCATED, START, ""), (EIO, EPOCH_1, "")],
)
def test_a_page_that_the_disk_cannot_deliver_ends_the_constructor(fault, phase, library):
    outcome = ordinary(Pass(EPOCH_1), fired(fault, call="mmap"))
    outcome = replace(outcome, phase=phase, passes=(), end=TrialEnd(exitcode=BUS))
    finding = judge_trial(outcome, map_reference())

    assert (finding.verdict, finding.library) == ("crashed", library)


_AT_RAISE = """Traceback (most recent call last):
  File "/home/me/data.py", line 3, in __getitem__
    raise ValueError(text)
ValueError: Caught ValueError in DataLoader worker process 0.
ValueError: {}
"""


@rows(
    ("message", "is_clear"),
    [
        ("images and masks do not match: ['0040']", True),
        ("no mask for an image in data/images", True),
        ("sample 7 is broken", True),
        ("sample 8 is broken", False),
        ("7 of 8", False),
        ("image 00400 is missing", False),
        ("it is broken", False),
    ],
)
def test_an_error_of_the_user_may_name_the_stem_the_folder_or_the_sample(message, is_clear):
    error = replace(raised("ValueError", message), text=_AT_RAISE.format(message))
    (facts,) = fired(ReadError(), path="/home/me/data/images/0040.jpg")
    facts = replace(facts, firings=tuple(replace(each, sample=7) for each in facts.firings))

    def find(raised):
        outcome = ordinary(Pass(EPOCH_1, exception=raised), (facts,))
        return find_unclear_error(outcome, Contract())

    assert (find(error) is None) == is_clear
    assert find(replace(error, library="a library")) is not None
