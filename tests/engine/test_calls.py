"""The table of system calls: each row has the facts that what is done with it needs."""

from __future__ import annotations

from pytest_dataloader_faults._engine.calls import CALLS, Role, with_role
from support.rows import rows


def test_each_call_is_found_by_its_role():
    """And by no other one."""
    assert sorted(with_role(*Role)) == sorted(CALLS)


@rows("name", CALLS)
def test_facts_that_belong_together_are_there_together(name):
    """An answer takes an argument at the place that the table gives, so there has to be one."""
    call = CALLS[name]
    role = call.role
    uses_file = call.reads_fd is not None or call.writes_fd is not None

    assert uses_file == (role in (Role.TRANSFERS, Role.RESERVES))
    assert (call.path_at is not None) == (role in (Role.OPENS, Role.STATS))
    assert (call.result_at is not None) == (role is Role.STATS)
    assert role is not Role.OPENS or call.flags_at is not None
    assert role is Role.DUPLICATES or call.number_at is None
    assert call.buffers is None or (uses_file and call.has_data)
    assert call.offset_at is None or call.buffers is not None


def test_what_can_be_short_is_what_has_buffers():
    """The rest maps a file, copies it within the kernel, or moves no data."""
    reads = {name for name, call in CALLS.items() if call.reads_into_buffers}
    writes = {name for name, call in CALLS.items() if call.writes_buffers}

    assert reads == {"read", "pread64", "readv", "preadv", "preadv2"}
    assert writes == {"write", "pwrite64", "writev", "pwritev", "pwritev2"}
    assert {name for name in reads if CALLS[name].shares_offset} == {"read", "readv"}
