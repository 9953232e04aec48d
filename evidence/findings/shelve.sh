# Python: an error of shelve hangs the loader
#
# A worker cannot open its shelf, and the loader waits forever. Expected: the error reaches the
# loop.
#
# The cause: `dbm/__init__.py` defines `class error(Exception)`, and then gives its name to a
# tuple: `error = (error, OSError)`. So no exception of that class can be pickled. torch's worker
# puts it into a queue, whose thread prints the `PicklingError` and drops the message.

python -c '
import shelve
from torch.utils.data import DataLoader, Dataset

class Shelf(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return shelve.open("nothing", flag="r")[str(index)]

try:
    list(DataLoader(Shelf(), num_workers=1, timeout=15))
except RuntimeError as error:
    print(error)' 2> log.txt
grep -o "PicklingError: Can.t pickle.*" log.txt | head -1

# It prints:
# DataLoader timed out after 15 seconds
# PicklingError: Can't pickle <class 'dbm.error'>: it's not the same object as dbm.error
