"""Readers that map their file, or read it in pieces, and those that get no descriptor."""

import re
import signal

from pytest_dataloader_faults import inject
from pytest_dataloader_faults.faults import DescriptorExhaustion, ReadError
from support.attempts import attempt, epoch_of
from support.epochs import alone
from support.readers import CONTENT, MAPPING, read_format, write_formats
from support.tries import Tries

MANY_READS = 100
"""More than a library needs for one of the files."""


def test_a_mapped_file_raises_sigbus(tmp_path):
    """A page that the disk cannot deliver is a signal, not an errno."""
    with inject(ReadError("*.data")) as injection:
        for path in write_formats(tmp_path / "files", MAPPING):
            read, (facts,) = epoch_of(injection, alone(Tries([path], read_format)))
            assert {signal.SIGBUS} == read.signals
            assert "DataLoader worker" in read.text
            (firing,) = facts.firings
            assert ("mmap", path) == (firing.call, firing.path)
            assert facts.mentioned == 1


def test_each_read_of_a_library_can_fail(tmp_path):
    faults = [ReadError(f"*/{nth}/*.data", nth=nth, times=1) for nth in range(1, MANY_READS)]
    seen_calls = set()
    with inject(*faults, require_fired=False) as injection:
        for place, fault in enumerate(faults):
            paths = write_formats(tmp_path / str(fault.trigger.nth), ("pillow_tiff",))
            read, facts = epoch_of(injection, alone(Tries(paths, read_format)))
            if not facts[place].fired:
                break
            (firing,) = facts[place].firings
            seen_calls.add(firing.call)
            assert firing.call != "mmap" or read.signals == {signal.SIGBUS}
    assert seen_calls == {"read", "mmap"}
    assert [CONTENT] == [each.gave for each in read.batches]
    assert place >= 2


def test_no_reader_gets_a_descriptor(tmp_path):
    paths = write_formats(tmp_path / "files")
    gave, injection = attempt(paths, read_format, DescriptorExhaustion())
    # safetensors 0.8 calls every open(2) that fails "No such file or directory".
    assert [
        text for text in gave if not re.search(r"Errno 24\]|/safetensors_file\.data", text)
    ] == []
    assert injection.fired >= len(paths)
