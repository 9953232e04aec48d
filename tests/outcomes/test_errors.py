"""What is said of deaths, of faults that never fired, and of errors that hide their cause."""

from __future__ import annotations

import signal
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from torch.utils.data import Dataset

from pytest_dataloader_faults import Contract, Outcome, check_dataset, faults
from pytest_dataloader_faults.faults import (
    KINDS,
    CorruptedFile,
    Fault,
    ReadError,
    SharedMemoryExhaustion,
    ShortRead,
    TruncatedFile,
)
from pytest_dataloader_faults.outcomes import (
    FaultFacts,
    FileCounts,
    FiringKind,
    Pass,
    WorkerDeath,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.fault_facts import unfired
from pytest_dataloader_faults.outcomes.judge.errors import unclear
from support.facts import EIO, KILLED, TRUNCATED, fired, map_reference, ordinary, raised
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
    one = Pass(exception=shadow, deaths=(WorkerDeath(1, 4711, exitcode),))
    kind = FiringKind.DEATH if fault is KILLED else FiringKind.CALL
    return replace(ordinary(one, fired(fault, call=call, kind=kind)), passes=(one,))


@rows("shadow", SHADOWS, ids=lambda each: each.type)
@rows(("fault", "call", "exitcode", "verdict"), CASES)
def test_the_verdict_is_the_deaths(fault, call, exitcode, verdict, shadow):
    """Whichever error of torch's came first, the verdict and its sentence are the same."""
    judgements = {
        (each.verdict, each.sentence)
        for each in (
            _outcome(fault, call, exitcode, one).judge(map_reference())
            for one in (shadow, SHADOWS[0])
        )
    }
    assert {each for each, _ in judgements} == {verdict}
    assert len(judgements) == 1


@rows(
    ("fault", "exitcode", "expected"),
    [
        (
            TRUNCATED,
            BUS,
            "worker 1 was killed by SIGBUS: it accessed a memory-mapped file beyond the end",
        ),
        (EIO, -signal.SIGKILL, "worker 1 was killed by SIGKILL, which no fault sent"),
        (
            EIO,
            3,
            "worker 1 exited with status 3, and the loader's exception does not say that its",
        ),
    ],
)
def test_the_sentence_says_who_died_and_how(fault, exitcode, expected):
    """The first sentence names the worker, how it ended, and what that came of."""
    judgement = _outcome(fault, "openat", exitcode, SHADOWS[0]).judge(map_reference())

    assert judgement.sentence.startswith(expected)


@rows("shadow", SHADOWS, ids=lambda each: each.type)
@rows(
    ("exitcode", "expected"),
    [
        (-37, "worker 1 was killed by signal 37"),
        (0, "worker 1 exited with status 0"),
        (-signal.SIGKILL, "worker 1 was killed by SIGKILL, sent by the dataset itself or by"),
    ],
)
def test_a_death_without_a_fault_is_told_as_one(exitcode, expected, shadow):
    """The first sentence is about the worker, and not about the error that came of its death."""
    one = Pass(exception=shadow, deaths=(WorkerDeath(1, 4711, exitcode),))
    judgement = ordinary(one).judge(map_reference())

    assert judgement.verdict == "broken"
    assert judgement.sentence.startswith(f"fails without any fault: {expected}")
    assert not shadow.message or shadow.message not in judgement.sentence


def test_one_unclear_death_is_enough():
    """Another worker's death of a mapping does not excuse that one crashed."""
    outcome = _outcome(EIO, "mmap", BUS, SHADOWS[0])
    both = (*outcome.deaths, WorkerDeath(0, 4710, -signal.SIGSEGV))
    outcome = replace(outcome, passes=(replace(outcome.passes[0], deaths=both),))

    judgement = outcome.judge(map_reference())

    assert judgement.verdict == "failed_unclearly"
    assert judgement.sentence.startswith("worker 0 was killed by SIGSEGV")


def test_deaths_are_kept_as_plain_data():
    """An outcome with deaths is the same after a journey through JSON."""
    outcome = _outcome(EIO, "mmap", BUS, SHADOWS[0])

    assert Outcome.from_dict(outcome.to_dict()) == outcome


@pytest.mark.parametrize("number", [signal.SIGRTMIN + 3, signal.SIGKILL])
def test_a_signal_is_named_by_its_number_if_it_has_no_name(number):
    """A program can send any signal, and a real-time one has a number alone."""
    name = f"signal {number}" if number > signal.SIGRTMIN else "SIGKILL"

    assert str(WorkerDeath(0, 4711, -number)) == f"worker 0 was killed by {name}"


FILES = {"/data/0.bin": FileCounts(1, 2, 3)}
WORKERS = [WorkerFacts(worker=each, pid=100 + each, fetches=4, files=FILES) for each in range(2)]


@rows(
    ("fault", "reached", "reason"),
    [
        (faults.ReadError("*.bin", nth=9), 3, "none satisfied its triggers"),
        (faults.TruncatedFile("*.bin", keep=10_000), 3, "each is empty, or no larger than keep"),
        (faults.CorruptedFile("*.bin"), 3, "each is empty"),
        (faults.DescriptorExhaustion(headroom=900), 3, "Lower headroom"),
        (faults.ShortRead("*.bin", max_bytes=100), 0, "a read of more than max_bytes=100"),
        (faults.ShortWrite("*.bin", max_bytes=100), 0, "a write of more than max_bytes=100"),
        (
            faults.ReadError("*.bin", workers=(7,)),
            0,
            "for workers [7], and the loader's are [0, 1]",
        ),
        (faults.WorkerKilled(worker=5), 0, "for workers [5], and the loader's are [0, 1]"),
        (faults.WorkerKilled(at=50), 0, "worker 0: 4, worker 1: 4"),
        (faults.WorkerKilled(at=50), 0, "due at fetch 50 of a worker, and worker 0 made 4. Lower"),
        (faults.WorkerHung(at=9, worker=None), 0, "worker 0 made 4, worker 1 made 4. Lower at"),
        (faults.PinMemoryThreadDeath(), 0, "which takes pin_memory=True and an accelerator"),
        (faults.WriteError("*.pt"), 0, "no worker wrote to a data file"),
        (faults.WorkerKilled(writing="*.pt"), 0, "no worker wrote to a data file"),
        (faults.ReadError("0.bin"), 0, "globs match absolute paths: '*/0.bin' would match. "),
        (faults.ReadError("./0.bin"), 0, "globs match absolute paths: '*/0.bin' would match. "),
        (faults.ReadError("7.bin"), 0, "'*/7.bin' would match such a file"),
        (
            faults.ReadError("*.{bin,jpg}"),
            0,
            "braces are no wildcards, as in '*.{bin,jpg}': give a",
        ),
        (faults.ReadError("*.jpg"), 0, "no operation matched it. Batches"),
    ],
    ids=repr,
)
def test_the_reason(fault, reached, reason):
    """It names what to change."""
    text = unfired([FaultFacts(fault, reached, 0)], WORKERS, "kernel")
    assert text.startswith(f"{fault!r} never fired: ")
    assert reason in text


@rows(
    ("fault", "used", "is_told"),
    [
        (faults.ReadError("*.bin", workers=(0,)), FILES, True),
        (faults.WorkerKilled(reading="*.bin"), FILES, True),
        (faults.ReadError("*.bin", workers=(0,)), {}, False),
        (faults.ReadError("*.jpg", workers=(0,)), FILES, False),
        (faults.ReadError("*.bin"), FILES, False),
    ],
)
def test_what_the_loaders_own_process_used_is_told_of_faults_in_workers(fault, used, is_told):
    """Such as files that the constructor reads, and no worker does."""
    main = WorkerFacts(worker=None, pid=99, fetches=0, files=used)
    text = unfired([FaultFacts(fault)], [main, *WORKERS], "kernel")

    assert ("in workers only, and the loader's own process used the file" in text) == is_told


@rows(
    ("fault", "listed"),
    [
        (faults.ReadError("*.jpg"), ["/data/0.bin"]),
        (faults.WorkerKilled(reading="*.jpg"), ["/data/0.bin"]),
        (faults.WorkerKilled(at=50), []),
        (faults.PinMemoryThreadDeath(), []),
        (faults.ConnectError(), ["No worker made a TCP connection"]),
    ],
)
def test_what_is_listed_is_what_the_fault_is_about(fault, listed):
    """Which files were opened is no reason for a death, or a connection, that did not come."""
    text = unfired([FaultFacts(fault)], WORKERS, "kernel")
    assert [
        each for each in ("/data/0.bin", "No worker made a TCP connection") if each in text
    ] == listed


@rows(
    ("fault", "engine", "is_told"),
    [
        (faults.ReadError("*.jpg"), "python", True),
        (faults.ReadError("*.jpg"), "kernel", False),
        (faults.WorkerKilled(at=50), "python", False),
    ],
)
def test_what_the_python_engine_does_not_see_is_told(fault, engine, is_told):
    """It matters to faults of files alone."""
    text = unfired([FaultFacts(fault)], WORKERS, engine)
    assert ("The python engine sees only what Python code opens" in text) == is_told


def test_a_loader_that_cannot_start():
    """Its error is the reason, whether or not workers had started by then."""
    facts, error = [FaultFacts(faults.ReadError("*.jpg"), 0, 0)], "OSError: no room"
    assert str(unfired(facts, [], "kernel", error)).endswith("fired: iter(loader) raised " + error)
    started = str(unfired(facts, WORKERS, "kernel", error))
    assert f"fired: iter(loader) raised {error}. no operation matched it" in started


_FRAMES = """Traceback (most recent call last):
  File "/data/reader.py", line 7, in read
    {}
TypeError: only length-1 arrays can be converted to Python scalars
"""
_WHILE_HANDLING = "During handling of the above exception, another exception occurred:\n\n"


def _sentence(kind: Fault, path: str | None = "/data/a.rec", **options: Any) -> str:
    error = replace(raised("ValueError", "bad sample"), **options)
    facts = fired(kind, path=path)
    outcome = ordinary(Pass(exception=error), facts)
    found = unclear(outcome, Contract(detects_corruption=True))
    assert found is not None
    return found[1]


@rows(
    ("fault", "words"),
    [
        (TruncatedFile(), "the content of a.rec is bad (it ended early)"),
        (CorruptedFile(), "the content of a.rec is bad (bytes of it are damaged)"),
        (ShortRead(), "a read of a.rec gave fewer bytes than it was asked for"),
        (ReadError(), "its cause is [Errno 5] Input/output error"),
    ],
)
def test_what_happened_is_told_in_words_of_files(fault, words):
    """The name of a fault's class means nothing to who reads the message."""
    assert _sentence(fault).startswith(f"ValueError does not say that {words}. ")


def test_of_bad_content_there_is_no_error_to_raise_from():
    """The advice is to say what is wrong."""
    at_raise = _FRAMES.format("raise ValueError(path)")
    assert "Raise it from the original exception" in _sentence(ReadError(), text=at_raise)
    assert "Raise it from" not in _sentence(TruncatedFile())
    assert "Say what is wrong in its message, or put the file's path there" in _sentence(
        TruncatedFile()
    )


@rows(
    ("line", "chain", "says"),
    [
        ("width = int(np.fromfile(file, np.int32, count=1))", "", "The reader hid the error"),
        ("raise TypeError(message)", "", "Raise it from the original exception"),
        (
            "width = int(header)",
            "OSError: other\n\n" + _WHILE_HANDLING,
            "Raise it from the original exception",
        ),
    ],
)
def test_an_error_that_the_reader_dropped_has_no_original(line, chain, says):
    """Nothing was caught if the error came of a computation, and of no handler."""
    text = chain + _FRAMES.format(line)

    assert says in _sentence(ReadError(), type="TypeError", text=text)


def test_one_of_several_files_is_not_named():
    """It is not known which of them the error is about."""
    outcome = ordinary(
        Pass(exception=raised("ValueError", "bad")),
        (*fired(TruncatedFile()), *fired(TruncatedFile(), path="/data/b.rec")),
    )
    found = unclear(outcome, Contract())

    assert found is not None
    assert "the content of a file is bad (it ended early)" in found[1]


@rows("name", KINDS)
def test_no_class_of_a_fault_is_given_as_the_cause(name):
    """Each kind has words, or an errno."""
    required = {"WorkerKilled": {"at": 1}}.get(name, {})

    assert name not in _sentence(KINDS[name](**required), path=None)


class UnprintableError(RuntimeError):
    """Takes a number, and gets a text from torch."""

    def __init__(self, number: Any) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"error {self.number:d}"


class _Sounds(Dataset[Any]):
    """Sounds, as torchaudio and others read them."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.wav"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(soundfile.read(self.paths[index])[0])


class _RaisesUnprintable(_Sounds):
    def __getitem__(self, index: int) -> Any:
        try:
            return torch.tensor(list(self.paths[index].read_bytes()))
        except OSError as error:
            raise UnprintableError(error.errno) from None


class _SaysWhich(_Sounds):
    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except soundfile.LibsndfileError as error:
            raise OSError(str(error)) from error


@pytest.fixture(name="sounds")
def _sounds(tmp_path):
    for number in range(4):
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(range(number, number + 200)))
    return tmp_path


@pytest.mark.parametrize("kind", [_Sounds, _RaisesUnprintable])
def test_an_error_that_torch_cannot_rebuild_is_told_so(kind, sounds):
    """The path was in its message; nobody is sent to put it there."""
    (result,) = check_dataset(lambda: kind(sounds), only="open-error", on_fail=None)
    sentence = result.explanation.partition("\n")[0]

    assert result.verdict == "failed_unclearly"
    assert result.outcome.exception.unprintable in ("TypeError", "ValueError")
    assert "the exception's class cannot be rebuilt from its message" in sentence
    assert f"its __str__ raises {result.outcome.exception.unprintable}" in sentence
    assert "path in its message" not in sentence
    assert "raise OSError(str(error)) from error" in sentence


def test_the_advice_for_such_an_error_helps(sounds):
    """What is raised instead names the file."""
    (result,) = check_dataset(lambda: _SaysWhich(sounds), only="open-error", on_fail=None)

    assert (result.verdict, result.outcome.exception.unprintable) == ("failed_cleanly", "")
