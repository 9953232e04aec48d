"""What a failure is attributed to, and the advice that goes with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Verdict
from pytest_dataloader_faults.battery.checks import CAUSE_RULES, _epochs
from pytest_dataloader_faults.battery.checks.before_init.rules import length_clause
from pytest_dataloader_faults.faults import CorruptedFile, OpenError, ShortRead, WriteError
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
from pytest_dataloader_faults.outcomes.judge import causes, draws, samples
from pytest_dataloader_faults.outcomes.judge.causes import (
    Clues,
    is_caught,
    is_silent_fault,
    likely_cause,
)
from support.causes import all_causes
from support.facts import (
    EIO,
    EPOCH_1,
    TRUNCATED,
    delivery,
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
IN_PLACE = "returns a substitute for an unreadable sample"
BEFORE = "uses a file that was opened before the fork"
TRUNCATION = "accepts a truncated file"
CAUGHT = Clues(is_caught=True)


def _trial(fault, kind=FiringKind.CALL, path="/data/a.rec"):
    return ordinary(Pass(EPOCH_1), fired(fault, kind=kind, path=path))


def _cause(outcome, verdict, wrong=None, fault_free=FAULT_FREE, clues=None, cause=None):
    finding = Finding(Verdict(verdict), "any words: missing", cause, wrong)
    return likely_cause(outcome, finding, fault_free, clues or Clues(), CAUSE_RULES)


@rows(
    ("outcome", "wrong", "clues", "phrase", "advice"),
    [
        (STREAM, Wrong.REPEATED, None, "every sample", "get_worker_info"),
        (STREAM, Wrong.SAME_IN_EACH_WORKER, None, "every sample", "get_worker_info"),
        (FAULT_FREE, Wrong.DIFFERS, None, "different samples in workers", ""),
        (_trial(EIO), Wrong.SUBSTITUTED, None, IN_PLACE, "may_substitute"),
        (_trial(TRUNCATED), Wrong.SUBSTITUTED, CAUGHT, IN_PLACE, "may_substitute"),
        (_trial(TRUNCATED), Wrong.SUBSTITUTED, None, TRUNCATION, "number of bytes"),
        (_trial(EIO), Wrong.DIFFERS, None, IN_PLACE, "zeros"),
        (_trial(EIO), Wrong.DIFFERS, None, IN_PLACE, "np.fromfile"),
        (_trial(TRUNCATED), Wrong.IDENTICAL, CAUGHT, IN_PLACE, "zeros"),
        (_trial(TRUNCATED), Wrong.IDENTICAL, None, TRUNCATION, "do not catch"),
        (_trial(EIO), Wrong.MISSING, None, "skips samples", "may_skip"),
        (_trial(TRUNCATED), Wrong.MISSING, CAUGHT, "skips samples", "may_skip"),
        (_trial(TRUNCATED), Wrong.MISSING, None, TRUNCATION, "number of bytes"),
        (_trial(TRUNCATED), Wrong.DIFFERS, None, TRUNCATION, "number of bytes"),
        (_trial(ShortRead()), Wrong.DIFFERS, None, "accepts a short read", "open()"),
        (_trial(CorruptedFile()), Wrong.DIFFERS, None, "accepts damaged", "checksum"),
        (_trial(CorruptedFile()), Wrong.SUBSTITUTED, None, IN_PLACE, "may_substitute"),
        (
            _trial(TRUNCATED, FiringKind.REPLACED),
            Wrong.DIFFERS,
            None,
            TRUNCATION,
            "number of bytes",
        ),
    ],
)
def test_wrong_samples_have_a_cause(outcome, wrong, clues, phrase, advice):
    """It follows from what is wrong, the fault, and whether an error was caught."""
    cause = _cause(outcome, "corrupted", wrong, clues=clues)

    assert phrase in cause.phrase
    assert advice in cause.advice
    assert bool(advice) == bool(cause.advice)


@rows(
    ("outcome", "carried"),
    [
        (FAULT_FREE, draws.USED_UP),
        (FAULT_FREE, _epochs.SAME_AGAIN),
        (FAULT_FREE, samples.STOPS_EARLY),
        (_trial(TRUNCATED), samples.STOPS_EARLY),
        (_trial(EIO), samples.STOPS_EARLY),
    ],
)
def test_a_finding_may_know_its_cause(outcome, carried):
    """Then neither the fault nor whether an error was caught matters."""
    for clues in (Clues(), CAUGHT):
        cause = _cause(outcome, "corrupted", clues=clues, cause=carried)
        assert cause == carried


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


@pytest.mark.parametrize(("verdict", "is_mentioned"), [("hung", True), ("leaked", False)])
def test_a_wait_without_a_timeout_is_the_cause_of_a_hang(verdict, is_mentioned):
    """The client waits for a server, and nothing ends that wait."""
    worker = WorkerFacts(0, 7, 1, {}, tallies={"unlimited_waits": {"tcp://192.0.2.1:443": 1}})
    cause = _cause(revised(_trial(EIO), processes=(worker,)), verdict)

    assert (cause.phrase == "waits for a server without a timeout") == is_mentioned
    assert _cause(_trial(EIO), verdict).phrase != "waits for a server without a timeout"


READS = revised(FAULT_FREE, processes=(WorkerFacts(0, 7, 1, {"/t/a.pt": FileCounts(1, 1, 9)}),))
WRITES = revised(FAULT_FREE, processes=(WorkerFacts(0, 7, 1, {"/t/a.pt": FileCounts(1, 1, 9, 1)}),))


@rows(
    ("outcome", "verdict", "fault_free", "is_torn"),
    [
        (_trial(WriteError("*.pt"), "write"), "poisoned", READS, True),
        (revised(_trial(WriteError("*.pt"), "write"), timed_out=True), "poisoned", READS, False),
        (revised(_trial(EIO), timed_out=True), "poisoned", WRITES, False),
        (_trial(WriteError("*.pt"), "write"), "corrupted", READS, True),
        (_trial(WriteError("*.pt"), "write"), "leaked", WRITES, False),
        (_trial(WriteError("*.pt"), "write"), "failed_unclearly", WRITES, False),
        (_trial(EIO), "poisoned", WRITES, True),
        (_trial(EIO), "poisoned", READS, False),
        (_trial(EIO), "corrupted", WRITES, False),
        (ordinary(Pass(EPOCH_1), unfired(WriteError("*.pt"))), "corrupted", WRITES, False),
    ],
)
def test_a_partial_file_is_the_cause(outcome, verdict, fault_free, is_torn):
    """It is blamed after a failed write, and otherwise only if a writing dataset is poisoned."""
    cause = _cause(outcome, verdict, Wrong.DIFFERS, fault_free)

    assert (cause.phrase == "leaves a partially written file behind") == is_torn


@rows(
    ("fault", "text", "is_hidden"),
    [
        (WriteError("*.pt"), "unexpected pos 64 vs 0", True),
        (WriteError("*.pt"), "[Errno 28] No space left on device", False),
        (EIO, "unexpected pos 64 vs 0", False),
    ],
)
def test_a_stream_of_torch_hides_why_a_write_failed(fault, text, is_hidden):
    """The advice is about torch.save, not about what the dataset raises."""
    failed = Pass(EPOCH_1, exception=raised("RuntimeError", text))
    cause = _cause(ordinary(failed, fired(fault, path="/t/a.pt")), "failed_unclearly")

    assert ("torch.save a path" in cause.phrase, cause.overrides) == (is_hidden, is_hidden)


def test_an_error_in_an_earlier_epoch_stays_in_the_worker():
    """The failing epoch itself had no error. A single epoch does not show it."""
    failed = Pass(EPOCH_1, exception=raised("OSError", "[Errno 5] Input/output error"))
    later, alone = (
        revised(_trial(EIO), epochs=passes) for passes in ((failed, Pass(EPOCH_1)), (failed,))
    )
    stays = "The worker keeps something from the failed read"

    assert _cause(later, "corrupted", Wrong.DIFFERS).advice.startswith(stays)
    assert _cause(later, "poisoned").advice.startswith(stays)
    assert not _cause(alone, "corrupted", Wrong.DIFFERS).advice.startswith(stays)


def test_a_broken_promise_is_the_cause():
    """Without a fault, the dataset does not work at all."""
    promised = "fails although the contract promises survives=True"

    assert _cause(_trial(EIO), "contract_broken").phrase == promised
    assert _cause(FAULT_FREE, "fails_without_fault").phrase == "fails without a fault"


@pytest.mark.parametrize(("workers", "is_uneven"), [(2, False), (3, True)])
def test_the_number_of_workers_is_the_cause(workers, is_uneven):
    """It is blamed if it differs from that of the fault-free run."""
    facts = tuple(WorkerFacts(each, 7 + each, 1, {}) for each in range(3))
    outcome = revised(STREAM, processes=facts[:workers])
    cause = _cause(outcome, "corrupted", Wrong.MISSING, revised(STREAM, processes=facts[:2]))

    assert ("number of workers" in cause.phrase) == is_uneven


def _with_file(path, counts, error=None, shared=()):
    worker = WorkerFacts(0, 7, 1, {path: counts}, shared_offset_files=shared)
    return revised(ordinary(Pass(EPOCH_1, exception=error)), processes=(worker,))


@rows(
    ("fault_free", "advice", "overrides"),
    [
        (_with_file("/data/a.h5", FileCounts(0, 3, 9)), "open h5py.File in the worker", False),
        (
            _with_file("/data/data.mdb", FileCounts(0, 1, 0)),
            "self.pid != os.getpid(): self.env.close()",
            True,
        ),
        (
            _with_file("/data/a.bin", FileCounts(0, 3, 9), shared=("/data/a.bin",)),
            "a.bin was opened before the workers started",
            False,
        ),
    ],
)
def test_handle_from_before_the_fork_is_named(fault_free, advice, overrides):
    """The advice names its library. For LMDB, it replaces the advice of the check."""
    cause = _cause(FAULT_FREE, "corrupted", Wrong.DIFFERS, fault_free)

    assert (cause.phrase, cause.overrides) == (BEFORE, overrides)
    assert advice in cause.advice


def test_error_of_lmdb_is_recognized():
    """It is recognized even if the second open of its environment fails, before any read."""
    error = raised("Error", "The environment '/data' is already open in this process.")
    outcome = ordinary(Pass(EPOCH_1, exception=error))

    assert "py-lmdb refuses" in _cause(outcome, "fails_without_fault").advice


@pytest.mark.parametrize("counts", [FileCounts(1, 3, 9), FileCounts(0, 0, 0)])
def test_file_that_workers_open_is_not_the_cause(counts):
    """Neither is a file that they do not read."""
    fault_free = _with_file("/data/a.h5", counts)

    assert _cause(FAULT_FREE, "corrupted", Wrong.DIFFERS, fault_free).phrase != BEFORE
    assert _cause(_trial(EIO), "corrupted", Wrong.SUBSTITUTED, fault_free).phrase == IN_PLACE


@pytest.mark.parametrize(("shared", "is_blamed"), [((), False), (("/data/a.rec",), True)])
def test_handle_is_the_cause_of_content_only_with_a_shared_offset(shared, is_blamed):
    """pread(2) and mappings of a file that was open before do not share an offset."""
    fault_free = _with_file("/data/a.rec", FileCounts(0, 3, 9), shared=shared)
    cause = _cause(_trial(TRUNCATED, FiringKind.REPLACED), "corrupted", Wrong.DIFFERS, fault_free)

    assert (cause.phrase == BEFORE) == is_blamed


FRAME = '  File "/venv/lib/python3.11/site-packages/{}", line 129 in memory_map'


def _died(path, fault=EIO, call="mmap", exitcode=-7, frame="datasets/table.py"):
    """A trial whose process was ended by a signal in *frame* while *path* was mapped."""
    (facts,) = fired(fault, path=path)
    firings = tuple(replace(each, call=call) for each in facts.firings)
    outcome = ordinary(Pass(EPOCH_1), (replace(facts, firings=firings),))
    return revised(outcome, exitcode=exitcode, stderr=FRAME.format(frame))


ARROW, MAPPED = "load the dataset with keep_in_memory=True", "compare os.path.getsize(path)"
GONE = OpenError("*.rec", errno=2)


@rows(
    ("outcome", "verdict", "wrong", "fix"),
    [
        (_died("/d/a.arrow"), "crashed", None, ARROW),
        (_died("/d/a.arrow", TRUNCATED), "crashed", None, ARROW),
        (_died("/d/a.arrow", exitcode=-9), "crashed", None, "find the line in the stack"),
        (_died("/d/a.arrow.rec"), "crashed", None, "find the line in the stack"),
        (
            _died("/d/a.arrow", frame="pyarrow/ipc.py"),
            "crashed",
            None,
            "find the line in the stack",
        ),
        (_died("/d/a.npy"), "crashed", None, "find the line in the stack"),
        (_died("/d/a.npy", TRUNCATED), "crashed", None, MAPPED),
        (_died("/d/a.npy", TRUNCATED, exitcode=0), "corrupted", Wrong.DIFFERS, MAPPED),
        (
            _died("/d/a.npy", TRUNCATED, "read", 0),
            "corrupted",
            Wrong.DIFFERS,
            "compare the size or",
        ),
        (_died("/d/a.npy", EIO, exitcode=0), "corrupted", Wrong.DIFFERS, "raise the error instead"),
    ],
)
def test_a_fix_is_for_the_library_that_is_recognized(outcome, verdict, wrong, fix):
    """The signal, the call and the file name identify it; lookalikes get the usual fix."""
    cause = _cause(outcome, verdict, wrong)

    assert cause.fix.startswith(fix), cause
    assert cause.overrides or fix not in (ARROW, MAPPED)


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
    epoch = of_map((0, 1), delivered=(delivery((0, 1), ("d1",)),))
    outcome = revised(ordinary(epoch, fired(fault, call=call)), before_init=is_first)
    finding = judge_trial(outcome, map_reference())
    cause = likely_cause(outcome, finding, FAULT_FREE)

    assert finding.wrong is Wrong.MISSING
    assert cause.fix.startswith(fix), cause


OF_TAR = "check that the tar archive ends with 1,024 zero bytes"
OF_HANDLER = "raise the error: with webdataset, remove handlers"
RAISE = "raise the error instead of skipping the sample"
NO_SAMPLES = raised("ValueError", "No samples found in dataset; perhaps you have fewer shards")


def _imports(name):
    """The processes of a trial in which *name* of a library is there."""
    return (WorkerFacts(0, 7, 1, {}, settings=(name,)),)


def _of_tar(fault, error=None, name="webdataset.WebDataset"):
    epochs = (Pass(EPOCH_1, exception=error),)
    return revised(_trial(fault, path="/d/a.tar"), epochs=epochs, processes=_imports(name))


@rows(
    ("outcome", "verdict", "clues", "fix"),
    [
        (_of_tar(TRUNCATED), "corrupted", None, OF_TAR),
        (_of_tar(TRUNCATED), "corrupted", CAUGHT, OF_HANDLER),
        (_of_tar(EIO), "corrupted", None, OF_HANDLER),
        (_of_tar(EIO, name="wids.ShardListDataset"), "corrupted", None, RAISE),
        (_of_tar(CorruptedFile()), "corrupted", None, "count the members"),
        (_trial(CorruptedFile()), "corrupted", None, RAISE),
        (_trial(EIO), "corrupted", None, RAISE),
        (_trial(TRUNCATED, path="/d/a.csv"), "corrupted", None, "compare the number of rows"),
        (_trial(TRUNCATED, path="/d/a.csv"), "corrupted", CAUGHT, RAISE),
        (_of_tar(EIO, NO_SAMPLES), "failed_unclearly", None, OF_HANDLER),
        (_of_tar(EIO, raised("ValueError", "no")), "failed_unclearly", None, "chain the error"),
        (
            ordinary(Pass(EPOCH_1, exception=NO_SAMPLES)),
            "failed_unclearly",
            None,
            "chain the error",
        ),
    ],
)
def test_an_archive_is_not_blamed_for_an_error_that_was_caught(outcome, verdict, clues, fix):
    """A handler of webdataset may have caught it."""
    cause = _cause(outcome, verdict, Wrong.MISSING, clues=clues)

    assert cause.fix.startswith(fix), cause
    assert ("warn_and_continue" in cause.advice) == (fix == OF_HANDLER)


MISSES = Finding(Verdict.CORRUPTED, "x", wrong=Wrong.MISSING)
RAISES = Finding(Verdict.FAILED_UNCLEARLY, "x")
RAISES_CLEARLY = Finding(Verdict.FAILED_CLEANLY, "x")


@rows(
    ("findings", "expected", "needed"),
    [
        ([MISSES, MISSES], True, 1),
        ([RAISES, MISSES], True, 2),
        ([None, MISSES], True, 2),
        ([RAISES, RAISES_CLEARLY], False, 2),
        ([RAISES_CLEARLY, MISSES], False, 1),
        ([None, None], False, 2),
    ],
)
def test_an_error_was_caught_if_the_effect_is_the_same(findings, expected, needed):
    """An error that reaches the loop was not caught, so no other trial is needed."""
    trials = (each and (FAULT_FREE, each) for each in findings)

    assert is_caught((FAULT_FREE, MISSES), trials, map_reference()) is expected
    assert len(list(trials)) == len(findings) - needed


def _missing_chunk(path, fault=GONE, metadata=None, name="zarr.storage.LocalStore"):
    (worker,) = _imports(name)
    files = {metadata: FileCounts(1, 1, 9)} if metadata else {}
    return revised(_trial(fault, path=path), processes=(replace(worker, files=files),))


@rows(
    ("outcome", "is_of_zarr"),
    [
        (_missing_chunk("/d/x.zarr/c/3/0"), True),
        (_missing_chunk("/d/x/c/3/0", metadata="/d/x/zarr.json"), True),
        (_missing_chunk("/d/x/3.0", metadata="/d/x/.zarray"), True),
        (_missing_chunk("/d/y/c/3/0", metadata="/d/x/zarr.json"), False),
        (_missing_chunk("/d/x.zarr.rec"), False),
        (_missing_chunk("/d/x.zarr/c/3/0", name="tensorstore.open"), False),
        (_missing_chunk("/d/x.zarr/c/3/0", fault=EIO), False),
        (_missing_chunk("/d/x.zarr/c/3/0", fault=OpenError("*", errno=5)), False),
    ],
)
def test_a_missing_chunk_of_zarr_has_its_own_advice(outcome, is_of_zarr):
    """No code catches an error: Zarr fills in chunks that have no file."""
    cause = _cause(outcome, "corrupted", Wrong.DIFFERS)

    assert cause.phrase == IN_PLACE
    assert ("fill_value" in cause.advice, cause.overrides) == (is_of_zarr, is_of_zarr)


@rows(
    ("message", "fix"),
    [
        ("This class is not fork-safe", "call fsspec.filesystem() in the worker"),
        ("this library is not fork-safe", "run the loop without the plugin"),
    ],
)
def test_a_file_system_from_before_the_fork_is_named(message, fix):
    """The message is fsspec's."""
    outcome = ordinary(Pass(EPOCH_1, exception=raised("RuntimeError", message)))

    assert _cause(outcome, "fails_without_fault").fix.startswith(fix)


@rows(
    ("outcome", "is_mentioned"),
    [(FAULT_FREE, True), (revised(FAULT_FREE, start_method="spawn"), False), (_trial(EIO), False)],
)
def test_threads_are_the_cause_after_a_fork(outcome, is_mentioned):
    """They are not blamed after a fault, or if workers are not forked."""
    cause = _cause(outcome, "hung", clues=Clues(waits_for_thread=True))

    assert ("thread" in cause.phrase, cause.overrides) == (is_mentioned, is_mentioned)


NOT_PICKLED = raised("TypeError", "cannot pickle 'TextIOWrapper' instances")


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_pickling_errors_are_recognized(method):
    """The advice offers two ways out: another class, or another start method."""
    outcome = revised(ordinary(Pass(EPOCH_1, exception=NOT_PICKLED)), start_method=method)
    cause = _cause(outcome, "fails_without_fault")
    assert cause.phrase == "cannot be pickled"
    assert "__getstate__" in cause.advice
    assert "loader={'multiprocessing_context': 'fork'}" in cause.advice


@pytest.mark.parametrize(
    "change", [{"start_method": "fork"}, {"start_method": "spawn", "faults": fired(TRUNCATED)}]
)
def test_the_start_is_not_the_cause_of_other_pickling_errors(change):
    """One example is a truncated file that contains a pickle."""
    error = raised("UnpicklingError", "pickle data was truncated")
    outcome = revised(ordinary(Pass(EPOCH_1, exception=error)), **change)
    assert "pickle" not in _cause(outcome, "failed_unclearly").phrase


LOADS = 'File "reduction.py", line 9, in rebuild\n    return pickle.loads(buf)\n'


@rows(
    ("error", "is_mentioned"),
    [
        (NOT_PICKLED, True),
        (replace(raised("EOFError", ""), text=f"{LOADS}EOFError\n"), False),
        (
            replace(
                raised("ValueError", "no"),
                text="    ForkingPickler(file, protocol).dump(obj)\nValueError: no\n",
            ),
            True,
        ),
    ],
    ids=["the error says so", "it was receiving", "it was sending"],
)
def test_pickle_is_the_cause_on_evidence(error, is_mentioned):
    """Workers also send their results through pickle."""
    outcome = revised(ordinary(Pass(EPOCH_1, exception=error)), start_method="spawn")

    assert is_mentioned == (_cause(outcome, "fails_without_fault").phrase == "cannot be pickled")


@rows("exitcode", [0, 1, -37])
@rows("method", ["fork", "spawn", "forkserver"])
def test_the_exit_of_a_worker_is_the_cause(method, exitcode):
    """It does not matter which error that became: here, a pickling error.

    It overrides the advice on start methods.
    """
    error = raised("UnpicklingError", "pickle data was truncated")
    epoch = Pass(EPOCH_1, exception=error, deaths=(WorkerDeath(0, 7, exitcode),))
    cause = _cause(revised(ordinary(epoch), start_method=method), "fails_without_fault")

    assert cause.phrase == "terminates a worker without a fault"
    assert cause.overrides == (method != "fork")
    assert "os._exit" in cause.advice


def test_an_error_that_a_worker_has_sent_is_the_cause():
    """Another worker that has died since is unrelated."""
    error = raised("ValueError", "Caught ValueError in DataLoader worker process 0.")
    epoch = Pass(EPOCH_1, exception=error, deaths=(WorkerDeath(1, 7, 1),))

    assert "fails without a fault" == _cause(ordinary(epoch), "fails_without_fault").phrase


@rows(
    ("raised_in", "advice"),
    [
        ("__getattr__", "AttributeError"),
        ("__setstate__", "Its __setstate__ raises"),
        ("rebuild", "pickle.dumps accepts"),
    ],
)
def test_unpickling_errors_are_recognized(raised_in, advice):
    """The output of the worker, which exited while it loaded the dataset, identifies the cause."""
    printed = f"""File "spawn.py", line 9, in _main
    self = reduction.pickle.load(from_parent)
File "x.py", line 1, in {raised_in}
ValueError: no
"""
    error = raised("RuntimeError", "DataLoader worker (pid 7) exited unexpectedly")
    epoch = Pass(EPOCH_1, exception=error, deaths=(WorkerDeath(0, 7, 1),))
    cause = _cause(
        revised(ordinary(epoch), start_method="spawn", stderr=printed), "fails_without_fault"
    )

    assert (cause.phrase, cause.overrides) == ("cannot be unpickled", True)
    assert advice in cause.advice


def test_a_class_below_the_guard_is_recognized():
    """Workers import the script without it. Python has two messages for that."""
    texts = (
        "AttributeError: module '__mp_main__' has no attribute 'Mine'",
        "AttributeError: Can't get attribute 'Mine' on <module '__mp_main__' from '/s.py'>",
    )
    error = raised("RuntimeError", "DataLoader worker (pid 7) exited unexpectedly")
    for text in texts:
        outcome = revised(
            ordinary(Pass(EPOCH_1, exception=error)), start_method="forkserver", stderr=text
        )
        cause = _cause(outcome, "fails_without_fault")
        assert (cause.phrase, "__name__ == '__main__'" in cause.advice) == (
            "is defined where workers cannot import it",
            True,
        )


def test_a_module_that_workers_do_not_find_is_named():
    """For example, pytest does not put the folder of the tests on the path."""
    text = "ModuleNotFoundError: No module named 'my.data'"
    error = raised("RuntimeError", "DataLoader worker (pid 7) exited unexpectedly")
    outcome = revised(ordinary(Pass(EPOCH_1, exception=error)), start_method="spawn", stderr=text)
    cause = _cause(outcome, "fails_without_fault")

    assert (cause.phrase, cause.overrides) == ("is defined where workers cannot import it", True)
    assert "cannot import my.data," in cause.advice


@pytest.mark.parametrize(("method", "is_mentioned"), [("fork", False), ("forkserver", True)])
def test_workers_that_import_modules_again_get_advice(method, is_mentioned):
    """Workers that are not forked lack what a test changed in modules."""
    outcome = revised(ordinary(Pass(EPOCH_1)), start_method=method)
    cause = _cause(outcome, "corrupted", Wrong.DIFFERS)
    assert ("monkeypatch" in cause.advice) == is_mentioned
    assert cause.overrides == is_mentioned


@pytest.mark.parametrize(("method", "is_mentioned"), [("fork", False), ("spawn", True)])
def test_samples_in_another_order_get_advice(method, is_mentioned):
    """A new interpreter has a different order of a set of strings."""
    outcome = revised(ordinary(Pass(EPOCH_1)), start_method=method)
    cause = _cause(outcome, "corrupted", Wrong.REORDERED)

    hints = ("PYTHONHASHSEED" in cause.advice, "monkeypatch" in cause.advice)
    assert hints == (is_mentioned, False)


@rows(
    ("activity", "phrase"),
    [
        (Activity.DELIVERS, "is slow under this fault"),
        (Activity.READS, "is too slow under this fault or rereads the same data"),
        (Activity.SLEEPS, "sleeps between retries past the deadline"),
        (Activity.COMPUTES, "retries forever or computes past the deadline"),
        (Activity.WAITS, "waits forever"),
    ],
)
def test_only_a_trial_without_activity_waits_forever(activity, phrase):
    """Any other advice recommends a longer deadline, with each of its names."""
    outcome = revised(_trial(EIO), timed_out=True, at_deadline=AtDeadline(activity))
    cause = _cause(outcome, "hung")
    options = ("deadline=300", "the marker", "--dataloader-faults-deadline=300")

    assert cause.phrase == phrase
    may_be_slow = activity is not Activity.WAITS
    assert all(each in cause.advice for each in options) == may_be_slow
    assert cause.overrides == may_be_slow
    has_retries = activity in (Activity.READS, Activity.COMPUTES)
    assert ("retry loop" in cause.advice) == has_retries


@rows(
    ("outcome", "finding", "expected"),
    [
        (_trial(TRUNCATED), Finding(Verdict.CORRUPTED, "wrong"), True),
        (_trial(EIO), Finding(Verdict.CORRUPTED, "wrong"), False),
        (_trial(TRUNCATED), Finding(Verdict.POISONED, "wrong"), False),
        (_trial(TRUNCATED), Finding(Verdict.CORRUPTED, "wrong", causes.INTERMITTENT), False),
        (ordinary(Pass(EPOCH_1), unfired(TRUNCATED)), Finding(Verdict.CORRUPTED, "wrong"), False),
    ],
)
def test_only_wrong_samples_after_bad_content_need_another_trial(outcome, finding, expected):
    assert is_silent_fault(outcome, finding) is expected


@rows(
    ("length", "clause"),
    [(9, "has 9 samples instead of 8"), (1, "has only 1 of 8 samples"), (None, "has only 0 of 8")],
)
def test_the_length_of_a_dataset_from_damaged_files(length, clause):
    reference = replace(map_reference(), readable=8)

    assert length_clause(Pass(EPOCH_1, length=length), reference).startswith(clause)
