"""What a failure is put down to, and the advice that goes with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dataloader_faults import Verdict
from pytest_dataloader_faults.faults import CorruptedFile, ShortRead, WriteError
from pytest_dataloader_faults.outcomes import (
    Activity,
    AtDeadline,
    FileCounts,
    FiringKind,
    Judgement,
    Pass,
    WorkerDeath,
    WorkerFacts,
    Wrong,
)
from pytest_dataloader_faults.outcomes.judge.causes import Clues, likely_cause
from support.facts import EIO, TRUNCATED, fired, ordinary, raised, unfired
from support.rows import rows

PASSES = ("survived", "failed_cleanly")
FAULT_FREE = ordinary(Pass(complete=True))
STREAM = replace(FAULT_FREE, kind="iterable")
IN_PLACE = "gives a sample in place of one that cannot be read"
BEFORE = "uses a file that was opened before the fork"
TRUNCATION = "accepts a truncated file"
CAUGHT = Clues(is_caught=True)


def _trial(fault, kind=FiringKind.CALL, path="/data/a.rec"):
    return ordinary(Pass(), fired(fault, kind=kind, path=path))


def _cause(outcome, verdict, kind=None, fault_free=FAULT_FREE, clues=None):
    judgement = Judgement(Verdict(verdict), "any words: missing", False, kind)
    return likely_cause(outcome, judgement, fault_free, clues or Clues())


@rows(
    ("outcome", "kind", "clues", "phrase", "advice"),
    [
        (STREAM, Wrong.REPEATED, None, "all samples", "get_worker_info"),
        (STREAM, Wrong.SAME_IN_EACH_WORKER, None, "all samples", "get_worker_info"),
        (FAULT_FREE, Wrong.DIFFERS, None, "workers give other samples", ""),
        (FAULT_FREE, Wrong.USED_UP, None, "fewer samples in the second", ""),
        (FAULT_FREE, Wrong.SAME_AGAIN, None, "same random samples", ""),
        (_trial(EIO), Wrong.SUBSTITUTED, None, IN_PLACE, "Another sample came"),
        (_trial(TRUNCATED), Wrong.SUBSTITUTED, CAUGHT, IN_PLACE, "Another sample came"),
        (_trial(TRUNCATED), Wrong.SUBSTITUTED, None, TRUNCATION, "how many bytes"),
        (_trial(EIO), Wrong.DIFFERS, None, IN_PLACE, "Zeros"),
        (_trial(EIO), Wrong.DIFFERS, None, IN_PLACE, "np.fromfile"),
        (_trial(TRUNCATED), Wrong.ALIKE, CAUGHT, IN_PLACE, "Zeros"),
        (_trial(TRUNCATED), Wrong.ALIKE, None, TRUNCATION, "do not catch"),
        (_trial(EIO), Wrong.MISSING, None, "leaves out samples", "Raise the error"),
        (_trial(TRUNCATED), Wrong.MISSING, CAUGHT, "leaves out samples", "Raise the error"),
        (_trial(TRUNCATED), Wrong.MISSING, None, TRUNCATION, "how many bytes"),
        (_trial(TRUNCATED), Wrong.CUT_SHORT, None, "ends the epoch", "StopIteration"),
        (_trial(EIO), Wrong.CUT_SHORT, CAUGHT, "ends the epoch", "next(...)"),
        (FAULT_FREE, Wrong.CUT_SHORT, None, "ends the epoch", "StopIteration"),
        (_trial(TRUNCATED), Wrong.DIFFERS, None, TRUNCATION, "how many bytes"),
        (_trial(ShortRead()), Wrong.DIFFERS, None, "accepts a short read", "read on"),
        (_trial(CorruptedFile()), Wrong.DIFFERS, None, "accepts damaged", "checksum"),
        (_trial(CorruptedFile()), Wrong.SUBSTITUTED, None, IN_PLACE, "Another sample"),
        (_trial(TRUNCATED, FiringKind.REPLACED), Wrong.DIFFERS, None, TRUNCATION, "how many bytes"),
    ],
)
def test_wrong_samples_have_a_cause(outcome, kind, clues, phrase, advice):
    """By the kind of what is wrong, the kind of fault, and whether an error was caught."""
    cause = _cause(outcome, "corrupted", kind, clues=clues)

    assert phrase in cause.phrase
    assert advice in cause.advice
    assert bool(advice) == bool(cause.advice)


@rows("verdict", [each for each in Verdict if each not in PASSES])
def test_each_verdict_has_a_cause(verdict):
    """In a few words; nothing that passed has one."""
    assert _cause(_trial(EIO), verdict).phrase
    assert likely_cause(_trial(EIO), Judgement(verdict, "x", True), FAULT_FREE) is None


@pytest.mark.parametrize(("verdict", "is_told"), [("hung", True), ("leaked", False)])
def test_a_wait_without_a_limit_is_the_cause_of_a_hang(verdict, is_told):
    """The client waited for a server, and nothing would have ended that."""
    worker = WorkerFacts(0, 7, 1, {}, unlimited_waits=("tcp://192.0.2.1:443",))
    cause = _cause(replace(_trial(EIO), workers=(worker,)), verdict)

    assert (cause.phrase == "waits for a server without a time limit") == is_told
    assert _cause(_trial(EIO), verdict).phrase != "waits for a server without a time limit"


READS = replace(FAULT_FREE, workers=(WorkerFacts(0, 7, 1, {"/t/a.pt": FileCounts(1, 1, 9)}),))
WRITES = replace(FAULT_FREE, workers=(WorkerFacts(0, 7, 1, {"/t/a.pt": FileCounts(1, 1, 9, 1)}),))


@rows(
    ("outcome", "verdict", "fault_free", "is_torn"),
    [
        (_trial(WriteError("*.pt"), "write"), "poisoned", READS, True),
        (_trial(WriteError("*.pt"), "write"), "corrupted", READS, True),
        (_trial(WriteError("*.pt"), "write"), "leaked", WRITES, False),
        (_trial(WriteError("*.pt"), "write"), "failed_unclearly", WRITES, False),
        (_trial(EIO), "poisoned", WRITES, True),
        (_trial(EIO), "poisoned", READS, False),
        (_trial(EIO), "corrupted", WRITES, False),
        (ordinary(Pass(), unfired(WriteError("*.pt"))), "corrupted", WRITES, False),
    ],
)
def test_a_file_that_is_not_whole_is_the_cause(outcome, verdict, fault_free, is_torn):
    """After a failed write; and after any fault, if the dataset writes and stays broken."""
    cause = _cause(outcome, verdict, Wrong.DIFFERS, fault_free)

    assert (cause.phrase == "leaves a file that is not whole") == is_torn


@rows(
    ("fault", "text", "is_hidden"),
    [
        (WriteError("*.pt"), "unexpected pos 64 vs 0", True),
        (WriteError("*.pt"), "[Errno 28] No space left on device", False),
        (EIO, "unexpected pos 64 vs 0", False),
    ],
)
def test_a_stream_of_torch_hides_why_a_write_failed(fault, text, is_hidden):
    """The advice is about torch.save, and not about what the dataset raises."""
    failed = Pass(exception=raised("RuntimeError", text))
    cause = _cause(ordinary(failed, fired(fault, path="/t/a.pt")), "failed_unclearly")

    assert ("torch.save to a path" in cause.phrase, cause.overrides) == (is_hidden, is_hidden)


def test_an_error_in_an_earlier_epoch_stays_in_the_worker():
    """The epoch that went wrong had no error of its own; and one epoch alone shows nothing."""
    failed = Pass(exception=raised("OSError", "[Errno 5] Input/output error"))
    later, alone = (replace(_trial(EIO), passes=passes) for passes in ((failed, Pass()), (failed,)))
    stays = "Something of the failed read stays in the worker"

    assert _cause(later, "corrupted", Wrong.DIFFERS).advice.startswith(stays)
    assert _cause(later, "poisoned").advice.startswith(stays)
    assert not _cause(alone, "corrupted", Wrong.DIFFERS).advice.startswith(stays)


def test_a_promise_that_is_broken_is_the_cause():
    """Under a fault; without one the dataset does not work at all."""
    promised = "fails, although the contract promises that it survives"

    assert _cause(_trial(EIO), "broken").phrase == promised
    assert _cause(FAULT_FREE, "broken").phrase == "fails without a fault"


@pytest.mark.parametrize(("workers", "is_uneven"), [(2, False), (3, True)])
def test_the_number_of_workers_is_the_cause(workers, is_uneven):
    """Where it is not that of the run without a fault."""
    facts = tuple(WorkerFacts(each, 7 + each, 1, {}) for each in range(3))
    outcome = replace(STREAM, workers=facts[:workers])
    cause = _cause(outcome, "corrupted", Wrong.MISSING, replace(STREAM, workers=facts[:2]))

    assert ("another number of workers" in cause.phrase) == is_uneven


def _with_file(path, counts, error=None, shared=()):
    worker = WorkerFacts(0, 7, 1, {path: counts}, shared_offset_files=shared)
    return replace(ordinary(Pass(exception=error)), workers=(worker,))


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
            "a.bin was opened before the workers started. Workers then share its file offset",
            False,
        ),
    ],
)
def test_handle_from_before_the_fork_is_named(fault_free, advice, overrides):
    """With what its library needs; that of LMDB takes the place of the check's own advice."""
    cause = _cause(FAULT_FREE, "corrupted", Wrong.DIFFERS, fault_free)

    assert (cause.phrase, cause.overrides) == (BEFORE, overrides)
    assert advice in cause.advice


def test_error_of_lmdb_is_known():
    """Also where the second open of its environment fails, which is before any read."""
    error = raised("Error", "The environment '/data' is already open in this process.")
    outcome = ordinary(Pass(exception=error))

    assert "py-lmdb refuses" in _cause(outcome, "broken").advice


@pytest.mark.parametrize("counts", [FileCounts(1, 3, 9), FileCounts(0, 0, 0)])
def test_file_that_workers_open_is_not_blamed(counts):
    """Nor one that they do not read."""
    fault_free = _with_file("/data/a.h5", counts)

    assert _cause(FAULT_FREE, "corrupted", Wrong.DIFFERS, fault_free).phrase != BEFORE
    assert _cause(_trial(EIO), "corrupted", Wrong.SUBSTITUTED, fault_free).phrase == IN_PLACE


@pytest.mark.parametrize(("shared", "is_blamed"), [((), False), (("/data/a.rec",), True)])
def test_handle_is_blamed_for_content_where_an_offset_is_shared(shared, is_blamed):
    """Reads at places and mappings of a file that was open before have no offset to share."""
    fault_free = _with_file("/data/a.rec", FileCounts(0, 3, 9), shared=shared)
    cause = _cause(_trial(TRUNCATED, FiringKind.REPLACED), "corrupted", Wrong.DIFFERS, fault_free)

    assert (cause.phrase == BEFORE) == is_blamed


@rows(
    ("outcome", "is_told"),
    [
        (FAULT_FREE, True),
        (replace(FAULT_FREE, start_method="spawn"), False),
        (_trial(EIO), False),
    ],
)
def test_threads_are_blamed_where_a_fork_left_them(outcome, is_told):
    """Not where a fault happened, and not where workers are started anew."""
    cause = _cause(outcome, "hung", clues=Clues(waits_for_thread=True))

    assert ("thread" in cause.phrase, cause.overrides) == (is_told, is_told)


NOT_PICKLED = raised("TypeError", "cannot pickle 'TextIOWrapper' instances")


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_cannot_be_pickled_is_known(method):
    """With what leads out of it: another class, or another start method."""
    outcome = replace(ordinary(Pass(exception=NOT_PICKLED)), start_method=method)
    cause = _cause(outcome, "broken")
    assert cause.phrase == "cannot be pickled"
    assert "__getstate__" in cause.advice
    assert "loader={'multiprocessing_context': 'fork'}" in cause.advice


@pytest.mark.parametrize(
    "change", [{"start_method": "fork"}, {"start_method": "spawn", "faults": fired(TRUNCATED)}]
)
def test_the_start_is_not_blamed_for_other_errors_of_pickle(change):
    """Such as that of a file which holds a pickle, and is cut off."""
    error = raised("UnpicklingError", "pickle data was truncated")
    outcome = replace(ordinary(Pass(exception=error)), **change)
    assert "pickle" not in _cause(outcome, "failed_unclearly").phrase


LOADS = 'File "reduction.py", line 9, in rebuild\n    return pickle.loads(buf)\n'


@rows(
    ("error", "is_told"),
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
def test_pickle_is_blamed_on_evidence(error, is_told):
    """What the loader receives from workers goes through pickle as well."""
    outcome = replace(ordinary(Pass(exception=error)), start_method="spawn")

    assert is_told == (_cause(outcome, "broken").phrase == "cannot be pickled")


@rows("exitcode", [0, 1, -37])
@rows("method", ["fork", "spawn", "forkserver"])
def test_a_worker_that_ends_is_the_cause(method, exitcode):
    """Whichever error that became: here, one of pickle. It overrides advice on starting them."""
    error = raised("UnpicklingError", "pickle data was truncated")
    one = Pass(exception=error, deaths=(WorkerDeath(0, 7, exitcode),))
    cause = _cause(replace(ordinary(one), start_method=method), "broken")

    assert cause.phrase == "ends a worker without a fault"
    assert cause.overrides == (method != "fork")
    assert "os._exit" in cause.advice


def test_an_error_that_a_worker_has_sent_is_the_cause():
    """Another worker that has died since has no part in it."""
    error = raised("ValueError", "Caught ValueError in DataLoader worker process 0.")
    one = Pass(exception=error, deaths=(WorkerDeath(1, 7, 1),))

    assert "fails without a fault" == _cause(ordinary(one), "broken").phrase


@rows(
    ("raised_in", "advice"),
    [
        ("__getattr__", "raise AttributeError for each name"),
        ("__setstate__", "Its __setstate__ raises"),
        ("rebuild", "try both in a process that has just begun"),
    ],
)
def test_what_cannot_be_unpickled_is_known(raised_in, advice):
    """By what the worker printed, which ended as it loaded the dataset; no more advice is given."""
    printed = f"""File "spawn.py", line 9, in _main
    self = reduction.pickle.load(from_parent)
File "x.py", line 1, in {raised_in}
ValueError: no
"""
    error = raised("RuntimeError", "DataLoader worker (pid 7) exited unexpectedly")
    one = Pass(exception=error, deaths=(WorkerDeath(0, 7, 1),))
    cause = _cause(replace(ordinary(one), start_method="spawn", stderr=printed), "broken")

    assert (cause.phrase, cause.overrides) == ("cannot be unpickled", True)
    assert advice in cause.advice


def test_a_class_below_the_guard_is_known():
    """Workers import the script without it, and both texts of Python say so."""
    texts = (
        "AttributeError: module '__mp_main__' has no attribute 'Mine'",
        "AttributeError: Can't get attribute 'Mine' on <module '__mp_main__' from '/s.py'>",
    )
    error = raised("RuntimeError", "DataLoader worker (pid 7) exited unexpectedly")
    for text in texts:
        outcome = replace(ordinary(Pass(exception=error)), start_method="forkserver", stderr=text)
        cause = _cause(outcome, "broken")
        assert (cause.phrase, "above that" in cause.advice) == (
            "is defined where workers cannot import it",
            True,
        )


def test_a_module_that_workers_do_not_find_is_named():
    """As where pytest put the folder of the tests on no path."""
    text = "ModuleNotFoundError: No module named 'my.data'"
    error = raised("RuntimeError", "DataLoader worker (pid 7) exited unexpectedly")
    outcome = replace(ordinary(Pass(exception=error)), start_method="spawn", stderr=text)
    cause = _cause(outcome, "broken")

    assert (cause.phrase, cause.overrides) == ("is defined where workers cannot import it", True)
    assert "cannot import my.data, where" in cause.advice


@pytest.mark.parametrize(("method", "is_told"), [("fork", False), ("forkserver", True)])
def test_what_workers_import_anew_is_told_of(method, is_told):
    """Where they are not forked, they lack what a test has changed in modules."""
    outcome = replace(ordinary(Pass()), start_method=method)
    cause = _cause(outcome, "corrupted", Wrong.DIFFERS)
    assert ("imports the modules of the dataset again" in cause.advice) == is_told
    assert cause.overrides == is_told


@pytest.mark.parametrize(("method", "is_told"), [("fork", False), ("spawn", True)])
def test_samples_in_another_order_are_told_of(method, is_told):
    """An interpreter that was started anew has another order of a set of str."""
    outcome = replace(ordinary(Pass()), start_method=method)
    cause = _cause(outcome, "corrupted", Wrong.REORDERED)

    assert ("sort it" in cause.advice, "imports the modules" in cause.advice) == (is_told, False)


@rows(
    ("activity", "phrase"),
    [
        (Activity.DELIVERS, "is slow under this fault"),
        (Activity.READS, "is slow under this fault, or reads the same again and again"),
        (Activity.SLEEPS, "sleeps between retries for longer than its deadline"),
        (Activity.COMPUTES, "tries forever, or computes for longer than its deadline"),
        (Activity.WAITS, "waits forever"),
    ],
)
def test_only_what_does_not_move_waits_for_ever(activity, phrase):
    """What moves is advised to take a longer deadline, by each of its names."""
    outcome = replace(_trial(EIO), timed_out=True, at_deadline=AtDeadline(activity))
    cause = _cause(outcome, "hung")
    options = ("deadline=300", "the marker", "--dataloader-faults-deadline=300")

    assert cause.phrase == phrase
    may_be_slow = activity is not Activity.WAITS
    assert all(each in cause.advice for each in options) == may_be_slow
    assert cause.overrides == may_be_slow
    has_retries = activity in (Activity.READS, Activity.COMPUTES)
    assert ("a retry without a limit" in cause.advice) == has_retries
