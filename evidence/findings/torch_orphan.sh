# torch's worker misses a parent that died early
#
# A worker looks every 5 s whether the process that started it is alive. It does so by
# `os.getppid()`, and takes the first answer after `worker_init_fn` has run. If the parent is dead
# by then, that answer is the pid of another process, which does not change. So the worker waits
# forever, with its memory and its files, for a loop that is gone. A job that is killed while its
# workers start leaves some: of 120 workers whose parent was killed then, 68 were there 15 s
# later.
#
# The cause: `ManagerWatchdog` in `torch/utils/data/_utils/worker.py` is made too late, and
# compares with itself. What helps: `multiprocessing.parent_process()` knows the pid of the
# process that started the worker, so that `worker_init_fn` can exit if `os.getppid()` is another
# one. Workers under this plugin do that.

cat > train.py <<END
import os, signal, time
from torch.utils.data import DataLoader

def killed_meanwhile(worker):
    open("pid", "w").write(str(os.getpid()))
    parent = os.getppid()
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.01)

next(iter(DataLoader(range(8), num_workers=1, worker_init_fn=killed_meanwhile)))
END
python train.py || true
sleep 10
kill -KILL $(cat pid) && echo "it was still there"

# It prints:
# it was still there
