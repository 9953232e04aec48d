# Megatron's IndexedDataset gives leftover memory for tokens that are not there
#
# megatron-core 0.16.1, `IndexedDataset(..., mmap=False)`. Half of the .bin file is missing. The
# documents of that half have whatever was in that memory before, mostly tokens of documents that
# were read earlier, and nothing raises. A read that returns less than was asked for, which POSIX
# allows, does the same. Expected: an error. With `mmap=True` there is one.
#
# The cause: `core/datasets/indexed_dataset.py:464` makes the array by `numpy.empty`, and line 473
# reads into it from a file without a buffer and ignores how much came. fairseq's `IndexedDataset`
# has the same lines. What helps: compare what `readinto` returns with the size of the array.

cat > main.py <<'END'
import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

builder = IndexedDatasetBuilder("x.bin", dtype=np.int32)
for number in range(24):
    builder.add_document(torch.full((64,), number), [64])
builder.finalize("x.idx")
with open("x.bin", "r+b") as file:
    file.truncate(12 * 64 * 4)
for mmap in False, True:
    documents = IndexedDataset("x", mmap=mmap)
    try:
        wrong = [number for number in range(24) if (documents[number] != number).any()]
        print(len(wrong), "of 24 documents are wrong, and there is no error")
    except ValueError as error:
        print("with mmap:", error)
END
python -W ignore main.py

# It prints:
# 12 of 24 documents are wrong, and there is no error
# with mmap: buffer is smaller than requested size
