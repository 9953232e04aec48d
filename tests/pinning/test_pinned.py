"""Loaders that pin: their thread, epochs that nobody reads to the end, faults, and the check."""

import gc
import os
import threading
import types
from collections.abc import Mapping

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import inject, run_trial
from pytest_dataloader_faults._settings import DEADLINE
from pytest_dataloader_faults._trial import resources, take_reference
from pytest_dataloader_faults._trial.resources import missing_accelerator
from pytest_dataloader_faults.exceptions import UnusableDatasetError
from pytest_dataloader_faults.faults import (
    OpenError,
    ReadError,
    SharedMemoryExhaustion,
    WorkerHung,
    WorkerKilled,
)
from support.accelerators import REAL, stand_in
from support.batches import (
    CannotBeLoaded,
    CannotBePinned,
    HangsPinning,
    KeepsOnDevice,
    KeepsPinned,
    Pair,
)
from support.children import in_its_own_process
from support.datasets import COUNT, Records, write_records
from support.epochs import reserves_shared_memory
from support.fault_rows import FAULTS, require_result
from support.judging import judge_trial
from support.results import failure_of, result_of
from support.rows import rows
from support.waiting import allowed, until


def _descriptors():
    return len(os.listdir("/proc/self/fd"))


def _begin_epoch(loader):
    """Take the first batch of an epoch and leave it; the threads and processes that it started."""
    iterator = iter(loader)
    next(iterator)
    loader._iterator = None  # Of persistent workers; as the loader's own end would do.
    return [iterator._pin_memory_thread], [each.pid for each in iterator._workers]


def _abandon(loader):
    """Begin two epochs under a fault that is armed for a batch that nobody comes to."""
    with inject(WorkerKilled(at=100), require_fired=False):
        first_epoch, second_epoch = _begin_epoch(loader), _begin_epoch(loader)
    gc.collect()
    return [thread for each in (first_epoch, second_epoch) for thread in each[0]], first_epoch[
        1
    ] + second_epoch[1]


@in_its_own_process()
def test_abandoned_epoch_leaves_nothing(accelerator, records):
    loader = DataLoader(Records(records), batch_size=2, num_workers=2, pin_memory=True)
    _abandon(loader)  # What the first use opens for good is no leak.
    descriptors = _descriptors()
    threads, workers = _abandon(loader)
    assert until(lambda: not any(each.is_alive() for each in threads))
    assert until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))
    assert until(lambda: _descriptors() <= descriptors), (descriptors, _descriptors())


@in_its_own_process()
def test_epoch_that_failed_leaves_no_thread(accelerator, records):
    loader = DataLoader(Records(records), batch_size=2, num_workers=2, pin_memory=True)
    with inject(ReadError(nth=3)), pytest.raises(OSError, match="Input/output error"):
        list(loader)
    assert until(lambda: threading.active_count() == 1)


QUICK = (OpenError, SharedMemoryExhaustion)
"""``engine/test_fault_matrix.py`` runs the others, without this thread."""


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("pinned") / "records")


@pytest.fixture(name="reference", scope="module")
def _reference(folder):
    return take_reference(lambda: Records(folder))


def _cases():
    for row in FAULTS:
        if isinstance(row.fault, QUICK):
            marks = [reserves_shared_memory] * isinstance(row.fault, SharedMemoryExhaustion)
            yield pytest.param(row, id=repr(row.fault), marks=marks)


@pytest.mark.parametrize("row", list(_cases()))
def test_fault_is_judged(folder, reference, row, accelerator):
    outcome = run_trial(lambda: Records(folder), row.fault, loader=LOADER)

    require_result(row, outcome, reference, COUNT)


def test_process_in_which_torch_refuses_the_accelerator_is_refused(folder, monkeypatch):
    """As every fork of a process that asked the driver: the dataset cannot help it."""
    options = {"num_workers": 1, "pin_memory": True}
    with stand_in(monkeypatch):
        monkeypatch.setattr(torch.cpu, "_is_in_bad_fork", lambda: True, raising=False)
        with pytest.raises(UnusableDatasetError, match="PYTORCH_NVML_BASED_CUDA_CHECK=1"):
            run_trial(lambda: Records(folder), loader=options)
        outcome = run_trial(lambda: Records(folder), loader={"num_workers": 1})
    assert outcome.exception is None


def test_loader_that_fails_after_it_started_workers_is_judged(folder, monkeypatch):
    """It asks for the device after that, and torch's iterator is only half made then."""

    def fail():
        raise RuntimeError("no such device")

    with stand_in(monkeypatch):
        monkeypatch.setattr(torch.accelerator, "current_device_index", fail)
        outcome = run_trial(
            lambda: Records(folder), loader={"num_workers": 2, "pin_memory": True, "timeout": 30}
        )
    assert (outcome.exception.type, outcome.exception.message) == ("RuntimeError", "no such device")


def _check(run, records, collate, **options):
    def make():
        options.update(batch_size=4, num_workers=1, collate_fn=collate)
        return DataLoader(Records(records), **options)

    deadline = allowed(DEADLINE)  # Growth shows over many epochs, which a busy machine runs slowly.
    return run(make, "pin-memory", deadline=deadline)


def test_sound_batches_pass(accelerator, records):
    result = _check(result_of, records, None)
    assert (result.verdict, result.passed) == ("survived", True), result.explanation


def test_batches_that_pinning_spoils_fail(accelerator, records):
    result = _check(failure_of, records, CannotBePinned)
    assert (result.verdict, result.failed) == ("fails_without_fault", True), result.explanation
    assert "RuntimeError" in result.explanation.splitlines()[0]
    assert "needs a pin_memory() method" in result.explanation


def test_pinned_memory_that_is_kept_is_leaked(accelerator, records):
    result = _check(failure_of, records, KeepsPinned, persistent_workers=True)
    assert (result.verdict, result.failed) == ("leaked", True), result.explanation
    message = "KiB more pinned memory in the main process and never frees it"
    assert message in result.explanation.splitlines()[0]


@pytest.mark.parametrize("accelerator", [pytest.param("real", marks=REAL)], indirect=True)
def test_memory_of_the_device_that_is_kept_is_leaked(accelerator, records):
    result = _check(failure_of, records, KeepsOnDevice)
    assert (result.verdict, result.failed) == ("leaked", True), result.explanation
    assert "KiB more accelerator memory" in result.explanation.splitlines()[0]


def test_tensors_are_copied_wherever_a_batch_has_them():
    """To the device "meta" here, which every machine has; what is not torch's stays as it is."""
    tensor, plain = torch.ones(2), object()
    batch = {"a": [tensor, (tensor, "text")], "b": Pair(tensor, plain)}

    copied = resources.copy_to_device(batch, torch.device("meta"))

    assert type(copied["b"]) is Pair
    assert [copied["a"][1][1], copied["b"].labels] == ["text", plain]
    tensors = [copied["a"][0], copied["a"][1][0], copied["b"].images]
    assert {each.device.type for each in tensors} == {"meta"}


def test_nothing_is_in_use_before_an_accelerator_is_used():
    assert resources.bytes_in_use() == {"pinned": 0, "device": 0}


def test_without_an_accelerator_it_does_not_apply(records, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    missing_accelerator.cache_clear()
    result = _check(result_of, records, None)
    assert (result.verdict, result.applies) == ("not_exercised", False)
    assert "finds no accelerator" in result.explanation


LOADER = {"num_workers": 2, "batch_size": 2, "pin_memory": True}


@pytest.fixture(name="judge")
def _judge(folder, reference):
    def judge(*faults, **options):
        loader = {**LOADER, **options}
        outcome = run_trial(lambda: Records(folder), *faults, loader=loader, deadline=30.0)
        return outcome, judge_trial(outcome, reference)

    return judge


def test_thread_that_ends_is_reported_without_the_cause(accelerator, records):
    outcome = run_trial(lambda: Records(records), loader={**LOADER, "collate_fn": CannotBeLoaded})

    assert "Pin memory thread exited unexpectedly" in outcome.exception.message
    assert "the batch cannot be loaded" in outcome.stderr


def test_thread_that_ends_within_the_timeout_is_reported_as_a_timeout(accelerator, records):
    """Only where no timeout is set does torch look for the thread."""
    loader = {**LOADER, "collate_fn": CannotBeLoaded, "timeout": 1}
    outcome = run_trial(lambda: Records(records), loader=loader)

    assert "DataLoader timed out after 1 seconds" in outcome.exception.message
    assert "the batch cannot be loaded" in outcome.stderr


def test_pinning_that_hangs_blocks_the_loader_s_end(accelerator, records):
    """Torch raises the timeout, and then joins the thread without a limit."""
    options = {**LOADER, "collate_fn": HangsPinning, "timeout": 0.5}
    outcome = run_trial(lambda: Records(records), loader=options, deadline=2)

    assert outcome.timed_out
    assert "timed out after 0.5 seconds" in outcome.exception.message


def test_worker_that_dies_while_the_thread_waits_is_reported(accelerator, judge):
    outcome, judgement = judge(WorkerKilled(), num_workers=1)

    assert judgement.verdict == "failed_cleanly", judgement.sentence
    assert "killed by signal: Killed" in outcome.exception.text
    assert outcome.delivered == ()


def test_worker_that_hangs_is_ended_by_the_timeout(accelerator, judge):
    outcome, judgement = judge(WorkerHung(at=2, worker=None), timeout=1)

    assert judgement.verdict == "failed_cleanly", judgement.sentence
    assert "DataLoader timed out after 1 seconds" in outcome.exception.message
    assert sum(len(each.keys) for each in outcome.recovery.delivered) == COUNT


class Frozen(Mapping):
    def __init__(self, *, image):
        self._image = image

    def __getitem__(self, name):
        return {"image": self._image}[name]

    def __iter__(self):
        return iter(("image",))

    def __len__(self):
        return 1


@rows(
    ("batch", "comes_as", "is_pinned"),
    [
        (types.SimpleNamespace(image=torch.ones(2)), types.SimpleNamespace, False),
        (Frozen(image=torch.ones(2)), dict, True),
    ],
    ids=["unknown class", "frozen mapping"],
)
def test_what_torch_makes_of_a_batch_of_another_class(batch, comes_as, is_pinned, monkeypatch):
    pinned = []
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor, *_: pinned.append(tensor) or tensor
    )

    assert type(torch.utils.data._utils.pin_memory.pin_memory(batch)) is comes_as
    assert bool(pinned) is is_pinned
