# mosaicml-streaming hangs after a worker was killed
#
# The out-of-memory killer ends a worker. The loop catches torch's error, and begins a new pass
# over the same dataset. That pass never gives a batch. Expected: it works, or raises.
#
# The cause: `streaming/base/shared/barrier.py:113` and `:129` wait in shared memory for the
# process that is dead, and have no limit of time.

cat > main.py <<'END'
import os, signal
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

def give_up(*_):
    print("no batch in 20 s", flush=True)
    os.killpg(0, signal.SIGKILL)

if __name__ == "__main__":
    with MDSWriter(out="mds", columns={"number": "int"}) as out:
        for number in range(64):
            out.write({"number": number})
    loader = DataLoader(StreamingDataset(local="mds", batch_size=4), batch_size=4, num_workers=2)
    epoch = iter(loader)
    os.kill(epoch._workers[0].pid, signal.SIGKILL)
    try:
        list(epoch)
    except RuntimeError as error:
        print(type(error).__name__, flush=True)
    del epoch
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    print(len(list(loader)), "batches")
END
setsid -w python -W ignore main.py || true

# It prints:
# RuntimeError
# no batch in 20 s
