# mosaicml-streaming takes a short read for a whole sample
#
# POSIX lets read(2) return fewer bytes than requested, as network file systems do. Then the
# sample is shorter, and nothing is raised. Expected: the reader reads on.
#
# The cause: `streaming/base/format/mds/reader.py:139` opens the file without a buffer, and line
# 144 calls `fp.read(n)` once. `json/reader.py:122` and `xsv/reader.py:130` do the same. With a
# buffer, which is the default of `open`, Python reads on.

python -W ignore -c '
from streaming import MDSWriter
with MDSWriter(out="mds", columns={"text": "str"}) as out:
    for number in range(8):
        out.write({"text": f"text {number} " * 40})'
python -W ignore -c '
import io
from streaming import StreamingDataset
from streaming.base.format.mds import reader

class Short(io.FileIO):
    def read(self, size=-1):
        return super().read(min(size, 200))

dataset = StreamingDataset(local="mds", batch_size=1)
print(len(dataset[0]["text"]))
reader.open = lambda path, mode, buffering: Short(path)
print(len(dataset[0]["text"]))'

# It prints:
# 280
# 196
