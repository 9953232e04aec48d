# array_record dies in forked workers
#
# array_record 0.8.6. An `ArrayRecordDataSource` is made, which reads the footer of its file, and is
# given to a DataLoader with `fork`, as on Linux before Python 3.14. Its workers end by SIGSEGV, or
# hang. So does a `grain.MapDataset` over it. Expected: to work, or to raise. Each record alone
# (`batch_size=None`) works, and so does a source that the worker made itself.
#
# The cause: a pool of threads that the first use of the library makes, and that a fork does not
# inherit. What helps: `multiprocessing_context="spawn"`.

cat > main.py <<'END'
import sys

from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter
from torch.utils.data import DataLoader

if __name__ == "__main__":
    writer = ArrayRecordWriter("x.array_record", "group_size:1")
    for number in range(32):
        writer.write(bytes([number]) * 64)
    writer.close()
    source = ArrayRecordDataSource("x.array_record")
    context, epochs, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    failed = 0
    for _ in range(epochs):
        loader = DataLoader(
            source, batch_size=4, num_workers=2, timeout=limit, multiprocessing_context=context
        )
        try:
            assert sum(map(len, loader)) == 32
        except RuntimeError:
            failed += 1
    print(context, "more than half of the epochs failed" if failed > 2 else f"{failed} failed")
END
python -W ignore main.py spawn 1 60 2> error.txt
python -W ignore main.py fork 5 10 2> error.txt

# It prints:
# spawn 0 failed
# fork more than half of the epochs failed
