"""Addresses of TCP connections, and how the failure of a connection shows. Pure.

The address of the peer is the path of a connection, which globs match as those of files:
``tcp://192.0.2.1:443`` or ``tcp://[2001:db8::1]:443``. As for a system file, only an explicit glob
matches it, one that starts with tcp://. The bracket after that is part of the address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SCHEME = "tcp://"
FILE_PATH = "file's path"
BY_ADDRESS = (
    "the address of a TCP connection, such as 'tcp://127.0.0.1:*', because connect(2) gets no host"
    " name such as localhost"
)
ANSWER = "recv"
"""How firings name the data from the peer of a connection."""
CONNECTION_FAILED = (
    r"\bconnect(ion|ed)?\b.{0,60}(abort|refus|reset|clos|broke|fail|lost|error|unreachable)"
    r"|(clos|lost|reset|fail|cannot|could not|unable|max retries).{0,80}\bconnect(ion)?\b"
    r"|Incomplete ?Read|Disconnected|Connection\w*Error|not completed|URLError|unreachable"
)
NO_DATA_YET = "(?-i:BlockingIOError|temporarily unavailable|EAGAIN|EWOULDBLOCK)"
"""recv(2) fails with EAGAIN when SO_RCVTIMEO expires."""
_MOST_LISTED = 10


def is_address(path: str) -> bool:
    """Whether *path* is the address of a connection, or a glob for some."""
    return path.startswith(SCHEME)


def connection_path(host: str, port: int | str) -> str:
    """The path of a connection to that address."""
    return f"{SCHEME}{f'[{host}]' if ':' in host else host}:{port}"


def host_of(path: str) -> str:
    """The address in the *path* of a connection, without the port."""
    return path.removeprefix(SCHEME).rpartition(":")[0]


def identifier_of(path: str) -> str:
    """By what a message should identify what has this *path*."""
    return "server's address" if is_address(path) else FILE_PATH


def has_address(text: str, path: str) -> bool:
    """Whether *text* has the address and the port of the connection *path*, if it is one.

    For example, as in ``host='192.0.2.1', port=443``.
    """
    if not is_address(path):
        return False
    host, _, port = path.removeprefix(SCHEME).rpartition(":")
    words = rf"(?<![\w.:]){re.escape(host.strip('[]'))}\W{{1,4}}(port\W{{1,2}})?{port}\b"
    return re.search(words, text) is not None


def is_by_name(glob: str) -> bool:
    """Whether *glob* names the host of connections, whose paths have its address.

    No address has a letter beyond f.
    """
    return is_address(glob) and re.search("[g-zG-Z]", glob.removeprefix(SCHEME)) is not None


def escape_bracket(glob: str) -> str:
    """*glob* without the meaning that the bracket of an IPv6 address has in one."""
    address = f"{SCHEME}["
    is_bare = glob.startswith(address) and not glob.startswith(f"{address}[]")
    return glob.replace(address, f"{address}[]", 1) if is_bare else glob


def list_connections(counts: Mapping[str, int]) -> str:
    """The connections that workers opened; *counts*: how often, by address."""
    text = ", ".join(f"{path} ({count})" for path, count in sorted(counts.items())[:_MOST_LISTED])
    if text:
        return f"Connections opened: {text}"
    return (
        "No worker opened a TCP connection. Connections from before the workers started are not"
        " visible"
    )
