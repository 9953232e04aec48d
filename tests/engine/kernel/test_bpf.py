"""What the filter program decides, and that its numbers and structs are those of the kernel."""

import json
import os
import shutil
import struct
from fcntl import LOCK_EX, LOCK_UN

import pytest

from pytest_dataloader_faults._engine.kernel import calls, linux
from pytest_dataloader_faults._engine.kernel.calls import CALLS as KNOWN
from pytest_dataloader_faults._engine.kernel.calls import (
    FilterRequirements,
    Role,
    calls_with_role,
    program,
)
from pytest_dataloader_faults._engine.kernel.linux import (
    ARCHITECTURES,
    AT_EMPTY_PATH,
    AT_FDCWD,
    CLONE_NEWNS,
    CLONE_NEWUSER,
    F_DUPFD,
    F_OFD_SETLK,
    F_OFD_SETLKW,
    F_SETLK,
    F_SETLKW,
    FICLONE,
    FICLONERANGE,
    FS_IOC_RESVSP,
    FS_IOC_RESVSP64,
    FS_IOC_UNRESVSP,
    FS_IOC_UNRESVSP64,
    FS_IOC_ZERO_RANGE,
    MACHINE,
    MAP_ANONYMOUS,
    MAP_FIXED,
    MAP_PRIVATE,
    MAP_STACK,
    PROT_NONE,
    PROT_WRITE,
    SYSCALLS,
    Return,
)
from pytest_dataloader_faults._engine.system.libc import Prctl
from pytest_dataloader_faults.faults.base import Place
from support.kernel_headers import (
    LOCAL_FILE_SYSTEMS,
    TABLE,
    ZFS,
    compile_values,
    engine_values,
    expressions_for,
)
from support.rows import rows

HIGH = 8192
MAX_INSTRUCTIONS = 4096
CLONE_FS = 0x200
MINUS_ONE = (1 << 64) - 1
C_MINUS_ONE = (1 << 32) - 1

CALLS = [(machine, name) for machine, table in SYSCALLS.items() for name in table]
READING = [(machine, name) for machine, name in CALLS if name in calls.READING and name != "mmap"]
WRITING = [(machine, name) for machine, name in CALLS if name in calls.WRITING and name != "mmap"]
STARTS = calls_with_role(Role.STARTS)
STARTING = [(machine, name) for machine, name in CALLS if name in STARTS]
CHANGES = calls_with_role(Role.CHANGES)
CHANGING = [(machine, name) for machine, name in CALLS if name in CHANGES and name != "ioctl"]
MACHINES = tuple(SYSCALLS)
OPENS = calls_with_role(Role.OPENS)
MAKE_ONE = calls_with_role(Role.ALLOCATES, Role.DUPLICATES)
CHANGES_OF_IDENTITY = (Prctl.CAPBSET_DROP, Prctl.SET_SECUREBITS, Prctl.SET_DUMPABLE)
USED_FOR_MORE = ("clone", "prctl")
"""Calls whose arguments say whether they change an identity."""


def decide(code: bytes, number: int, architecture: int, arguments: tuple[int, ...]) -> Return:
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=iIQ6Q", number, architecture, 0, *padded)
    instructions = list(struct.iter_unpack("=HBBI", code))
    accumulator = place = 0
    while True:
        operation, yes, no, value = instructions[place]
        place += 1
        if operation == 0x06:
            return Return(value)
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x05:
            place += value
        else:
            place += yes if _compare(operation, accumulator, value) else no


def _compare(operation: int, accumulator: int, value: int) -> bool:
    return {
        0x15: accumulator == value,
        0x35: accumulator >= value,
        0x45: bool(accumulator & value),
    }[operation]


def answer(machine: str, name: str, *arguments: int, **requirements) -> str:
    needs = FilterRequirements(**requirements)
    code = program(SYSCALLS[machine], ARCHITECTURES[machine], needs)
    return decide(code, SYSCALLS[machine][name], ARCHITECTURES[machine], arguments).name


@rows(("machine", "name"), [case for case in CALLS if case[1] in OPENS])
def test_opens_are_always_handed_over(machine, name):
    """A path cannot be judged from numbers."""
    assert answer(machine, name, 0, 0) == "USER_NOTIF"


@rows(("machine", "name"), READING)
@rows(
    ("fd", "expected"),
    [
        *((fd, "USER_NOTIF") for fd in (0, 3, HIGH, 1 << 40 | 3)),
        *((fd, "ALLOW") for fd in (MINUS_ONE, C_MINUS_ONE)),  # It is a C int.
    ],
)
def test_reads_are_handed_over_on_request(machine, name, fd, expected):
    """Of every descriptor: the numbers do not show which file it is."""
    arguments = [1] * 6
    arguments[KNOWN[name].reads_fd] = fd
    assert answer(machine, name, *arguments, places=Place.READ) == expected
    assert answer(machine, name, *arguments) == "ALLOW"


LEAST = 1 << 16
MINE = MAP_PRIVATE | MAP_ANONYMOUS
CONTENT_REQUESTS = (
    *(FICLONE, FICLONERANGE, FS_IOC_RESVSP, FS_IOC_RESVSP64),
    *(FS_IOC_UNRESVSP, FS_IOC_UNRESVSP64, FS_IOC_ZERO_RANGE),
)
TCGETS, FIOCLEX, FIONREAD, FIDEDUPERANGE = 0x5401, 0x5451, 0x541B, 0xC0189436
OTHER_REQUESTS = {0, TCGETS, FIOCLEX, FIONREAD, FIDEDUPERANGE} | (
    {each + by for each in CONTENT_REQUESTS for by in (-1, 1)} - {*CONTENT_REQUESTS}
)
LOCKS = [("fcntl", each) for each in (F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW)]
LOCKS += [("flock", LOCK_EX), ("flock", LOCK_UN)]
MATRIX = [
    # Mappings of files.
    (Place.READ, "mmap", (0, 4096, 1, 1, HIGH, 0), True),
    (Place.READ, "mmap", (0, 4096, 1, 2, 3, 0), True),
    (Place(0), "mmap", (0, 4096, 1, 2, 3, 0), False),
    *(
        (Place.READ, "mmap", (0, 4096, 1, MAP_ANONYMOUS | 2, fd, 0), False)
        for fd in (MINUS_ONE, C_MINUS_ONE, HIGH)
    ),
    # Mappings that are written back.
    (Place.WRITE, "mmap", (0, 4096, 3, 1, 3, 0), True),
    (Place.WRITE, "mmap", (0, 4096, 2, 3, 3, 0), True),
    (Place.WRITE, "mmap", (0, 4096, 1, 1, 3, 0), False),
    (Place.WRITE, "mmap", (0, 4096, 3, 2, 3, 0), False),
    (Place.WRITE, "mmap", (0, 4096, 3, MAP_ANONYMOUS | 1, 3, 0), False),
    *((Place(0), "mmap", (0, 4096, 3, flags, 3, 0), False) for flags in (1, 3)),
    (Place.CHANGE, "mmap", (0, 4096, 3, 1, 3, 0), True),
    (Place.CHANGE, "mmap", (0, 4096, 1, 1, 3, 0), False),
    (Place.CHANGE, "mmap", (0, 4096, 3, 2, 3, 0), False),
    # Requests for other bytes in a file, of any descriptor.
    *(
        (Place.CHANGE, "ioctl", (fd, high | each, 4), True)
        for fd in (0, 3, HIGH)
        for high in (0, 1 << 40)
        for each in CONTENT_REQUESTS
    ),
    *((Place.CHANGE, "ioctl", (FICLONE, each, FICLONE), False) for each in OTHER_REQUESTS),
    *(
        (places, "ioctl", (3, each, 4), False)
        for places in (Place(0), ~Place.CHANGE)
        for each in CONTENT_REQUESTS
    ),
    # Duplicates by fcntl(2).
    *((places, "fcntl", (3, F_DUPFD, 0), bool(places)) for places in (Place.ALLOCATION, Place(0))),
    # Locks of any descriptor.
    *((Place.LOCK, name, (3, operation, 0), True) for name, operation in LOCKS),
    *((Place(0), name, (3, operation, 0), False) for name, operation in LOCKS),
    (Place.READ, "flock", (3, LOCK_EX, 0), True),
    # Allocations.
    (Place.MEMORY, "mmap", (0, LEAST, PROT_WRITE, MINE, MINUS_ONE, 0), True),
    (Place.MEMORY, "mmap", (0, LEAST - 1, PROT_WRITE, MINE, MINUS_ONE, 0), False),
    (Place.MEMORY, "mmap", (0, 1 << 32, PROT_WRITE, MINE, MINUS_ONE, 0), True),
    (Place.MEMORY, "mmap", (0, LEAST, PROT_NONE, MINE | MAP_STACK, MINUS_ONE, 0), False),
    (Place.MEMORY, "mmap", (0, LEAST, PROT_WRITE, MINE | MAP_FIXED, MINUS_ONE, 0), False),
    (Place.MEMORY, "mmap", (0, LEAST, PROT_WRITE, MAP_PRIVATE, 3, 0), False),
    (Place.MEMORY, "mremap", (0, 1, LEAST, 0), True),
    (Place.MEMORY, "mremap", (0, LEAST, LEAST - 1, 0), False),
    (Place.MEMORY, "mprotect", (0, 1, PROT_WRITE), True),
    (Place.MEMORY, "mprotect", (0, LEAST, PROT_NONE), False),
    (Place.MEMORY, "brk", (0,), True),
    # Changes of identity.
    (Place(0), "clone", (CLONE_NEWNS,), True),
    (Place(0), "clone", (CLONE_NEWUSER | CLONE_FS,), True),
    (Place(0), "clone", (CLONE_FS,), False),
    *((Place(0), "prctl", (operation,), True) for operation in CHANGES_OF_IDENTITY),
    (Place(0), "prctl", (Prctl.SET_PDEATHSIG,), False),
]
"""What a plan is about, a call, and whether it is handed over."""


@rows("machine", MACHINES)
@rows(("places", "name", "arguments", "expected"), MATRIX)
def test_calls_are_handed_over_by_their_arguments(machine, places, name, arguments, expected):
    decision = answer(machine, name, *arguments, places=places, memory=LEAST)
    assert decision == ("USER_NOTIF" if expected else "ALLOW")


@rows("machine", MACHINES)
@rows("least", [1 << 15, 1 << 32, (1 << 33) + 5])
def test_sizes_have_64_bits(machine, least):
    sizes = [least - 1, least, least + 1, least << 1, least >> 1]
    answers = [
        answer(machine, "mremap", 0, 0, size, places=Place.MEMORY, memory=least) for size in sizes
    ]
    assert answers == ["ALLOW", *["USER_NOTIF"] * 3, "ALLOW"]


@rows(("machine", "name"), [each for each in CALLS if each[1] in MAKE_ONE])
def test_every_new_descriptor_is_seen_on_request(machine, name):
    assert answer(machine, name, 3, 0, places=Place.ALLOCATION) == "USER_NOTIF"
    assert answer(machine, name, 3, 0) == "ALLOW"


@rows(("machine", "name"), WRITING)
@rows(
    ("fd", "expected"),
    [
        *((fd, "ALLOW") for fd in (MINUS_ONE, C_MINUS_ONE)),
        *((fd, "USER_NOTIF") for fd in (0, 1, 2, 3, 1 << 40 | 3, HIGH)),
    ],
)
def test_writes_are_handed_over_on_request(machine, name, fd, expected):
    """Also of standard output, which may be a file."""
    arguments = [1] * 6
    arguments[KNOWN[name].writes_fd] = fd
    for place in (Place.WRITE, Place.LOCK, Place.CHANGE):
        assert answer(machine, name, *arguments, places=place) == expected
    assert answer(machine, name, *arguments) == "ALLOW"


@rows(("machine", "name"), CHANGING)
@rows("value", [0, 3, HIGH, AT_EMPTY_PATH, AT_FDCWD % (1 << 64), MINUS_ONE])
def test_changes_are_handed_over_on_request(machine, name, value):
    """A path cannot be judged from numbers, and any descriptor may be of a file that must stay."""
    decisions = [
        answer(machine, name, *[value] * 6, places=each)
        for each in (Place.CHANGE, Place.CHANGE | Place.READ, Place(0), ~Place.CHANGE)
    ]
    assert decisions == ["USER_NOTIF", "USER_NOTIF", "ALLOW", "ALLOW"]


@rows(("machine", "name"), STARTING)
def test_starts_are_handed_over_on_request(machine, name):
    """Of clone3(2), always: its flags are in memory."""
    before = "USER_NOTIF" if name == "clone3" else "ALLOW"
    assert [before, "USER_NOTIF"] == [
        answer(machine, name, CLONE_FS, places=each) for each in (Place(0), Place.START)
    ]


@rows("machine", MACHINES)
def test_another_architecture_is_left_alone(machine):
    other_machine = next(each for each in MACHINES if each != machine)
    needs = FilterRequirements(places=Place.ALLOCATION)
    code = program(SYSCALLS[machine], ARCHITECTURES[machine], needs)
    numbers = SYSCALLS[machine].values()
    decisions = {decide(code, each, ARCHITECTURES[other_machine], (0, 0)) for each in numbers}
    assert decisions == {Return.ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_are_not_named_are_left_alone(machine):
    needs = FilterRequirements(places=Place.ALLOCATION)
    code = program(SYSCALLS[machine], ARCHITECTURES[machine], needs)
    others = (Role.EXAMINES, Role.TRANSFERS, Role.LOCKS, Role.RESERVES, Role.LISTS, Role.GROWS)
    asked_for = calls_with_role(*others, Role.CHANGES)
    names = {*KNOWN} - {*asked_for, *USED_FOR_MORE, "fork", "vfork"}
    known_numbers = {SYSCALLS[machine][name] for name in names if name in SYSCALLS[machine]}
    handed_over = {
        number
        for number in range(600)
        if decide(code, number, ARCHITECTURES[machine], (0, 0)) is not Return.ALLOW
    }
    assert known_numbers == handed_over


@rows("machine", MACHINES)
def test_a_plan_that_needs_everything_fits(machine):
    code = program(SYSCALLS[machine], ARCHITECTURES[machine], FilterRequirements(~Place(0), LEAST))
    assert len(code) // 8 < MAX_INSTRUCTIONS


VALUES = json.loads(TABLE.read_text(encoding="utf-8"))["values"]
HANDED_OVER = {*KNOWN}


@pytest.fixture(name="compiler")
def _compiler():
    """A C compiler, and beside it the kernel's headers for the machine that runs this."""
    if MACHINE not in SYSCALLS:
        pytest.skip(f"the engine does not know {MACHINE}")
    if not os.path.exists("/usr/include/linux/seccomp.h") or not shutil.which("cc"):
        pytest.skip("cc or the kernel's headers (Debian: linux-libc-dev) are not installed here")
    return ["cc"]


@pytest.mark.parametrize("machine", SYSCALLS)
def test_numbers_and_structs_are_the_kernels(machine):
    """``engine_values`` has the file systems that ``LOCAL_FILE_SYSTEMS`` names."""
    assert engine_values(machine) == VALUES[machine]
    assert {*LOCAL_FILE_SYSTEMS.values(), ZFS} == linux._LOCAL


@pytest.mark.parametrize("machine", SYSCALLS)
def test_each_call_that_is_handed_over_has_its_number(machine):
    """Or the filter would let it pass in silence. It may lack only what the machine lacks."""
    lacking = HANDED_OVER - {*SYSCALLS[machine]}

    assert lacking == {name for name in HANDED_OVER if f"__NR_{name}" not in VALUES[machine]}


def test_the_table_is_what_the_headers_of_this_machine_say(compiler):
    """As far as its headers go: they may be older than some names, and then lack them."""
    header_values = compile_values(expressions_for(MACHINE), compiler)

    assert header_values.items() <= VALUES[MACHINE].items()
    assert {f"__NR_{name}" for name in HANDED_OVER} & {*VALUES[MACHINE]} <= {*header_values}
