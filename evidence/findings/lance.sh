# lance's LanceDataset dies or hangs in forked workers
#
# pylance 14.0.2. `fork` is what a DataLoader does on Linux before Python 3.14. lance warns that it
# "is not fork-safe", and yet often works, so that it is found late: here one of up to 40 epochs
# fails, mostly one of the first five. Expected: an error from the first epoch on.
#
# The cause: threads of lance's runtime, which a fork does not inherit. What helps:
# `multiprocessing_context="spawn"`, and lance's `SafeLanceDataset`.

cat > main.py <<'END'
import sys

import lance
import pyarrow as pa
from lance.torch.data import LanceDataset
from torch.utils.data import DataLoader

if __name__ == "__main__":
    table = pa.table({"x": range(64)})
    lance.write_dataset(table, "x.lance", mode="overwrite", max_rows_per_file=16)
    dataset = LanceDataset("x.lance", batch_size=8, shard_granularity="fragment")
    context, limit = sys.argv[1], int(sys.argv[2])
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, timeout=limit, multiprocessing_context=context
    )
    assert sum(map(len, loader)) == 64
END
epoch() { timeout -s KILL "$2" python -W ignore main.py "$1" "$2" 2> error.txt; }
epoch spawn 60 && echo "spawn works"
for _ in $(seq 40); do
    epoch fork 8 || { echo "fork fails"; break; }
done

# It prints:
# spawn works
# fork fails
