"""What takes a device: CUDA in workers, tensors that are on it already, descriptors of its own.

The stand-in can show none of it: these tests run where there is an accelerator.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import accelerator, take_reference
from support.children import in_a_process
from support.datasets import Records
from support.on_device import ComputesOnDevice, GivesDeviceTensors

pytestmark = [pytest.mark.gpu, pytest.mark.dataloader_faults]
SPAWNED = {"num_workers": 1, "batch_size": 4, "multiprocessing_context": "spawn"}


def test_device_in_a_forked_worker_fails(records):
    """It works as long as the loader's process has not used it, which a training job has."""
    asked = ["workers-agree", "pinned"]
    before, after = check_dataset(lambda: ComputesOnDevice(records), only=asked, on_fail=None)

    assert before.passed, before.explanation
    assert (after.verdict, after.failed) == ("broken", True), after.explanation
    assert "in forked subprocess" in after.explanation.splitlines()[0]
    assert "samples stay on the CPU until they are in that process" in after.explanation


def test_tensors_on_the_device_come_from_spawned_workers(records):
    """And are those that the dataset gives in the loader's process."""

    def make():
        return GivesDeviceTensors(records)

    outcome = run_trial(make, loader=SPAWNED)
    judgement = outcome.judge(take_reference(make, Settings(loader={"batch_size": 4})))

    assert judgement.verdict == "survived", (judgement.sentence, outcome.stderr)


def test_tensors_on_the_device_cannot_be_pinned(records):
    """Only those in ordinary memory can; the error comes through the thread."""
    options = {**SPAWNED, "pin_memory": True}
    outcome = run_trial(lambda: GivesDeviceTensors(records), loader=options)

    assert outcome.exception.type == "RuntimeError"
    assert "cannot pin" in outcome.exception.message


def test_batches_are_pinned_and_the_same_on_the_device(records):
    """What the check trusts: that pinning pins, and that a copy without waiting is right."""

    def body():
        loader = DataLoader(Records(records), batch_size=4, num_workers=2, pin_memory=True)
        plain = DataLoader(Records(records), batch_size=4)
        for pinned, expected in zip(loader, plain, strict=True):
            assert all(each.is_pinned() for each in pinned)
            there = accelerator.copied(pinned)
            assert {each.device.type for each in there} == {accelerator._device().type}
            assert all(map(torch.equal, [each.cpu() for each in there], expected))

    assert in_a_process(body) == ""


def test_bytes_in_use_are_reported(records):
    """Both kinds of memory, while it is in use and no longer."""

    def body():
        accelerator.use()
        before = accelerator.bytes_in_use()
        kept = torch.ones(1 << 20).pin_memory()
        there = accelerator.copied(kept)
        torch.accelerator.synchronize()
        used = accelerator.bytes_in_use()
        assert used["pinned"] >= before["pinned"] + kept.nbytes
        assert used["device"] >= before["device"] + there.nbytes
        del kept, there
        assert accelerator.bytes_in_use() == before

    assert in_a_process(body) == ""


def test_workers_inherit_the_device_s_descriptors(records):
    """Those that are forked after its first use: an orphan keeps the device in use."""

    def body():
        accelerator.use()
        ours = _opened_on_device(os.getpid())
        iterator = iter(DataLoader(Records(records), num_workers=1))
        next(iterator)
        assert ours
        assert ours <= _opened_on_device(iterator._workers[0].pid)

    assert in_a_process(body) == ""


def _opened_on_device(pid):
    """What process *pid* has open of the devices of the usual drivers."""
    folder = f"/proc/{pid}/fd"
    targets = {os.readlink(f"{folder}/{number}") for number in os.listdir(folder)}
    return {each for each in targets if each.startswith(("/dev/nvidia", "/dev/dri", "/dev/kfd"))}
