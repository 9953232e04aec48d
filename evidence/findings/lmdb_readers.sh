# An LMDB environment runs out of readers
#
# An environment that `__init__` opened works without workers. With workers it fails after about
# 124 samples. torchfast (`data/lmdbdict.py:53`) and many others open it there. Expected: to fail
# at once, or to work.
#
# The cause: LMDB's own rule. "Use an MDB_env* in the process which opened it, not after fork()".
# Each transaction in the child takes a new slot of the 126 in the table of readers. What helps:
# open the environment in the worker, by the first sample.

python -c '
import lmdb
from torch.utils.data import DataLoader, Dataset

class Records(Dataset):
    def __init__(self):
        self.store = lmdb.open("records", readonly=True)

    def __len__(self):
        return 600

    def __getitem__(self, index):
        with self.store.begin() as transaction:
            return int(transaction.get(b"%d" % index))

with lmdb.open("records") as store, store.begin(write=True) as transaction:
    for number in range(600):
        transaction.put(b"%d" % number, b"%d" % number)
for workers in 0, 2:
    try:
        print(sum(len(batch) for batch in DataLoader(Records(), num_workers=workers)), "samples")
    except lmdb.Error as error:
        print(str(error).splitlines()[-1][:38])'

# It prints:
# 600 samples
# lmdb.ReadersFullError: mdb_txn_begin: 
