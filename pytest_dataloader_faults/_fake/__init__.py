"""pyfakefs under loaders with workers: files that exist in memory only, and their faults.

Nothing here imports pyfakefs before a fake file system is asked for.
"""
