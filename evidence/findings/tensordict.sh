# tensordict lengthens a short file with zeros
#
# A memory-mapped tensor whose file lacks its end is loaded with zeros for what is missing. The
# file on the disk gets longer, too, so the next look at its size finds nothing. Expected: an
# exception, since the shape is in `meta.json`.
#
# The cause: `torch.from_file(..., shared=True, size=n)` makes a file that is shorter than `n` as
# long as that, by ftruncate(2). `tensordict/memmap.py` calls it and does not compare the sizes.

python -W ignore -c '
import os, torch
from tensordict import TensorDict
TensorDict({"x": torch.full((16, 200), 7, dtype=torch.uint8)}, batch_size=[16]).memmap("td")
os.truncate("td/x.memmap", 1600)
values = TensorDict.load_memmap("td")["x"]
print(int((values == 0).sum()) > 1000, os.path.getsize("td/x.memmap"))'

# It prints:
# True 3200
