"""What the kernel's own headers say of each number and each struct that the engine uses.

A C compiler computes the values, and its assembler code shows them, so that nothing needs to run. A
machine has headers for itself only. So the values for both machines are kept in a JSON file, and
this module is also the script that writes it. That takes Debian's compilers for both machines, and
a linux-libc-dev that has the headers of all machines, as Debian's has since version 6.10::

    apt-get install gcc-x86-64-linux-gnu gcc-aarch64-linux-gnu
    apt-get download linux-libc-dev && dpkg -x linux-libc-dev_*.deb headers
    python tests/support/kernel_headers.py headers 'linux-libc-dev 6.12.107-1, Debian trixie'
"""

import ctypes
import datetime as dt
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from struct import calcsize

from pytest_dataloader_faults._engine.kernel import calls, linux, syscalls
from pytest_dataloader_faults._engine.system import libc
from pytest_dataloader_faults._engine.system.libc import Prctl

TABLE = Path(__file__).with_suffix(".json")
_HEADERS = (
    "asm/unistd.h asm/stat.h asm/statfs.h asm/mman.h linux/audit.h linux/fcntl.h linux/filter.h"
    " linux/fs.h linux/ioctl.h linux/magic.h linux/mman.h linux/openat2.h linux/prctl.h"
    " linux/sched.h linux/seccomp.h linux/stat.h linux/uio.h"
).split()
_MACRO = re.compile(r"__NR_\w+|[A-Z]\w+")
_ANSWER = re.compile(r"@@ (\d+) is [#$]?(-?\d+)")

_ENUMS = {
    "PR_": Prctl,
    "SECCOMP_FILTER_FLAG_": linux.FilterFlag,
    "SECCOMP_RET_": linux.Return,
    "SECCOMP_IOCTL_NOTIF_": linux.Ioctl,
}
_LONG_NAMES = {
    "SET_MODE_FILTER": "SECCOMP_SET_MODE_FILTER",
    "GET_NOTIF_SIZES": "SECCOMP_GET_NOTIF_SIZES",
    "SYNC_WAKE_UP": "SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP",
    "CONTINUE": "SECCOMP_USER_NOTIF_FLAG_CONTINUE",
    "ADDFD_SETFD": "SECCOMP_ADDFD_FLAG_SETFD",
    "ADDFD_SEND": "SECCOMP_ADDFD_FLAG_SEND",
    "FS_IOC_RESVSP": "_IOW('X', 40, struct space_resv)",
    "FS_IOC_UNRESVSP": "_IOW('X', 41, struct space_resv)",
    "FS_IOC_RESVSP64": "_IOW('X', 42, struct space_resv)",
    "FS_IOC_UNRESVSP64": "_IOW('X', 43, struct space_resv)",
    "FS_IOC_ZERO_RANGE": "_IOW('X', 57, struct space_resv)",
}
"""Constants of ``linux`` that the headers have under a longer name, or do not have."""
_SPACE_RESV = (
    "struct space_resv { __s16 l_type; __s16 l_whence; __s64 l_start; __s64 l_len;"
    " __s32 l_sysid; __u32 l_pid; __s32 l_pad[4]; };"
)
"""Of include/linux/falloc.h, which the kernel does not export."""
_FORMATS = {
    "seccomp_notif": (
        linux.NOTIF.format,
        "id pid flags data.nr data.arch data.instruction_pointer data.args",
    ),
    "seccomp_notif_resp": (linux.RESPONSE.format, "id val error flags"),
    "seccomp_notif_addfd": (linux.ADDFD.format, "id flags srcfd newfd newfd_flags"),
    "open_how": (linux.OPEN_HOW.format, "flags mode resolve"),
    "sock_filter": (calls._INSTRUCTION.format, "code jt jf k"),
    "iovec": (syscalls._IOVEC.format, "iov_base iov_len"),
    "statx": (linux._STATX.format, "stx_mask stx_btime.tv_sec stx_btime.tv_nsec"),
}
"""The structs that are packed or unpacked: the format, and what each letter of it stands for.

An ``x`` stands for what is left out.
"""
LOCAL_FILE_SYSTEMS = {
    "EXT4_SUPER_MAGIC": 0xEF53,
    "XFS_SUPER_MAGIC": 0x58465342,
    "BTRFS_SUPER_MAGIC": 0x9123683E,
    "TMPFS_MAGIC": 0x01021994,
    "F2FS_SUPER_MAGIC": 0xF2F52010,
    "BCACHEFS_SUPER_MAGIC": 0xCA451A4E,
}
"""The members of ``linux._LOCAL`` by their names in linux/magic.h."""
ZFS = 0x2FC12FC1
"""Another member. OpenZFS is not part of the kernel, so the headers do not have it."""
_MACROS = {
    "MADV_COLLAPSE": libc._MADV_COLLAPSE,
    "STATX_BTIME": linux._STATX_BTIME,
    **LOCAL_FILE_SYSTEMS,
}
"""Constants that have no public name in ``linux``."""
_CODES = {
    "BPF_JMP | BPF_JA": calls._JUMP,
    "BPF_LD | BPF_W | BPF_ABS": calls._LOAD,
    "BPF_JMP | BPF_JEQ | BPF_K": calls._JEQ,
    "BPF_JMP | BPF_JGE | BPF_K": calls._JGE,
    "BPF_JMP | BPF_JSET | BPF_K": calls._JSET,
    "BPF_RET | BPF_K": calls._RETURN,
}
_PLACES = {
    "offsetof(struct seccomp_data, nr)": calls._NUMBER,
    "offsetof(struct seccomp_data, arch)": calls._ARCHITECTURE,
    "offsetof(struct seccomp_data, args)": calls._ARGUMENTS,
    "offsetof(struct stat, st_size)": syscalls._STAT_SIZE_AT,
    "offsetof(struct statx, stx_size)": syscalls._STATX_SIZE_AT,
    "sizeof(struct statx)": syscalls._STATX_LENGTH,
    "offsetof(struct statfs, f_type)": 0,
    "sizeof(((struct statfs *)0)->f_type)": ctypes.sizeof(ctypes.c_long),
    "offsetof(struct sock_fprog, filter)": linux._Instructions.program.offset,
    "sizeof(struct sock_fprog)": ctypes.sizeof(linux._Instructions),
    "offsetof(struct iovec, iov_len)": linux._IoVec.length.offset,
}


def engine_values(machine: str) -> dict[str, int]:
    """The values that the engine uses on *machine*, by the C expression for each."""
    values = {f"__NR_{name}": number for name, number in linux.SYSCALLS[machine].items()}
    values[f"AUDIT_ARCH_{machine.upper()}"] = linux.ARCHITECTURES[machine]
    values["sizeof(struct stat)"] = syscalls._STAT_LENGTHS[machine]
    for prefix, names in _ENUMS.items():
        values |= {prefix + name: int(each) for name, each in names.__members__.items()}
    numbers = {
        name: constant
        for name, constant in vars(linux).items()
        if name.isupper() and name[0] != "_" and type(constant) is int
    }
    values |= {_LONG_NAMES.get(name, name): value for name, value in numbers.items()}
    for struct, (form, fields) in _FORMATS.items():
        _add(values, _layout(f"struct {struct}", form, fields.split()))
    for table in (_CODES, _PLACES, _MACROS):
        _add(values, table)
    return values


def _add(values: dict[str, int], more: Mapping[str, int]) -> None:
    """Add *more* to *values*. What both have, such as the size of a struct, must be the same."""
    different = {name for name, value in more.items() if values.get(name, value) != value}
    assert not different, f"the engine has two values for {sorted(different)}"
    values |= more


def _layout(struct: str, form: str, fields: Sequence[str]) -> dict[str, int]:
    """The size of a struct with the format *form*, and where each of its *fields* starts."""
    letters = re.findall(r"\d*[A-Za-z]", form)
    starts = [calcsize("=" + "".join(letters[:count])) for count in range(len(letters))]
    named = [at for at, letter in zip(starts, letters, strict=True) if letter[-1] != "x"]
    places = zip(fields, named, strict=True)
    return {f"sizeof({struct})": calcsize(form)} | {
        f"offsetof({struct}, {name})": at for name, at in places
    }


def compile_values(expressions: Sequence[str], compiler: Sequence[str]) -> dict[str, int]:
    command = [*compiler, "-x", "c", "-S", "-o", "-", "-"]
    code = "\n".join(_program(expressions))
    process = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return {expressions[int(n)]: int(value) for n, value in _ANSWER.findall(process.stdout)}


def _program(expressions: Iterable[str]) -> Iterator[str]:
    """C code whose assembler code has the values, as the kernel's own asm-offsets.c."""
    yield from (f"#include <{header}>" for header in _HEADERS)
    yield "#define offsetof(type, field) __builtin_offsetof(type, field)"
    yield _SPACE_RESV
    yield "void ask(void) {"
    for number, expression in enumerate(expressions):
        if macro := _MACRO.match(expression):
            yield f"#ifdef {macro[0]}"
        yield f'__asm__("@@ {number} is %0" : : "i" ((long long)({expression})));'
        yield "#endif" if macro else ""
    yield "}\n"


def expressions_for(machine: str) -> list[str]:
    """Everything that *machine* needs; also system calls of other machines: it may lack them."""
    calls = {name for table in linux.SYSCALLS.values() for name in table}
    return sorted({*engine_values(machine), *(f"__NR_{name}" for name in calls)})


def _write(headers: Path, source: str) -> None:
    values = {}
    for machine in linux.SYSCALLS:
        triple = f"{machine}-linux-gnu"
        include = headers / "usr/include"
        places = [f"-isystem{include / triple}", f"-isystem{include}"]
        compiler = [f"{triple}-gcc", "-nostdinc", *places]
        values[machine] = compile_values(expressions_for(machine), compiler)
    today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    table = {"source": source, "made": today, "values": values}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]), sys.argv[2])
