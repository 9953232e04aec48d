"""What a failure is attributed to, and the advice that goes with it."""

import textwrap
from dataclasses import replace

from pytest_dataloader_faults import Verdict
from pytest_dataloader_faults.battery.checks import CAUSE_RULES
from pytest_dataloader_faults.faults import (
    CorruptedFile,
    OpenError,
    ShortRead,
    ThreadExhaustion,
    WriteError,
)
from pytest_dataloader_faults.faults.base import LISTING
from pytest_dataloader_faults.outcomes import (
    Activity,
    AtDeadline,
    FileCounts,
    Finding,
    FiringKind,
    Pass,
    WorkerDeath,
    WorkerFacts,
    Wrong,
)
from pytest_dataloader_faults.outcomes.judge.at_rest import length_clause
from pytest_dataloader_faults.outcomes.judge.causes import (
    FAILS_INTERMITTENTLY,
    INTERMITTENT,
    likely_cause,
)
from pytest_dataloader_faults.outcomes.stages import START, SharedConnection
from support.causes import all_causes
from support.facts import (
    EIO,
    EPOCH_1,
    IN_LOCK,
    TRUNCATED,
    batch_of,
    fired,
    map_reference,
    of_map,
    ordinary,
    raised,
    revised,
    unfired,
)
from support.judging import judge_trial
from support.rows import rows

PASSES = ("survived", "failed_cleanly")
FAULT_FREE = ordinary(Pass(EPOCH_1, complete=True))
STREAM = revised(FAULT_FREE, kind="iterable")


def _trial(fault, kind=FiringKind.CALL, path="/data/a.rec"):
    return ordinary(Pass(EPOCH_1), fired(fault, kind=kind, path=path))


def _cause(outcome, verdict, wrong=None, fault_free=FAULT_FREE, cause=None):
    finding = Finding(Verdict(verdict), "any words: missing", cause, wrong)
    return likely_cause(outcome, finding, fault_free, CAUSE_RULES)


def test_each_likely_cause_has_a_fix():
    """It is one imperative sentence, which a summary shows on its own line."""
    texts = [cause.fix for cause in all_causes()]
    assert [text for text in texts if not text or text.endswith(".") or "\n" in text] == []


def test_texts_of_causes(golden):
    causes_with_fixes = sorted(all_causes(), key=lambda cause: bool(cause.advice))
    texts = {cause.phrase: "" for cause in sorted(causes_with_fixes)}
    for cause in causes_with_fixes:
        text = f"{cause.advice}\nfix: {cause.fix}".strip()
        if text not in texts[cause.phrase] and (cause.advice or not texts[cause.phrase]):
            texts[cause.phrase] += f"{text}\n"
    golden("causes", texts)


@rows("verdict", [each for each in Verdict if each not in PASSES])
def test_each_verdict_has_a_cause(verdict):
    """A pass has none."""
    assert _cause(_trial(EIO), verdict).phrase
    assert likely_cause(_trial(EIO), Finding(Verdict.SURVIVED, "x"), FAULT_FREE) is None


READS = revised(FAULT_FREE, processes=(WorkerFacts(0, 7, 1, {"/t/a.pt": FileCounts(1, 1, 9)}),))
WRITES = revised(FAULT_FREE, processes=(WorkerFacts(0, 7, 1, {"/t/a.pt": FileCounts(1, 1, 9, 1)}),))
TORN = WriteError("*.pt")
GONE = OpenError("*.rec", errno=2)
DIED = raised("RuntimeError", "DataLoader worker (pid 7) exited unexpectedly")
NOT_PICKLED = raised("TypeError", "cannot pickle 'TextIOWrapper' instances")
UNPICKLED = raised("UnpicklingError", "pickle data was truncated")
NO_SAMPLES = raised("ValueError", "No samples found in dataset; perhaps you have fewer shards")


def _with_file(path, counts, shared=()):
    worker = WorkerFacts(0, 7, 1, {path: counts}, shared_offset_files=shared)
    return revised(ordinary(Pass(EPOCH_1)), processes=(worker,))


def _raises(error, **facts):
    return revised(ordinary(Pass(EPOCH_1, exception=error)), **facts)


def _writes_fail(text, fault=TORN):
    error = raised("RuntimeError", text)
    return ordinary(Pass(EPOCH_1, exception=error), fired(fault, path="/t/a.pt"))


def _mapped(path, fault=EIO, call="mmap", exitcode=-7, frame="datasets/table.py"):
    """A trial whose process was ended by a signal in *frame* while *path* was mapped."""
    (facts,) = fired(fault, path=path)
    firings = tuple(replace(each, call=call) for each in facts.firings)
    outcome = ordinary(Pass(EPOCH_1), (replace(facts, firings=firings),))
    stderr = f'  File "/venv/lib/python3.11/site-packages/{frame}", line 129 in memory_map'
    return revised(outcome, exitcode=exitcode, stderr=stderr)


def _imports(name):
    """The processes of a trial in which *name* of a library is there."""
    return (WorkerFacts(0, 7, 1, {}, settings=(name,)),)


def _of_tar(fault, error=None, name="webdataset.WebDataset"):
    epochs = (Pass(EPOCH_1, exception=error),)
    return revised(_trial(fault, path="/d/a.tar"), epochs=epochs, processes=_imports(name))


def _missing_chunk(path, fault=GONE, metadata=None, name="zarr.storage.LocalStore"):
    (worker,) = _imports(name)
    files = {metadata: FileCounts(1, 1, 9)} if metadata else {}
    return revised(_trial(fault, path=path), processes=(replace(worker, files=files),))


def _unpickling(raised_in):
    """A spawned worker exits while it loads the dataset, and prints where."""
    printed = f"""File "spawn.py", line 9, in _main
    self = reduction.pickle.load(from_parent)
File "x.py", line 1, in {raised_in}
ValueError: no
"""
    epoch = Pass(EPOCH_1, exception=DIED, deaths=(WorkerDeath(0, 7, 1),))
    return revised(ordinary(epoch), start_method="spawn", stderr=printed)


def _exits(method, exitcode=1, error=UNPICKLED):
    epoch = Pass(EPOCH_1, exception=error, deaths=(WorkerDeath(0, 7, exitcode),))
    return revised(ordinary(epoch), start_method=method)


def _with_workers(count):
    return revised(STREAM, processes=tuple(WorkerFacts(each, 7, 1, {}) for each in range(count)))


def _lacks_thread(exitcode=None, error=DIED, **facts):
    """A trial in which no thread started, and a worker that exited by *exitcode*."""
    deaths = () if exitcode is None else (WorkerDeath(1, 4711, exitcode),)
    epoch = Pass(EPOCH_1, exception=error, deaths=deaths)
    outcome = ordinary(epoch, fired(ThreadExhaustion(), path=None, call="clone3"))
    return revised(outcome, **{"epochs": (epoch,), **facts})


def _started(method):
    return revised(ordinary(Pass(EPOCH_1)), start_method=method)


_TEXT = "Caught ValueError in DataLoader worker process 0."
_LOADS = 'File "reduction.py", line 9, in rebuild\n    return pickle.loads(buf)\nEOFError\n'
_SENDS = "    ForkingPickler(file, protocol).dump(obj)\nValueError: no\n"
_GUARDS = (
    "AttributeError: module '__mp_main__' has no attribute 'Mine'",
    "AttributeError: Can't get attribute 'Mine' on <module '__mp_main__' from '/s.py'>",
)
NO_BLAS_THREAD = "OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource"
IN_ARROW = """Process 7 (sleeping, in futex_do_wait):
  File "x.py", line 9 in __getitem__
  File "/site-packages/pyarrow/parquet/core.py", line 1606 in read
"""
AT_START = {"phase": START, "timed_out": True}
FAILED_READ = Pass(EPOCH_1, exception=raised("OSError", "[Errno 5] Input/output error"))
LATER = revised(_trial(EIO), epochs=(FAILED_READ, Pass(EPOCH_1)))
SHARED = _with_file("/data/a.rec", FileCounts(0, 3, 9), shared=("/data/a.rec",))

WRONG_SAMPLES = [
    ("a stream is repeated", STREAM, Wrong.REPEATED),
    ("each worker has the same", STREAM, Wrong.SAME_IN_EACH_WORKER),
    ("no fault, others", FAULT_FREE, Wrong.DIFFERS),
    ("an error, a substitute", _trial(EIO), Wrong.SUBSTITUTED),
    ("a truncation, a substitute", _trial(TRUNCATED), Wrong.SUBSTITUTED),
    ("an error, others", _trial(EIO), Wrong.DIFFERS),
    ("a truncation, zeros", _trial(TRUNCATED), Wrong.IDENTICAL),
    ("an error, none", _trial(EIO), Wrong.MISSING),
    ("a truncation, none", _trial(TRUNCATED), Wrong.MISSING),
    ("a short read, others", _trial(ShortRead()), Wrong.DIFFERS),
    ("damage, others", _trial(CorruptedFile()), Wrong.DIFFERS),
    ("damage, a substitute", _trial(CorruptedFile()), Wrong.SUBSTITUTED),
    ("damage, none", _trial(CorruptedFile()), Wrong.MISSING),
    ("a copy, others", _trial(TRUNCATED, FiringKind.REPLACED), Wrong.DIFFERS),
    ("an error in an earlier epoch", LATER, Wrong.DIFFERS),
    ("a truncated table, none", _trial(TRUNCATED, path="/d/a.csv"), Wrong.MISSING),
    ("a truncated archive, none", _of_tar(TRUNCATED), Wrong.MISSING),
    ("an error of an archive, none", _of_tar(EIO), Wrong.MISSING),
    ("of wids", _of_tar(EIO, name="wids.ShardListDataset"), Wrong.MISSING),
    ("a damaged archive", _of_tar(CorruptedFile()), Wrong.MISSING),
    ("a failed write, others", _trial(TORN), Wrong.DIFFERS),
    ("a write that did not fail", ordinary(Pass(EPOCH_1), unfired(TORN)), Wrong.DIFFERS),
    ("a truncated mapping", _mapped("/d/a.npy", TRUNCATED, exitcode=0), Wrong.DIFFERS),
    ("a truncated read", _mapped("/d/a.npy", TRUNCATED, "read", 0), Wrong.DIFFERS),
    ("a chunk in a folder of Zarr", _missing_chunk("/d/x.zarr/c/3/0"), Wrong.DIFFERS),
    (
        "a chunk below its metadata",
        _missing_chunk("/d/x/c/3/0", metadata="/d/x/zarr.json"),
        Wrong.DIFFERS,
    ),
    (
        "a chunk beside its metadata",
        _missing_chunk("/d/x/3.0", metadata="/d/x/.zarray"),
        Wrong.DIFFERS,
    ),
    (
        "metadata of another folder",
        _missing_chunk("/d/y/c/3/0", metadata="/d/x/zarr.json"),
        Wrong.DIFFERS,
    ),
    (
        "a chunk that TensorStore reads",
        _missing_chunk("/d/x.zarr/c/3/0", name="tensorstore.open"),
        Wrong.DIFFERS,
    ),
    ("a chunk with an error", _missing_chunk("/d/x.zarr/c/3/0", EIO), Wrong.DIFFERS),
    ("after a fork", _started("fork"), Wrong.DIFFERS),
    ("after a start", _started("forkserver"), Wrong.DIFFERS),
    ("another order after a fork", _started("fork"), Wrong.REORDERED),
    ("another order after a start", _started("spawn"), Wrong.REORDERED),
]
"""What was done, what is wrong with the samples, and what is known besides."""
OTHERS = [
    ("an earlier error and the recovery", LATER, "poisoned"),
    ("one error and the recovery", revised(_trial(EIO), epochs=(FAILED_READ,)), "poisoned"),
    ("a failed write and the recovery", _trial(TORN), "poisoned"),
    ("a failed write and a hang", revised(_trial(TORN), timed_out=True), "poisoned"),
    ("torch.save hides an error", _writes_fail("unexpected pos 64 vs 0"), "failed_unclearly"),
    ("torch.save does not", _writes_fail("No space left on device"), "failed_unclearly"),
    ("not of a write", _writes_fail("unexpected pos 64 vs 0", EIO), "failed_unclearly"),
    ("a promise", _trial(EIO), "contract_broken"),
    ("a mapped table", _mapped("/d/a.arrow"), "crashed"),
    ("a truncated table", _mapped("/d/a.arrow", TRUNCATED), "crashed"),
    ("a table, another signal", _mapped("/d/a.arrow", exitcode=-9), "crashed"),
    ("another ending", _mapped("/d/a.arrow.rec"), "crashed"),
    ("another library", _mapped("/d/a.arrow", frame="pyarrow/ipc.py"), "crashed"),
    ("a truncated array", _mapped("/d/a.npy", TRUNCATED), "crashed"),
    ("an archive without samples", _of_tar(EIO, NO_SAMPLES), "failed_unclearly"),
    ("another error of it", _of_tar(EIO, raised("ValueError", "no")), "failed_unclearly"),
    ("no archive", _raises(NO_SAMPLES), "failed_unclearly"),
    (
        "LMDB is open",
        _raises(raised("Error", "The environment '/data' is already open in this process.")),
        "fails_without_fault",
    ),
    (
        "fsspec is open",
        _raises(raised("RuntimeError", "This class is not fork-safe")),
        "fails_without_fault",
    ),
    (
        "another library is",
        _raises(raised("RuntimeError", "this library is not fork-safe")),
        "fails_without_fault",
    ),
    ("not pickled", _raises(NOT_PICKLED, start_method="spawn"), "fails_without_fault"),
    ("not pickled, a fork", _raises(NOT_PICKLED, start_method="fork"), "fails_without_fault"),
    (
        "a truncated pickle",
        _raises(UNPICKLED, start_method="spawn", faults=fired(TRUNCATED)),
        "failed_unclearly",
    ),
    (
        "it was receiving",
        _raises(replace(raised("EOFError", ""), text=_LOADS), start_method="spawn"),
        "fails_without_fault",
    ),
    (
        "it was sending",
        _raises(replace(raised("ValueError", "no"), text=_SENDS), start_method="spawn"),
        "fails_without_fault",
    ),
    *(
        (f"an exit, {method} {code}", _exits(method, code), "fails_without_fault")
        for method, code in (("fork", 0), ("spawn", 1), ("forkserver", -37))
    ),
    (
        "an error before an exit",
        _exits("fork", error=raised("ValueError", _TEXT)),
        "fails_without_fault",
    ),
    *(
        (f"not unpickled, {name}", _unpickling(name), "fails_without_fault")
        for name in ("__getattr__", "__setstate__", "rebuild")
    ),
    *(
        (text, _raises(DIED, start_method="forkserver", stderr=text), "fails_without_fault")
        for text in (*_GUARDS, "ModuleNotFoundError: No module named 'my.data'")
    ),
    ("no thread, a hang", _lacks_thread(error=None, **AT_START), "hung"),
    (
        "no thread of OpenBLAS, a hang",
        _lacks_thread(error=None, stderr=NO_BLAS_THREAD, **AT_START),
        "hung",
    ),
    ("no thread of Arrow, a hang", _lacks_thread(error=None, stacks=IN_ARROW, **AT_START), "hung"),
    ("no thread of OpenBLAS, an exit", _lacks_thread(0, stderr=NO_BLAS_THREAD), "failed_unclearly"),
    ("no thread, an abort", _lacks_thread(-6), "failed_unclearly"),
    (
        "no thread of OpenBLAS, an error",
        _lacks_thread(error=raised("ValueError", "no sample"), stderr=NO_BLAS_THREAD),
        "failed_unclearly",
    ),
    *(
        (
            f"at the deadline, {activity.value}",
            revised(_trial(EIO), timed_out=True, at_deadline=AtDeadline(activity)),
            "hung",
        )
        for activity in Activity
    ),
]
"""What was done, and the verdict."""
HANDLES = [
    ("an HDF5 file", FAULT_FREE, _with_file("/data/a.h5", FileCounts(0, 3, 9))),
    ("an LMDB environment", FAULT_FREE, _with_file("/data/data.mdb", FileCounts(0, 1, 0))),
    ("an offset", FAULT_FREE, SHARED),
    ("of the worker", FAULT_FREE, _with_file("/data/a.h5", FileCounts(1, 3, 9))),
    ("never read", FAULT_FREE, _with_file("/data/a.h5", FileCounts(0, 0, 0))),
    ("bad content, an offset", _trial(TRUNCATED, FiringKind.REPLACED), SHARED),
    (
        "bad content, no offset",
        _trial(TRUNCATED, FiringKind.REPLACED),
        _with_file("/data/a.rec", FileCounts(0, 3, 9)),
    ),
    ("a failed write", _trial(TORN), READS),
    ("a failed read", _trial(EIO), WRITES),
    ("as many workers", _with_workers(2), _with_workers(2)),
    ("more workers", _with_workers(3), _with_workers(2)),
]
"""What was done when samples differ, and in the fault-free run."""
BY_WORKERS = {
    "a shared connection": {"notes": (SharedConnection("a connection to 127.0.0.1:9000"),)},
    "a file not written yet": {
        "processes": (WorkerFacts(1, 8, 1, {}, unwritten_files=("/data/all.bin",)),)
    },
}
"""What workers share without a fault."""
THREADS = {
    "a thread": FAULT_FREE,
    "a thread, spawned": revised(FAULT_FREE, start_method="spawn"),
    "a thread after a fault": _trial(EIO),
}
"""What hangs in a lock."""


def _causes():
    for title, outcome, wrong in WRONG_SAMPLES:
        yield title, _cause(outcome, "corrupted", wrong)
    for title, outcome, verdict in OTHERS:
        yield title, _cause(outcome, verdict)
    for title, outcome, fault_free in HANDLES:
        yield f"before: {title}", _cause(outcome, "corrupted", Wrong.DIFFERS, fault_free)
    for title, fault_free in (("read", READS), ("written", WRITES)):
        yield f"a file that is {title}", _cause(_trial(EIO), "poisoned", None, fault_free)
    for verdict in ("leaked", "failed_unclearly"):
        yield f"a failed write, {verdict}", _cause(_trial(TORN), verdict, None, WRITES)
    for cause in (INTERMITTENT, FAILS_INTERMITTENTLY):
        title = cause.phrase.partition(" ")[0]
        yield f"{title} intermittently", _cause(FAULT_FREE, "hung", cause=cause)
        yield f"{title}, an offset", _cause(FAULT_FREE, "hung", None, SHARED, cause=cause)
    for title, facts in BY_WORKERS.items():
        yield title, _cause(revised(FAULT_FREE, **facts), "corrupted", Wrong.DIFFERS)
    for title, outcome in THREADS.items():
        yield title, _cause(revised(outcome, **IN_LOCK), "hung")


def test_the_cause_follows_from_the_facts(golden):
    """With the first words of its advice, and whether that takes the place of the check's."""
    texts = {}
    for title, cause in _causes():
        assert title not in texts
        beginning = textwrap.shorten(cause.advice, 240, placeholder=" ...")
        place = "instead of the check's: " if cause.advice and not cause.is_general else ""
        texts[title] = f"{cause.phrase}\n{place}{beginning}\nfix: {cause.fix}"
    golden("causes_of_facts", texts)


@rows(
    ("fault", "call", "is_first", "fix"),
    [
        (GONE, LISTING, True, "compare the number of files"),
        (GONE, "newfstatat", True, "raise FileNotFoundError"),
        (GONE, LISTING, False, "raise the error instead of"),
        (OpenError("*.rec", errno=5), "openat", True, "raise the error instead of"),
    ],
)
def test_files_are_counted_if_one_is_missing_before_the_dataset_is_created(
    fault, call, is_first, fix
):
    epoch = of_map((0, 1), delivered=(batch_of((0, 1), ("d1",)),))
    outcome = revised(ordinary(epoch, fired(fault, call=call)), before_init=is_first)
    finding = judge_trial(outcome, map_reference())
    cause = likely_cause(outcome, finding, FAULT_FREE)

    assert finding.wrong is Wrong.MISSING
    assert cause.fix.startswith(fix), cause


@rows(
    ("length", "clause"),
    [(9, "has 9 samples instead of 8"), (1, "has only 1 of 8 samples"), (None, "has only 0 of 8")],
)
def test_the_length_of_a_dataset_from_damaged_files(length, clause):
    reference = replace(map_reference(), readable=8)

    assert length_clause(Pass(EPOCH_1, length=length), reference).startswith(clause)
