"""Memory and shared memory, and processes that stay: bugs, and twins without them."""

from support.corpus.cases import Case
from support.specimens import ReusedBuffer

CASES = (Case("E8", ReusedBuffer, "workers-agree", "corrupted: has the content of sample"),)
BEHAVIOURS = {
    "E1": (
        "a worker copies each inherited page whose reference counts it touches once: nothing that"
        " grows from epoch to epoch"
        " (battery/test_growth.py::test_what_settles_is_no_growth)"
    ),
    "E3": (
        "torch's own collate function reports that there is no room in /dev/shm"
        " (engine/supervisor/test_scarcity.py::test_torchs_collate_function_reports_it)"
    ),
    "E4": (
        "without it, the error comes in the thread that feeds torch's queue, which prints it and"
        " drops the batch"
        " (engine/supervisor/test_scarcity.py::test_a_collate_function_of_ones_own_hangs)"
    ),
    "E5": (
        "segments of workers that were killed are removed with the trial"
        " (trial/test_killed_pytest.py::test_a_killed_process_leaves_nothing)"
    ),
    "E6": (
        "a view ships the storage below it: too much shared memory, but the right samples, and it"
        " is given back (battery/test_growth.py::test_what_settles_is_no_growth)"
    ),
    "E7": (
        "the baseline refuses samples that cannot be collated, with torch's words"
        " (trial/test_bad_input.py::test_what_fails_by_itself)"
    ),
    "F9": (
        "workers of a loader's process that was killed are ended with its trial"
        " (trial/test_killed_pytest.py::test_a_killed_loaders_process_is_a_finding)"
    ),
    "F10": (
        "a worker that ignores SIGTERM and hangs is killed with its trial, and the hang is found"
        " (trial/test_isolation.py::test_a_hang_ends_at_the_deadline_and_is_located)"
    ),
}
EXCUSED = {
    "E2": (
        "each spawned worker gets a copy of the dataset, as spawning means, and no sample is wrong"
    )
}
