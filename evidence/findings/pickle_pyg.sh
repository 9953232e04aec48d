# PyG's OnDiskDataset cannot be sent to a spawned worker
#
# It keeps an SQLite connection (`torch_geometric/data/database.py:321`), and has no `__getstate__`
# that leaves it out. `spawn` is the default on macOS and Windows, and forkserver on Linux from
# Python 3.14 on.

python -W ignore -c '
import pickle
from torch_geometric.data import Data, OnDiskDataset
dataset = OnDiskDataset("graphs")
dataset.append(Data())
pickle.dumps(dataset)' 2>&1 | tail -1

# It prints:
# TypeError: cannot pickle 'sqlite3.Connection' object
