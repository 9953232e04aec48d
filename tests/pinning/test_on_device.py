"""What takes a device: CUDA in workers, tensors that are on it already, descriptors of its own.

The stand-in can show none of it: these tests run where there is an accelerator.
"""

import os

import pytest
import torch
from torch.utils.data import DataLoader

from pytest_dataloader_faults import check_dataset, run_trial
from pytest_dataloader_faults._engine.system.proc import descriptor_links
from pytest_dataloader_faults._settings import Settings
from pytest_dataloader_faults._trial import resources, take_reference
from support.children import in_its_own_process
from support.datasets import Records
from support.judging import judge_trial
from support.on_device import ComputesOnDevice, GivesDeviceTensors

pytestmark = [pytest.mark.gpu, pytest.mark.dataloader_faults]
SPAWNED = {"num_workers": 1, "batch_size": 4, "multiprocessing_context": "spawn"}


def test_device_in_a_forked_worker_fails(records):
    names = ["workers-agree", "pin-memory"]
    agrees, pinned = check_dataset(lambda: ComputesOnDevice(records), only=names, on_fail=None)

    assert agrees.passed, agrees.explanation
    assert (pinned.verdict, pinned.failed) == ("fails_without_fault", True), pinned.explanation
    assert "in forked subprocess" in pinned.explanation.splitlines()[0]
    assert pinned.fix == "return CPU tensors from workers, and move batches in the training loop"


def test_tensors_on_the_device_come_from_spawned_workers(records):
    def make():
        return GivesDeviceTensors(records)

    outcome = run_trial(make, loader=SPAWNED)
    judgement = judge_trial(outcome, take_reference(make, Settings(loader={"batch_size": 4})))

    assert judgement.verdict == "survived", (judgement.sentence, outcome.stderr)


def test_tensors_on_the_device_cannot_be_pinned(records):
    options = {**SPAWNED, "pin_memory": True}
    outcome = run_trial(lambda: GivesDeviceTensors(records), loader=options)

    assert outcome.exception.type == "RuntimeError"
    assert "cannot pin" in outcome.exception.message


@in_its_own_process()
def test_batches_are_pinned_and_the_same_on_the_device(records):
    loader = DataLoader(Records(records), batch_size=4, num_workers=2, pin_memory=True)
    plain = DataLoader(Records(records), batch_size=4)
    for pinned, expected in zip(loader, plain, strict=True):
        assert all(each.is_pinned() for each in pinned)
        copies = resources.copy_to_device(pinned)
        assert {each.device.type for each in copies} == {resources._accelerator().type}
        assert all(map(torch.equal, [each.cpu() for each in copies], expected))


@in_its_own_process()
def test_bytes_in_use_are_reported():
    resources.use_accelerator()
    usage = resources.bytes_in_use()
    pinned = torch.ones(1 << 20).pin_memory()
    copies = resources.copy_to_device(pinned)
    torch.accelerator.synchronize()
    peak = resources.bytes_in_use()
    assert peak["pinned"] >= usage["pinned"] + pinned.nbytes
    assert peak["device"] >= usage["device"] + copies.nbytes
    del pinned, copies
    assert resources.bytes_in_use() == usage


@in_its_own_process()
def test_workers_inherit_the_device_s_descriptors(records):
    resources.use_accelerator()
    ours = _opened_on_device(os.getpid())
    iterator = iter(DataLoader(Records(records), num_workers=1))
    next(iterator)
    assert ours
    assert ours <= _opened_on_device(iterator._workers[0].pid)


def _opened_on_device(pid):
    """What process *pid* has open of the devices of the usual drivers."""
    targets = set(descriptor_links(pid).values())
    return {each for each in targets if each.startswith(("/dev/nvidia", "/dev/dri", "/dev/kfd"))}
