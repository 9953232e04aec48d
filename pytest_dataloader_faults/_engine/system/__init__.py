"""What the harness makes on this machine, so that nothing of it outlives the harness."""
