# torchvision's LSUN cannot be sent to a spawned worker
#
# It keeps an LMDB environment (`torchvision/datasets/lsun.py:23`), and has no `__getstate__` that
# leaves it out. `spawn` is the default on macOS and Windows, and forkserver on Linux from Python
# 3.14 on.

python -W ignore -c '
import io, lmdb, pickle
from PIL import Image
from torchvision.datasets import LSUN
picture = io.BytesIO()
Image.new("RGB", (8, 8)).save(picture, "PNG")
with lmdb.open("bedroom_train_lmdb") as store, store.begin(write=True) as transaction:
    transaction.put(b"0", picture.getvalue())
pickle.dumps(LSUN(".", ["bedroom_train"]))' 2>&1 | tail -1

# It prints:
# TypeError: cannot pickle 'Environment' object
