"""The present names of the checks that were once several, by the old ones: records have these."""

OLD_NAMES = {
    old: new
    for new, names in {
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
        "connection-error": "connect-error connection-reset connection-closed",
        "file-locks": "locked-file no-locks",
        "ranks-agree": "ranks-next-epoch ranks-share-folder",
        "resumes": "resumes-after-death",
        "rank-stops": "rank-read-error rank-worker-killed",
    }.items()
    for old in names.split()
}
