"""This machine: its processes, what /proc says of them, and what must not outlive the harness."""
