"""Which names checks have had: a record may be compared with one from before checks were merged."""

from __future__ import annotations

from collections.abc import Iterable

_OLD_NAMES = {
    "two-epochs": "leftover-files",
    "persistent-workers": "abandoned-epoch resource-growth",
    "open-error": "permission-denied",
    "missing-file": "file-missing missing-before-init",
    "empty-file": "truncated-empty empty-before-init",
    "truncated-file": (
        "truncated-half truncated-tail truncated-before-init recovers-after-truncation"
    ),
    "corrupted-file": "corrupted-before-init",
    "read-error": "read-error-halfway read-error-before-init",
    "read-error-once": "read-error-transient recovers-after-read-error",
    "hung-read": "connection-hung",
    "listing-order": "ranks-listing-order",
    "worker-killed": (
        "worker-killed-first worker-killed-middle worker-killed-last worker-killed-reading"
        " worker-killed-writing"
    ),
    "write-error": "disk-full",
    "file-locks": "locked-file no-locks",
    "connection-error": "connect-error connection-reset connection-closed",
    "resumes": "resumes-after-death",
    "ranks-agree": "ranks-next-epoch ranks-share-folder",
    "rank-stops": "rank-read-error rank-worker-killed",
}
"""For each check the names of those that it stands for. It may have the name of one of them."""
_NEW_NAMES = {old: new for new, names in _OLD_NAMES.items() for old in names.split()}


def current_name(check: str) -> str:
    """The name of the check that stands for *check*, which may be its own."""
    return _NEW_NAMES.get(check, check)


def current_names(checks: Iterable[str]) -> list[str]:
    """The names of the checks that stand for *checks*, each once."""
    return list(dict.fromkeys(map(current_name, checks)))
