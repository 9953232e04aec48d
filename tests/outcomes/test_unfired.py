"""A fault that never happened: the text says why, for this fault and these workers."""

from __future__ import annotations

from pytest_dataloader_faults import faults
from pytest_dataloader_faults.outcomes import FaultFacts, FileCounts, WorkerFacts
from pytest_dataloader_faults.outcomes.fault_facts import unfired
from support.rows import rows

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
    ("fault", "is_listed"),
    [
        (faults.ReadError("*.jpg"), True),
        (faults.WorkerKilled(reading="*.jpg"), True),
        (faults.WorkerKilled(at=50), False),
        (faults.PinMemoryThreadDeath(), False),
    ],
)
def test_files_are_listed_where_the_fault_is_about_files(fault, is_listed):
    """Which files were opened is no reason for a death that did not come."""
    text = unfired([FaultFacts(fault)], WORKERS, "kernel")
    assert ("/data/0.bin" in text) == is_listed


def test_a_loader_that_cannot_start():
    """Its error is the reason, whether or not workers had started by then."""
    facts, error = [FaultFacts(faults.ReadError("*.jpg"), 0, 0)], "OSError: no room"
    assert str(unfired(facts, [], "kernel", error)).endswith("fired: iter(loader) raised " + error)
    started = str(unfired(facts, WORKERS, "kernel", error))
    assert f"fired: iter(loader) raised {error}. no operation matched it" in started
