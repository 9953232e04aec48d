"""Loads pytester, which pytest accepts only from the conftest at the root."""

pytest_plugins = ["pytester"]
