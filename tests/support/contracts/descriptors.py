"""Calls that need a descriptor, when none is left."""

import os
import socket
from errno import EMFILE

from pytest_dataloader_faults.faults import DescriptorExhaustion
from support.contracts.row import Row, errno


def _close(*descriptors: int) -> str:
    for descriptor in descriptors:
        os.close(descriptor)
    return "closed"


WAYS = {
    "open": lambda _: _close(os.open(os.devnull, os.O_RDONLY)),
    "dup": lambda _: _close(os.dup(0)),
    "pipe": lambda _: _close(*os.pipe()),
    "memfd_create": lambda _: _close(os.memfd_create("x")),
    "socket": lambda _: socket.socket().close(),
    "listdir": lambda _: len(os.listdir("/")),
}
SHORTAGES = {name: Row(DescriptorExhaustion, way, errno(EMFILE)) for name, way in WAYS.items()}
