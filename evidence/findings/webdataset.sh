# webdataset: fewer shards than workers
#
# Every shard of a worker fails, and the handler goes on, as it was asked to. What is raised then
# blames the number of shards, and proposes to turn off the check. Expected: to say that each
# shard failed.
#
# The cause: `webdataset/compat.py:317-321` counts samples, and does not know of errors that a
# handler has swallowed.

python -W ignore -c '
import os, webdataset
from torch.utils.data import DataLoader
shards = [f"{number}.tar" for number in range(4)]
for shard in shards:
    with webdataset.TarWriter(shard) as out:
        out.write({"__key__": shard, "txt": "text"})
    os.truncate(shard, 100)
dataset = webdataset.WebDataset(shards, shardshuffle=False, handler=webdataset.ignore_and_continue)
list(DataLoader(dataset, num_workers=2))' 2>&1 | grep -o "No samples found.*"

# It prints:
# No samples found in dataset; perhaps you have fewer shards than workers.
