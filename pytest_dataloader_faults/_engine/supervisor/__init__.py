"""What runs in the supervisor, the process that answers for the workers' system calls."""
