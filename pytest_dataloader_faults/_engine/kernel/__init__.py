"""System calls and the kernel: seccomp, its filters, and other processes' memory."""
