"""The portable engine: Python's own file access, replaced in the worker, without kernel support."""
