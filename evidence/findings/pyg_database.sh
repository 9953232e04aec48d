# PyG's database cannot be read any more
#
# One read of an `OnDiskDataset` fails with EIO. That call reports it. From then on, every
# `multi_get` of that process fails, which is what the `DataLoader` calls. Expected: the next call
# works.
#
# The cause: `torch_geometric/data/database.py:388` makes a temporary table that line 417 drops,
# but only if nothing is raised between. `DROP TABLE` belongs in a `finally`.

cat > graphs.py <<'END'
import torch
from torch_geometric.data import Data, OnDiskDataset
dataset = OnDiskDataset("graphs")
if len(dataset) == 0:
    dataset.extend([Data(x=torch.full((1000, 4), number)) for number in range(24)])
END
python -W ignore graphs.py
strace -f -o trace.txt -e trace=pread64 -e inject=pread64:error=EIO:when=22 -P graphs/processed/sqlite.db \
    python -W ignore -c '
import sqlite3
from graphs import dataset
for attempt in 1, 2, 3:
    try:
        print(len(dataset.multi_get(range(24))))
    except sqlite3.Error as error:
        print(error)'

# It prints:
# database disk image is malformed
# table OnDiskDataset__join already exists
# table OnDiskDataset__join already exists
