"""Hurt the harness at random, and look at what it says and what it leaves.

python evidence chaos --rounds 1000 --seed 1

A round is one subject, such as a trial or a loop under inject(), and one hurt: a signal to one of
the processes, or a machine that lacks something. Its number and the seed tell which. It is a
violation if a process, or a file in /dev/shm or TMPDIR, is left 5 s after the end (60 s if it is a
fork server, which may have torch yet to import); if a file of
the dataset has changed; if the subject never ends; and if it comes to a wrong verdict.

Rounds run in PID, mount and network namespaces of their own, so that what they leave can be seen,
and can do no harm.
"""
