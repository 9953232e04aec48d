"""This machine: its processes, their facts in /proc, and what must not outlive the harness."""
